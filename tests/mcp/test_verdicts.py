"""Outcome and message of tools that ask: the verdict on a payment, a URL or an approval, not the fact of an answer."""

import socket
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from solders.keypair import Keypair
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from app.server.data_folder import LOCALHOST
from tests.mcp.clients import Agent, agent, connected, new_key
from tests.support.http import served, site
from tests.support.service_world import Json, ServiceWorld

pytestmark = pytest.mark.asyncio(loop_scope="module")


async def test_check_of_a_payment_that_would_pass_says_so(world: ServiceWorld) -> None:
    async with agent(world, maxPerTx="5") as one:
        content = await one.call("check_payment", to=await world.payee(), amount="5")

    assert (content["outcome"], content["refusal"], content["error"]) == ("done", None, None)
    assert "would pass" in content["message"]


async def test_check_of_a_payment_above_a_limit_is_refused_with_the_rule(world: ServiceWorld) -> None:
    payee = await world.payee()
    async with agent(world, maxPerTx="5", maxPerDay="6") as one:
        await one.call("pay", to=payee, amount="2")

        content = await one.call("check_payment", to=payee, amount="4.50")

    assert content["outcome"] == "refused"
    refusal = content["refusal"]
    assert (refusal["rule"], refusal["limit"], refusal["attempted"]) == ("max_per_day", "6.00", "6.50")
    assert refusal["headroom"] == "4.00"
    assert refusal["retry_at"] == content["data"]["retry_at"] is not None
    for said in ("max_per_day", "limit 6.00", "attempted 6.50", refusal["retry_at"]):
        assert said in content["message"]
    for untrue in ("would pass.", "succeeded"):
        assert untrue not in content["message"]
    assert content["data"]["allowed"] is False


async def test_check_of_a_payment_names_the_allowance_that_holds_the_money(world: ServiceWorld) -> None:
    payee = await world.payee()
    body = {"amount": "4", "destination": payee, "delegate": str(Keypair().pubkey())}
    async with agent(world, maxPerDay="6", allowAllowances=True) as one:
        path = f"/v1/wallets/{one.wallet['wallet_id']}/allowances"
        granted = await world.ok("POST", path, body)

        content = await one.call("check_payment", to=payee, amount="3")

    refusal = content["refusal"]
    assert (refusal["rule"], refusal["open_allowances"]) == ("max_per_day", [granted["allowance_id"]])
    assert "allowances hold money" in content["message"]


async def test_check_of_a_payment_above_the_balance_is_refused(world: ServiceWorld) -> None:
    async with agent(world) as one:
        content = await one.call("check_payment", to=await world.payee(), amount="100.01")

    assert (content["outcome"], content["refusal"]) == ("refused", None)
    assert "less USDC" in content["message"]
    assert "fund" in content["message"]


async def test_approved_escrow_with_changed_terms_is_refused(world: ServiceWorld) -> None:
    terms = {"to_wallet": await world.payee(), "amount": "4", "task_description": "Translate the page"}
    async with agent(world, requireCoSign="3") as one:
        approval = (await one.call("create_escrow", **terms))["refusal"]["approval_id"]
        await world.ok("POST", f"/v1/approvals/{approval}/approve", {})

        changed = await one.call("create_escrow", **terms | {"task_description": "Nothing"})
        agreed = await one.call("create_escrow", **terms)

    assert (changed["outcome"], changed["refusal"]["rule"]) == ("refused", "require_co_sign")
    assert changed["refusal"]["approval_id"] != approval
    assert agreed["outcome"] == "done"


async def test_check_above_the_co_sign_threshold_names_the_approval_once(world: ServiceWorld) -> None:
    async with agent(world, requireCoSign="3") as one:
        content = await one.call("check_payment", to=await world.payee(), amount="4")

    assert (content["outcome"], content["refusal"]["rule"]) == ("refused", "require_co_sign")
    assert content["message"].count("approv") == 2  # to approve, and to request the approval
    assert "left of this limit" not in content["message"]


async def test_refusal_for_a_co_signature_states_one_remedy_once(world: ServiceWorld) -> None:
    payee = await world.payee()
    async with agent(world, requireCoSign="3") as one:
        key = new_key()
        refused = await one.call("pay", to=payee, amount="4", idempotency_key=key)
        approval_id = refused["refusal"]["approval_id"]
        await world.ok("POST", f"/v1/approvals/{approval_id}/approve", {})
        paid = await one.call("pay", to=payee, amount="4", idempotency_key=key)

    assert refused["message"].count(approval_id) == 1
    assert refused["message"].lower().count(" again") == 1
    for other in ("may have to change", "new idempotency key", "left of this limit", "Above this amount"):
        assert other not in refused["message"]
    # The remedy works as it is stated: the same call again.
    assert (paid["outcome"], paid["data"]["amount"]) == ("done", "4.00")


