"""Runs the examples of agent frameworks, the webhook receiver and the nightly report against a running service."""

import asyncio
import importlib
import json
import os
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import pytest_asyncio
from agent_vault_client import Admin

from app.webhooks._signing import signature_headers
from tests.mcp.frameworks import python_of
from tests.support.environments import MissingEnvironmentError
from tests.support.http import served
from tests.support.needs import skip_or_fail
from tests.support.processes import output, printed
from tests.x402.conftest import Market, opened
from tests.x402.mpp import shop
from tests.x402.servers import free_port

pytestmark = pytest.mark.asyncio(loop_scope="module")

_ROOT = Path(__file__).resolve().parents[2]
_EXAMPLES = _ROOT / "examples"
_MOST_LINES = 40
_FRAMEWORKS = {"openai": "openai-agents", "langchain": "langchain", "pydantic": "pydantic-ai"}


@pytest_asyncio.fixture(scope="module", loop_scope="module", name="market")
async def _market(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Market]:
    async with opened(tmp_path_factory.mktemp("market")) as found:
        yield found


def _environment(**given: str) -> dict[str, str]:
    return {"PATH": os.environ["PATH"], "PYTHONPATH": f"{_ROOT / 'clients/python'}:{_EXAMPLES}:{_ROOT}", **given}


@pytest.mark.parametrize("name", _FRAMEWORKS)
async def test_agent_pays_acts_on_a_refusal_and_buys_by_mpp(market: Market, name: str, tmp_path: Path) -> None:
    try:
        python = python_of(_FRAMEWORKS[name])
    except MissingEnvironmentError as error:
        skip_or_fail(f"{error} cannot be installed")
    buyer, payee = await market.buyer(allowAllowances=True, maxPerTx="0.05"), await market.world.payee()
    sold = await market.received()

    async with served(market.world) as url, shop(market) as mpp:
        settings = {"AGENT_VAULT_URL": url, "AGENT_VAULT_API_KEY": buyer.key, "ORDERS": str(tmp_path / "orders")}
        env = _environment(AGENT_VAULT_SESSION_TOKEN=buyer.session, **settings)
        program = Path(__file__).with_name("scripted_agent.py")
        said = json.loads(await output(python, program, name, payee, f"{mpp}/weather", env=env))

    paid, refused, within, bought = said
    assert ("confirmed" in paid, "max_per_tx" in refused, "confirmed" in within, "sunny" in bought) == (True,) * 4, said
    assert await market.world.balance(payee) == 40_000 + 50_000
    assert await market.received() - sold == 10_000


async def test_receiver_prints_each_valid_event_once(market: Market) -> None:
    port = free_port()
    body = {"url": f"http://127.0.0.1:{port}/", "events": ["*"]}
    made = await market.world.ok("POST", "/v1/webhooks", body)
    env = _environment(SECRET=made["signing_secret"], PORT=str(port))
    program = _EXAMPLES / "webhook_receiver.py"
    process = await asyncio.create_subprocess_exec(sys.executable, program, env=env, stdout=asyncio.subprocess.PIPE)
    event = {"event": "wallet.frozen", "event_id": "evt_1", "timestamp": "2030-01-01T00:00:00Z"}
    content = json.dumps(event).encode()
    signed = signature_headers(content, message_id="evt_1", timestamp=int(time.time()), keys=[made["signing_secret"]])
    try:
        await printed(process, b"Receiving")
        await market.world.ok("POST", f"/v1/webhooks/{made['webhook_id']}/test", {})
        await printed(process, b"ping")
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}") as client:
            statuses = [
                (await client.post("/", content=content, headers=one)).status_code for one in (signed, signed, {})
            ]
    finally:
        process.kill()
        said, _ = await process.communicate()
        await market.world.ok("DELETE", f"/v1/webhooks/{made['webhook_id']}")

    assert statuses == [200, 200, 400]
    assert said.split() == [b"wallet.frozen", b"evt_1"]


async def test_report_shows_spending_and_refusals(market: Market, monkeypatch: pytest.MonkeyPatch) -> None:
    policy = await market.world.policy(maxPerTx="2")
    wallet, payee = await market.world.wallet(policy["policy_id"], label="Reporter"), await market.world.payee()
    await market.world.pay(wallet, payee, "1.25")
    await market.world.pay(wallet, payee, "2.50")
    monkeypatch.syspath_prepend(_EXAMPLES)
    report: Any = importlib.import_module("nightly_report")

    async with served(market.world) as url:
        with Admin(market.world.key("viewer"), base_url=url) as admin:
            said = await asyncio.to_thread(report.report, admin)

    assert "Reporter: 1.25 USDC, 98.75 left, refused: max_per_tx 1" in said.splitlines()


async def test_examples_on_the_clients_are_short_enough_to_read() -> None:
    names = ("vault_tools", *(f"{one}_agent" for one in _FRAMEWORKS), "webhook_receiver", "nightly_report")
    assert {
        name: lines
        for name in names
        if (lines := len((_EXAMPLES / f"{name}.py").read_text().splitlines())) > _MOST_LINES
    } == {}
