"""`agent-vault mcp`: the tools over standard input and output, as a client starts it."""

import os
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner
from mcp import Client, StdioServerParameters
from mcp.client.stdio import stdio_client

from app.commands.main import main
from app.mcp.tools import TOOLS
from tests.mcp.clients import headers_of, new_key, read
from tests.support.http import served
from tests.support.processes import COMMAND_LINE
from tests.support.service_world import ServiceWorld

pytestmark = pytest.mark.asyncio(loop_scope="module")

_ROOT = Path(__file__).resolve().parents[2]


async def test_tools_over_standard_input_and_output(world: ServiceWorld) -> None:
    policy = await world.policy(maxPerTx="2")
    wallet, payee = await world.wallet(policy["policy_id"]), await world.payee()
    headers, key = await headers_of(world, wallet), new_key()
    async with served(world) as url:
        parameters = StdioServerParameters(
            command=sys.executable,
            args=["-c", COMMAND_LINE, "mcp"],
            env={
                "PATH": os.environ["PATH"],
                "PYTHONPATH": str(_ROOT),
                "AGENT_VAULT_URL": url,
                "AGENT_VAULT_API_KEY": headers["Authorization"].removeprefix("Bearer "),
                "AGENT_VAULT_SESSION_TOKEN": headers["Session-Token"],
            },
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
        command=sys.executable,
        args=["-c", COMMAND_LINE, "mcp", "--url", "http://127.0.0.1:9"],
        env={"PATH": os.environ["PATH"], "PYTHONPATH": str(_ROOT), "AGENT_VAULT_API_KEY": "avk_test_x"},
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
