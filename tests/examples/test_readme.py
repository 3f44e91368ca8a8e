"""Runs the commands of `examples/README.md` in their order, against a vault that `agent-vault serve` runs."""

import asyncio
import contextlib
import importlib.util
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest
import pytest_asyncio

from tests.support.needs import skip_or_fail
from tests.support.node import x402_packages
from tests.support.processes import COMMAND_LINE, PATIENCE, Serve, serving
from tests.x402.servers import free_port

pytestmark = pytest.mark.asyncio(loop_scope="module")

_ROOT = Path(__file__).resolve().parents[2]
_BLOCKS = re.findall(r"^```sh\n(.*?)\n```$", (_ROOT / "examples/README.md").read_text(), re.MULTILINE | re.DOTALL)
#: Blocks that keep running, and the port that each listens on.
_SERVERS = {r"facilitator\.mjs": "8510", r"paid_api\.mjs": "8520", "uvicorn": "8521"}


class Reader:
    """Somebody who types the README's commands into terminals, with free ports instead of the README's."""

    def __init__(self, folder: Path, serve: Serve) -> None:
        self._folder = folder
        self._ports = {port: str(free_port()) for port in _SERVERS.values()}
        self._environment = {**os.environ, "AGENT_VAULT_URL": serve.url, "RPC": serve.rpc}

    async def types(self, pattern: str) -> str:
        """Run the one block that has this to its end, and return what it prints."""
        async with self._terminal(pattern) as process, asyncio.timeout(PATIENCE):
            out, err = await process.communicate()
        assert process.returncode == 0, (out + err).decode()
        return out.decode()

    @contextlib.asynccontextmanager
    async def keeps_running(self, pattern: str) -> AsyncIterator[None]:
        """Run the block that serves, from when it listens until the context ends."""
        url = f"http://127.0.0.1:{self._ports[_SERVERS[pattern]]}/"
        async with self._terminal(pattern) as process, httpx.AsyncClient() as client:
            async with asyncio.timeout(PATIENCE):
                while True:
                    assert process.returncode is None, await process.communicate()
                    with contextlib.suppress(httpx.TransportError):
                        await client.get(url)
                        break
                    await asyncio.sleep(0.05)
            yield

    @contextlib.asynccontextmanager
    async def _terminal(self, pattern: str) -> AsyncIterator[asyncio.subprocess.Process]:
        [script] = [block for block in _BLOCKS if re.search(pattern, block)]
        for port, free in self._ports.items():
            script = script.replace(port, free)
        process = await asyncio.create_subprocess_exec(
            *("bash", "-eu", "-c", script),
            cwd=self._folder,
            env=self._environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
        try:
            yield process
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            await process.communicate()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def reader(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Reader]:
    """A reader whose vault, facilitator and APIs run."""
    x402_packages()
    if importlib.util.find_spec("fastapi") is None:
        skip_or_fail("FastAPI is not installed: the extra `test` has it")
    folder = tmp_path_factory.mktemp("examples")
    shutil.copytree(_ROOT / "examples", folder / "examples", ignore=shutil.ignore_patterns("node_modules", ".env"))
    (folder / "tests").symlink_to(_ROOT / "tests")
    (folder / ".venv").symlink_to(sys.prefix)
    async with serving(folder / "data", COMMAND_LINE) as serve, contextlib.AsyncExitStack() as stack:
        one = Reader(folder, serve)
        await one.types("ln -sfn")
        await one.types(r"prepare\.py")
        for pattern in _SERVERS:
            await stack.enter_async_context(one.keeps_running(pattern))
        yield one


@pytest.mark.parametrize("agent", [r"agent\.mts", r"agent\.py \S+/weather$"])
async def test_each_agent_buys_from_the_api_in_the_other_language(reader: Reader, agent: str) -> None:
    bought = json.loads(await reader.types(agent))

    assert bought["resource"]["status"] == 200, bought
    assert json.loads(bought["resource"]["body"])["weather"] == "sunny"
    assert (bought["payment"]["status"], bought["payment"]["amount"]) == ("confirmed", "0.01")


async def test_api_asks_for_payment_and_an_agent_refuses_a_price(reader: Reader) -> None:
    assert (await reader.types("http_code")).strip() == "402"
    assert "0.005" in json.loads(await reader.types(r"weather 0\.005"))["refused"]


async def test_what_the_agents_paid_is_listed(reader: Reader) -> None:
    listed = json.loads(await reader.types("v1/transactions"))

    assert {one["x402"]["url"].rpartition("/")[2] for one in listed["data"]} == {"weather"}


async def test_agents_stay_short_enough_to_read() -> None:
    for name in ("agent.py", "agent.mts"):
        assert len((_ROOT / "examples" / name).read_text().splitlines()) <= 50
