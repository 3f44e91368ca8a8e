"""The command line of the MCP inspector, as whoever connects a client for the first time uses it."""

import asyncio
import json
import subprocess

import pytest

from app.mcp.tools import TOOLS
from tests.mcp.clients import headers_of, new_key
from tests.support.http import served
from tests.support.node import x402_packages
from tests.support.processes import PATIENCE
from tests.support.service_world import Json, ServiceWorld

pytestmark = pytest.mark.asyncio(loop_scope="module")


async def _inspect(url: str, headers: dict[str, str], *arguments: str) -> Json:
    """What the inspector prints about the server."""
    given = [part for name, value in headers.items() for part in ("--header", f"{name}: {value}")]
    process = await asyncio.create_subprocess_exec(
        *(x402_packages() / ".bin/mcp-inspector", "--cli", f"{url}/mcp", "--transport", "http"),
        *(*arguments, *given),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    try:
        out, err = await asyncio.wait_for(process.communicate(), PATIENCE)
    finally:
        if process.returncode is None:
            process.kill()
    assert process.returncode == 0, (out + err).decode()
    found: Json = json.loads(out)
    return found


async def test_inspector_lists_the_tools_and_calls_one(world: ServiceWorld) -> None:
    x402_packages()
    wallet, payee = await world.wallet(), await world.payee()
    headers = await headers_of(world, wallet)
    call = ("--method", "tools/call", "--tool-name", "pay", "--tool-arg", f"to={payee}", "--tool-arg", 'amount="1.50"')
    async with served(world) as url:
        listed = await _inspect(url, headers, "--method", "tools/list")
        paid = await _inspect(url, headers, *call, "--tool-arg", f"idempotency_key={new_key()}")

    assert {tool["name"] for tool in listed["tools"]} == {tool.name for tool in TOOLS}
    assert paid["structuredContent"]["outcome"] == "done"
    assert await world.balance(payee) == 1_500_000
