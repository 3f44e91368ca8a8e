"""Runs the quick start of the start page in each of its languages, exactly as the page shows it."""

import asyncio
import json
import os
import re
import shutil
import sys
from html import unescape
from pathlib import Path

import pytest

from app.docs.text import LANGUAGES
from tests.support.http import served
from tests.support.needs import skip_or_fail
from tests.support.node import compiler, generated_clients
from tests.support.processes import serving
from tests.support.service_world import ServiceWorld
from tests.support.warm import COMMAND_LINE

pytestmark = pytest.mark.asyncio(loop_scope="module")

_CLIENTS = Path(__file__).resolve().parents[2] / "clients"
_PATIENCE = 120.0
_PAYEE = "GmaDrppBC7P5ARKV8g3djiwP89vz1jLK23V2GBjuAEGB"
_STEPS = 6
"""Blocks of each language at the end: five steps and a refusal. Before them, the clients make a first payment."""
_LINES = 8
"""Maximum number of lines of the first payment's code, without empty ones."""


def _script(page: str, language: str) -> list[str]:
    """Return the blocks of one language in their order."""
    tab = rf'<figure data-language="{language}"><figcaption>\w+</figcaption><pre><code[^>]*>(.*?)</code></pre></figure>'
    found = re.findall(tab, page, re.DOTALL)
    return [_code(block) for block in found]


def _code(html: str) -> str:
    return unescape(re.sub("<[^>]+>", "", html))


async def _run(command: list[str | Path], folder: Path, **environment: str) -> str:
    process = await asyncio.create_subprocess_exec(
        *command,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        cwd=folder,
        env={**os.environ, **environment},
    )
    try:
        out, err = await asyncio.wait_for(process.communicate(), _PATIENCE)
    finally:
        if process.returncode is None:
            process.kill()
    assert process.returncode == 0, f"{out.decode()}\n{err.decode()}"
    return out.decode()


def _command(language: str, script: str, folder: Path) -> tuple[list[str | Path], list[list[str | Path]]]:
    """Return the command that runs a script, and the commands that must run before it."""
    if language == "sh":
        if shutil.which("curl") is None:
            skip_or_fail("curl is not installed")
        return ["bash", "-eu", "-c", script], []
    file = folder / ("quickstart.mts" if language == "ts" else "quickstart.py")
    file.write_text(script, encoding="utf-8")
    if language == "python":
        return [sys.executable, file], []
    # Put the packages where a developer installs them. tests/clients/test_built_clients.py does so without a checkout.
    (modules := folder / "node_modules").mkdir()
    (modules / "@types").symlink_to(generated_clients() / "@types")
    (modules / "undici-types").symlink_to(generated_clients() / "undici-types")
    client = modules / "agent-vault-client"
    shutil.copytree(_CLIENTS / "typescript", client, ignore=shutil.ignore_patterns("node_modules", "dist"))
    options = ["--module", "nodenext", "--target", "es2023", "--types", "node", "--strict"]
    return ["node", folder / "built/quickstart.mjs"], [
        [compiler(), "-p", client],
        [compiler(), *options, "--outDir", folder / "built", file],
    ]


@pytest.mark.proves("GET /docs")
@pytest.mark.parametrize("language", LANGUAGES)
async def test_quick_start_runs_as_it_is_shown(world: ServiceWorld, tmp_path: Path, language: str) -> None:
    async with served(world) as base:
        blocks = _script((await world.client.get("/docs")).text, language)[-_STEPS:]
        command, before = _command(language, "\n".join(blocks), tmp_path)
        for one in before:
            await _run(one, tmp_path)
        had, python = await world.balance(_PAYEE), str(_CLIENTS / "python")
        said = (await _run(command, tmp_path, URL=base, KEY=world.keys["admin"], PYTHONPATH=python)).splitlines()

    # Then it printed the balance, the payment's status and the rule that refused
    assert said[:2] == ["10.00", "confirmed"]
    refusal = "\n".join(said[2:])
    assert re.search(r"rule\W+max_per_tx\W+limit\W+5\.00\W+attempted\W+6\.00", refusal), refusal
    # And the money is there
    assert await world.balance(_PAYEE) == had + 4_500_000
    agent = {"sh": "curl"}.get(language, {"ts": "typescript"}.get(language, language))
    wallets = (await world.ok("GET", "/v1/wallets"))["data"]
    [wallet] = [one for one in wallets if one["agent_id"] == f"{agent}-agent"]
    assert wallet["usdc_balance"] == "5.50"


@pytest.mark.parametrize("language", ["python", "ts"])
async def test_first_payment_takes_eight_lines(tmp_path: Path, language: str) -> None:
    async with serving(tmp_path / "data", COMMAND_LINE) as serve:
        [block, *steps] = _script((await serve.client.get("/docs")).text, language)
        assert len(steps) == _STEPS
        assert len([line for line in block.splitlines() if line]) <= _LINES
        command, before = _command(language, block, tmp_path)
        for one in before:
            await _run(one, tmp_path)
        key = (tmp_path / "data/admin-api-key").read_text().strip()
        said = await _run(command, tmp_path, URL=serve.url, KEY=key, PYTHONPATH=str(_CLIENTS / "python"))
        [row] = (await serve.client.get("/v1/transactions?type=payment")).json()["data"]

    assert said.split() == ["confirmed", row["tx_signature"]]


async def test_answer_that_the_page_shows_is_the_answer(world: ServiceWorld) -> None:
    page = (await world.client.get("/docs")).text
    [shown] = re.findall(r'<pre><code class="language-json">(.*?)</code></pre>', page, re.DOTALL)
    policy = await world.policy(maxPerTx="5.00")
    wallet = await world.wallet(policy["policy_id"])

    answer = (await world.pay(wallet, _PAYEE, "6.00")).json()

    expected = json.loads(_code(shown))["error"]
    assert {name: answer["error"][name] for name in expected} == expected
    assert {"message", "docs", "wallet_id", "policy_id", "tx_id"} <= set(answer["error"])
