"""Clients and agent frameworks pay and are refused, over HTTP and over standard input and output.

A scripted model makes the calls. openai-agents converts all tools to strict mode and gives null for absent arguments.
"""

import pytest

from app.mcp.tools import TOOLS
from tests.mcp.clients import headers_of, new_key
from tests.mcp.frameworks import CLIENTS, inspect, outcomes
from tests.support.environments import MissingEnvironmentError
from tests.support.http import served
from tests.support.needs import skip_or_fail
from tests.support.service_world import ServiceWorld

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest.mark.parametrize("stdio", [False, True], ids=["http", "stdio"])
@pytest.mark.parametrize("name", CLIENTS)
async def test_client_pays_and_is_refused(world: ServiceWorld, name: str, stdio: bool) -> None:
    wallet = await world.wallet((await world.policy(maxPerTx="2"))["policy_id"])
    payee, headers = await world.payee(), await headers_of(world, wallet)
    calls = [{"to": payee, "amount": amount, "idempotency_key": new_key()} for amount in ("1.50", "2.50")]

    async with served(world) as url:
        try:
            paid, refused = await outcomes(name, url, headers, calls, stdio=stdio)
        except MissingEnvironmentError as error:
            skip_or_fail(f"{error} cannot be installed")

    assert (paid["outcome"], paid.get("idempotency_key")) == ("done", calls[0]["idempotency_key"]), paid
    assert (refused["outcome"], (refused.get("refusal") or {}).get("rule")) == ("refused", "max_per_tx"), refused
    assert await world.balance(payee) == 1_500_000


async def test_inspector_lists_the_tools(world: ServiceWorld) -> None:
    headers = await headers_of(world, await world.wallet())
    async with served(world) as url:
        listed = await inspect(url, headers, "--method", "tools/list")

    assert {tool["name"] for tool in listed["tools"]} == {tool.name for tool in TOOLS}
