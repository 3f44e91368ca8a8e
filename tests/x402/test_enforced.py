"""Payments that the program judges as they settle, against the public packages' facilitator and resource."""

import asyncio
import json

import pytest

from tests.support.service_world import error_of
from tests.x402.conftest import Market

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest.mark.proves(
    "POST /v1/x402/fetch",
    "action x402.fetch",
    "QuotePaidResource(walletId, url)",
    "FetchPaidResource(walletId, url)",
    "PaidResource(status, headers, body, body_encoding)",
    "FetchedResource(resource, payment)",
    "POST /v1/paid-requests/fetch",
)
async def test_resource_is_paid_once_and_returned(market: Market) -> None:
    buyer, before = await market.buyer(), await market.received()
    async with market.shop() as shop:
        bought = await buyer.fetch(f"{shop}/weather", idempotencyKey="weather-of-today")
        again = await buyer.fetch(f"{shop}/weather", idempotencyKey="weather-of-today")

    assert bought["resource"]["status"] == 200
    assert json.loads(bought["resource"]["body"])["report"]["weather"] == "sunny"
    payment = bought["payment"]
    assert (payment["status"], payment["amount"], payment["recipient"]) == ("confirmed", "0.01", market.payee)
    assert payment["tx_signature"] is not None
    assert again == bought
    assert await market.received() - before == 10_000
    shown = await market.world.ok("GET", f"/v1/wallets/{buyer.wallet['wallet_id']}")
    assert shown["usdc_balance"] == "99.99"


async def test_answered_calls_are_on_the_audit_log_with_their_outcome(market: Market) -> None:
    buyer = await market.buyer(maxPerTx="0.015")
    async with market.shop() as shop:
        bought = await buyer.fetch(f"{shop}/weather")
        await buyer.fetch(f"{shop}/nothing")
        error_of(await buyer.post("fetch", url=f"{shop}/weather", maxAmount="0.001"), 422, "x402_price_too_high")
        assert (await buyer.post("quote", url=f"{shop}/weather")).status_code == 200
    error_of(await buyer.post("fetch", url="http://127.0.0.1:9/", maxAmount="1"), 422, "x402_resource_unavailable")

    log = (await market.world.ok("GET", "/v1/audit-log?action=x402.fetch&limit=3"))["data"]
    told = [(one["details"]["status"], one["object"]) for one in reversed(log)]
    assert told == [(200, bought["payment"]["tx_id"]), (404, None), (402, None)]
    assert {one["details"]["host"] for one in log} == {"127.0.0.1"}
    assert len({one["actor"]["id"] for one in log}) == 1


@pytest.mark.proves("FetchedResource(payment)")
async def test_resource_that_costs_nothing_is_returned_unpaid(market: Market) -> None:
    buyer, before = await market.buyer(), await market.received()
    async with market.shop() as shop:
        found = await buyer.fetch(f"{shop}/nothing")

    assert found["resource"]["status"] == 404
    assert found["payment"] is None
    assert await market.received() == before


async def test_policy_refuses_what_costs_too_much(market: Market) -> None:
    buyer, before = await market.buyer(maxPerTx="0.005"), await market.received()
    async with market.shop() as shop:
        refused = await buyer.post("fetch", url=f"{shop}/weather", maxAmount="1")

    assert error_of(refused, 402, "policy_violation")["violation"]["rule"] == "max_per_tx"
    assert await market.received() == before


async def test_budget_of_the_wallet_is_charged_and_refuses(market: Market) -> None:
    buyer, before = await market.buyer(), await market.received()
    budget = await market.world.ok("POST", "/v1/budgets", {"name": "Readers", "maxPerDay": "0.015"})
    path = f"/v1/wallets/{buyer.wallet['wallet_id']}"
    await market.world.ok("PATCH", path, {"budgetId": budget["budget_id"]})
    async with market.shop() as shop:
        bought = await buyer.fetch(f"{shop}/weather")
        refused = await buyer.post("fetch", url=f"{shop}/weather", maxAmount="1")

    assert bought["payment"]["status"] == "confirmed"
    assert error_of(refused, 402, "policy_violation")["violation"]["rule"] == "budget_max_per_day"
    assert await market.received() - before == 10_000


