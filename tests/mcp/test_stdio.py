"""`agent-vault mcp`: the tools over standard input and output, as a client starts it."""

import asyncio
import contextlib
import json
import os
from collections.abc import AsyncIterator
from typing import Any

import pytest
from click.testing import CliRunner
from mcp import Client, StdioServerParameters
from mcp.client.stdio import stdio_client

from app.commands.main import main
from app.mcp.tools import TOOLS
from tests.mcp.clients import headers_of, new_key, read
from tests.support.http import PATIENCE, served
from tests.support.service_world import Json, ServiceWorld
from tests.support.warm import COMMAND_LINE, programs

pytestmark = pytest.mark.asyncio(loop_scope="module")


def _environment(url: str, headers: dict[str, str]) -> dict[str, str]:
    """Return the environment of a command for the API at an address, with the credentials in an agent's headers."""
    return {
        "PATH": os.environ["PATH"],
        "AGENT_VAULT_URL": url,
        "AGENT_VAULT_API_KEY": headers["Authorization"].removeprefix("Bearer "),
        "AGENT_VAULT_SESSION_TOKEN": headers["Session-Token"],
    }


async def test_tools_over_standard_input_and_output(world: ServiceWorld) -> None:
    policy = await world.policy(maxPerTx="2")
    wallet, payee = await world.wallet(policy["policy_id"]), await world.payee()
    headers, key = await headers_of(world, wallet), new_key()
    async with served(world) as url:
        parameters = StdioServerParameters(
            command=str(programs() / "interpreter"),
            args=["-c", COMMAND_LINE, "mcp"],
            env=_environment(url, headers),
        )
        async with Client(stdio_client(parameters)) as client:
            listed = await client.list_tools()
            paid = await client.call_tool("pay", {"to": payee, "amount": "1.50", "idempotency_key": key})
            again = await client.call_tool("pay", {"to": payee, "amount": "1.50", "idempotency_key": key})
            refused = await client.call_tool("pay", {"to": payee, "amount": "2.50", "idempotency_key": new_key()})
            policy_text = await read(client, "agent-vault://policy")

    assert {tool.name for tool in listed.tools} == {tool.name for tool in TOOLS}
    assert paid.structured_content["outcome"] == "done"
    assert again.structured_content["repeated"] is True
    assert again.structured_content["data"] == paid.structured_content["data"]
    assert refused.structured_content["refusal"]["rule"] == "max_per_tx"
    assert "at most 2.00 USDC" in policy_text
    assert await world.balance(payee) == 1_500_000


@pytest.mark.parametrize(
    ("arguments", "environment", "said"),
    [
        ([], {}, "AGENT_VAULT_API_KEY"),
        ([], {"AGENT_VAULT_API_KEY": "avk_test_\nx"}, "AGENT_VAULT_API_KEY"),
        (["--url", "ftp://vault"], {"AGENT_VAULT_API_KEY": "avk_test_x"}, "ftp://vault"),
        (["--url", "nonsense"], {"AGENT_VAULT_API_KEY": "avk_test_x"}, "nonsense"),
    ],
)
async def test_command_without_its_settings_says_what_is_missing(
    arguments: list[str], environment: dict[str, str], said: str
) -> None:
    done = CliRunner(env={"AGENT_VAULT_API_KEY": "", **environment}).invoke(main, ["mcp", *arguments])

    assert done.exit_code == 1
    assert done.output.startswith("Error: ")
    assert said in done.output
    assert "avk_test_x" not in done.output