async def test_operators_refusal_for_a_co_signature_needs_no_http(world: ServiceWorld) -> None:
    wallet = await world.wallet((await world.policy(requireCoSign="3"))["policy_id"])
    headers = {"Authorization": f"Bearer {world.keys['admin']}"}
    order = {"wallet_id": wallet["wallet_id"], "to": await world.payee(), "amount": "4", "idempotency_key": new_key()}
    async with served(world) as url, connected(url, headers) as client:
        content = (await client.call_tool("pay", order)).structured_content

    assert (content["outcome"], content["refusal"]["approval_id"]) == ("refused", None)
    assert "session token" in content["message"]
    for other in ("POST", "Session-Token", "policy or budget"):
        assert other not in content["message"]


async def _reject(world: ServiceWorld, _one: Agent, approval_id: str) -> None:
    await world.ok("POST", f"/v1/approvals/{approval_id}/reject", {})


async def _approve(world: ServiceWorld, _one: Agent, approval_id: str) -> None:
    await world.ok("POST", f"/v1/approvals/{approval_id}/approve", {})


async def _use(world: ServiceWorld, one: Agent, approval_id: str) -> None:
    await _approve(world, one, approval_id)
    found = await world.ok("GET", f"/v1/approvals/{approval_id}")
    assert (await one.call("pay", to=found["recipient"], amount=found["amount"]))["outcome"] == "done"


async def _wait(world: ServiceWorld, _one: Agent, _approval_id: str) -> None:
    pass


@pytest.mark.parametrize(
    ("happens", "status", "outcome", "said"),
    [
        (_wait, "pending", "pending", "No operator has decided"),
        (_approve, "approved", "done", "has approved"),
        (_reject, "rejected", "refused", "has rejected"),
        (_use, "used", "done", "was made"),
    ],
)
async def test_status_of_an_approval_is_the_decision(
    world: ServiceWorld,
    happens: Callable[[ServiceWorld, Agent, str], Awaitable[None]],
    status: str,
    outcome: str,
    said: str,
) -> None:
    async with agent(world, requireCoSign="3") as one:
        refused = await one.call("pay", to=await world.payee(), amount="4")
        approval_id = refused["refusal"]["approval_id"]
        await happens(world, one, approval_id)

        content = await one.call("request_approval_status", approval_id=approval_id)

    assert (content["outcome"], content["data"]["status"]) == (outcome, status)
    assert said in content["message"]
    assert "succeeded" not in content["message"]


def _offer(world: ServiceWorld, payee: str, amount: int) -> Json:
    return {
        "scheme": "exact",
        "network": f"solana:{world.service.identity.genesis_hash[:32]}",
        "asset": str(world.localnet.usdc_mint),
        "amount": str(amount),
        "payTo": payee,
        "maxTimeoutSeconds": 60,
        "extra": {"feePayer": payee},
    }


async def test_quote_above_a_limit_is_refused_with_the_rule(world: ServiceWorld) -> None:
    payee = await world.payee()
    offer = _offer(world, payee, 2_000_000)

    async def shop(request: Request) -> Response:
        return JSONResponse({"x402Version": 2, "accepts": [offer], "resource": {"url": str(request.url)}}, 402)

    async with agent(world, maxPerTx="1", x402Hosts=["*"]) as one, site(shop) as url:
        content = await one.call("quote_paid_url", url=f"{url}/")

    assert (content["outcome"], content["refusal"]["rule"]) == ("refused", "max_per_tx")
    assert (content["refusal"]["limit"], content["data"]["price"]) == ("1.00", "2.00")


@pytest.mark.parametrize("tool", ["quote_paid_url", "fetch_paid_url"])
async def test_url_that_cannot_be_reached_is_unknown_and_pays_nothing(world: ServiceWorld, tool: str) -> None:
    with socket.create_server((LOCALHOST, 0)) as closed:
        port = closed.getsockname()[1]
    more: dict[str, Any] = {"max_amount": "1"} if tool == "fetch_paid_url" else {}
    async with agent(world) as one:
        content = await one.call(tool, url=f"http://{LOCALHOST}:{port}/", **more)
        shown = await world.ok("GET", f"/v1/wallets/{one.wallet['wallet_id']}")

    assert (content["outcome"], content["error"]["code"]) == ("unknown", "x402_resource_unavailable")
    assert "could not be reached" in content["message"]
    assert "changed nothing" not in content["message"]
    assert ("idempotency_key" in content["message"]) is (tool == "fetch_paid_url")
    assert shown["usdc_balance"] == "100.00"


async def test_host_that_the_policy_does_not_list_is_refused(world: ServiceWorld) -> None:
    async with agent(world, x402Hosts=["shop.example"]) as one:
        content = await one.call("quote_paid_url", url="https://other.example/")

    assert (content["outcome"], content["error"]["code"]) == ("refused", "x402_host_not_allowed")


async def test_payment_above_the_cap_of_a_new_recipient_names_approval_and_time(world: ServiceWorld) -> None:
    payee = await world.payee()
    async with agent(world, newRecipientCap="3") as one:
        assert (await one.call("pay", to=payee, amount="2"))["outcome"] == "done"
        checked = await one.call("check_payment", to=payee, amount="2")
        refused = await one.call("pay", to=payee, amount="2")

    assert (checked["refusal"]["rule"], checked["refusal"]["headroom"]) == ("new_recipient", "1.00")
    assert checked["refusal"]["retry_at"] in checked["message"]
    assert refused["refusal"]["approval_id"] in refused["message"]
