"""Runs the commands of `examples/README.md` in their order, against a vault that `agent-vault serve` runs."""

import contextlib
import importlib.util
import json
import shutil
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from tests.support.needs import skip_or_fail
from tests.support.node import x402_packages
from tests.support.processes import serving
from tests.support.reader import Reader, blocks_of
from tests.support.warm import COMMAND_LINE
from tests.x402.servers import free_port

pytestmark = pytest.mark.asyncio(loop_scope="module")

_ROOT = Path(__file__).resolve().parents[2]
#: Blocks that keep running, and the port that each listens on.
_SERVERS = {r"facilitator\.mjs": "8510", r"paid_api\.mjs": "8520", "uvicorn": "8521"}


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
        ports = {port: str(free_port()) for port in _SERVERS.values()}
        blocks = blocks_of(_ROOT / "examples/README.md")
        one = Reader(folder, blocks, ports, AGENT_VAULT_URL=serve.url, RPC=serve.rpc)
        await one.types("ln -sfn")
        await one.types(r"prepare\.py")
        for pattern, port in _SERVERS.items():
            await stack.enter_async_context(one.keeps_running(pattern, port))
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