@pytest.mark.proves("error x402_price_too_high", "FetchPaidResource(maxAmount)", "PayOffer(maxAmount)")
async def test_price_above_the_callers_limit_is_not_paid(market: Market) -> None:
    buyer, before = await market.buyer(), await market.received()
    async with market.shop() as shop:
        refused = await buyer.post("fetch", url=f"{shop}/weather", maxAmount="0.009")

    assert error_of(refused, 422, "x402_price_too_high")["price"] == "0.01"
    assert await market.received() == before


@pytest.mark.proves("error x402_wallet_not_supported", "Quote(lane, error)")
async def test_facilitator_that_takes_only_transfers_is_found_out_unpaid(market: Market) -> None:
    buyer, before = await market.buyer(), await market.received()
    async with market.shop(takes_us=False) as shop:
        refused = await buyer.post("fetch", url=f"{shop}/weather", maxAmount="1")
        told = await buyer.post("quote", url=f"{shop}/weather")

    error_of(refused, 422, "x402_wallet_not_supported")
    assert (told.json()["lane"], told.json()["error"]) == ("not_supported", "x402_wallet_not_supported")
    assert await market.received() == before


@pytest.mark.proves("QuotePaidResource(method, body, bodyEncoding)", "FetchPaidResource(method, body, bodyEncoding)")
async def test_body_and_demanded_memo_are_sent_along(market: Market) -> None:
    buyer = await market.buyer()
    async with market.shop(MEMO="order 7") as shop:
        bought = await buyer.fetch(
            f"{shop}/echo", method="POST", headers={"Content-Type": "application/json"}, body='{"x": 1}'
        )

    assert json.loads(bought["resource"]["body"]) == {"said": {"x": 1}}
    assert bought["payment"]["status"] == "confirmed"


@pytest.mark.proves(
    "POST /v1/x402/quote",
    "Quote(wallet_id, url, price, currency, recipient, network, facilitator, lane, allowed, retry_at)",
    "Quote(rules)",
    "POST /v1/paid-requests/quote",
)
async def test_quote_tells_price_recipient_and_verdict_without_paying(market: Market) -> None:
    buyer, before = await market.buyer(maxPerTx="0.005"), await market.received()
    async with market.shop() as shop:
        told = (await buyer.post("quote", url=f"{shop}/weather")).json()

    assert (told["price"], told["recipient"], told["allowed"], told["lane"]) == ("0.01", market.payee, False, "unknown")
    assert told["facilitator"] == str(market.facilitator.pubkey())
    [broken] = [rule for rule in told["rules"] if not rule["passed"]]
    assert broken["rule"] == "max_per_tx"
    assert await market.received() == before


@pytest.mark.parametrize(("lane", "most"), [("enforced", 3), ("allowance", 12)])
async def test_paid_request_asks_the_chain_so_often_at_most(
    market: Market, monkeypatch: pytest.MonkeyPatch, lane: str, most: int
) -> None:
    # Given a facilitator that is known, and the tasks that follow the chain whether or not somebody pays
    buyer, before, asked = await market.buyer(allowAllowances=True), await market.received(), list[str]()
    mine, others = asyncio.current_task(), asyncio.all_tasks()

    def note(method: str) -> None:
        task = asyncio.current_task()
        if task is mine or task not in others:
            asked.append(method)

    async with market.shop(takes_us=lane == "enforced") as shop:
        await buyer.fetch(f"{shop}/weather")
        monkeypatch.setattr(market.world.line, "hold", note)
        bought = await buyer.fetch(f"{shop}/weather")

    assert (bought["payment"]["status"], bought["payment"]["x402"]["lane"]) == ("confirmed", lane)
    assert "simulateTransaction" in asked
    if lane == "allowance":
        # It sends the grant and the settlement itself, and asks for them until they have landed.
        asked = [method for method in asked if method != "getSignatureStatuses"]
    assert len(asked) <= most, asked
    assert await market.received() - before == 20_000