async def test_service_that_does_not_answer_leaves_the_outcome_unknown() -> None:
    parameters = StdioServerParameters(
        command=str(programs() / "interpreter"),
        args=["-c", COMMAND_LINE, "mcp", "--url", "http://127.0.0.1:9"],
        env={"PATH": os.environ["PATH"], "AGENT_VAULT_API_KEY": "avk_test_x"},
    )
    async with Client(stdio_client(parameters)) as client:
        order = {"to": "nobody", "amount": "1", "idempotency_key": new_key()}
        lost = await client.call_tool("pay", {"wallet_id": "wal_x", **order})
        unsent = await client.call_tool("pay", order)

    assert lost.structured_content["outcome"] == "unknown"
    assert lost.structured_content["idempotency_key"] == order["idempotency_key"]
    # Without its vault's id, nothing was sent but the question for it.
    assert unsent.structured_content["outcome"] == "unavailable"
    assert unsent.structured_content["idempotency_key"] == order["idempotency_key"]
    assert "changed nothing and can be repeated" in unsent.structured_content["message"]


@contextlib.asynccontextmanager
async def _process(world: ServiceWorld, wallet: Json) -> AsyncIterator[asyncio.subprocess.Process]:
    """A running command of the wallet's agent, after the handshake."""
    headers = await headers_of(world, wallet)
    async with served(world) as url:
        process = await asyncio.create_subprocess_exec(
            programs() / "interpreter",
            *("-c", COMMAND_LINE, "mcp"),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            limit=2**24,
            env=_environment(url, headers),
        )
        client = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "x", "version": "1"}}
        try:
            await _sent(process, {"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": client})
            assert (await _received(process))["id"] == 0
            await _sent(process, {"jsonrpc": "2.0", "method": "notifications/initialized"})
            yield process
        finally:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()


async def _sent(process: asyncio.subprocess.Process, message: Json | bytes) -> None:
    assert process.stdin is not None
    process.stdin.write((message if isinstance(message, bytes) else json.dumps(message).encode()) + b"\n")
    await process.stdin.drain()


async def _received(process: asyncio.subprocess.Process) -> Json:
    assert process.stdout is not None
    line = await asyncio.wait_for(process.stdout.readline(), PATIENCE)
    found: Json = json.loads(line)
    return found


def _pay(payee: str, request_id: object = 7) -> Json:
    arguments = {"to": payee, "amount": "0.01", "idempotency_key": new_key()}
    call = {"name": "pay", "arguments": arguments}
    return {"jsonrpc": "2.0", "id": request_id, "method": "tools/call", "params": call}


async def test_line_that_is_no_single_message_gets_an_error_and_pays_nothing(world: ServiceWorld) -> None:
    wallet, payee = await world.wallet(), await world.payee()
    whole = json.dumps(_pay(payee)).encode()
    invalid_ids: list[Any] = [1.5, None, True, [], {}, "\ud800"]
    lines = {
        b"{bad": -32700,
        b"\xff\xfe": -32700,
        b"\xef\xbb\xbf" + whole: -32700,
        b"[" * 3_000: -32700,
        whole.replace(b"7", b"NaN", 1): -32700,
        b"[" + whole + b"]": -32600,
        b"null": -32600,
        b"{}": -32600,
        whole.replace(b'"amount"', b'"amount": "9.00", "amount"'): -32600,
        whole.replace(b'"params"', b'"params": {}, "params"'): -32600,
        **{json.dumps(_pay(payee, one)).encode(): -32600 for one in invalid_ids},
    }
    async with _process(world, wallet) as process:
        for line, code in lines.items():
            await _sent(process, line)
            assert (await _received(process))["error"]["code"] == code, line
        await _sent(process, b"")
        await _sent(process, {"jsonrpc": "2.0", "id": "8", "method": "ping"})
        assert await _received(process) == {"jsonrpc": "2.0", "id": "8", "result": {}}

    assert await world.balance(payee) == 0


async def test_end_of_input_waits_for_the_results_of_running_calls(world: ServiceWorld) -> None:
    wallet, payee = await world.wallet(), await world.payee()
    async with _process(world, wallet) as process:
        assert process.stdin is not None
        await _sent(process, _pay(payee))
        await _sent(process, {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 9}})
        process.stdin.close()
        result = await _received(process)
        assert await asyncio.wait_for(process.wait(), PATIENCE) == 0

    assert result["result"]["structuredContent"]["outcome"] == "done"
    assert await world.balance(payee) == 10_000
