"""Resources and facilitators that cheat out of an allowance: each is paid at most once, and the rows say so."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import httpx
import pytest
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from app.chain.errors import BlockhashNotFound
from app.x402.watch import PAID_WITHOUT_RESOURCE, IssuedPaymentWatch
from tests.support.http import site
from tests.support.processes import PATIENCE
from tests.support.service_world import Json, error_of
from tests.x402.conftest import Buyer, Market
from tests.x402.servers import settled
from tests.x402.test_hostile import demanding, old_offer

pytestmark = pytest.mark.asyncio(loop_scope="module")

#: What a resource does with a payment's header.
Deed = Callable[[str], Awaitable[Response]]
#: More than a blockhash lives, by the chain's clock.
_EXPIRED = 120.0


class Cheat:
    """A resource of version 1, whose facilitators are all static, that keeps every payment it is shown."""

    def __init__(self, market: Market, deed: Deed, **changed: Any) -> None:
        self.offer = {**old_offer(market), **changed}
        self.payments: list[str] = []
        self._deed = deed

    async def answer(self, request: Request) -> Response:
        header = request.headers.get("x-payment")
        if header is None:
            return demanding(self.offer, version=1)
        self.payments.append(header)
        return await self._deed(header)


async def _settle(market: Market, header: str) -> bool:
    """Send a payment as its facilitator does; whether it paid."""
    chain = market.world.service.chain
    status = await chain.confirm(await chain.send(bytes(settled(header, market.facilitator))), timeout=PATIENCE)
    return status is not None and status.err is None


async def _watch(market: Market) -> None:
    await market.world.catch_up()
    await IssuedPaymentWatch(market.world.service, interval=3600, patience=0).tick()


async def _state(market: Market, buyer: Buyer) -> tuple[list[str], str, list[str]]:
    """Statuses of the wallet's allowances, its balance, and the payments that it reported as paid for nothing."""
    wallet = buyer.wallet["wallet_id"]
    allowances = (await market.world.ok("GET", f"/v1/wallets/{wallet}/allowances"))["data"]
    events = (await market.world.ok("GET", f"/v1/events?type={PAID_WITHOUT_RESOURCE}&walletId={wallet}"))["data"]
    balance = (await market.world.ok("GET", f"/v1/wallets/{wallet}"))["usdc_balance"]
    return [one["status"] for one in allowances], balance, [event["tx_id"] for event in events]


async def _row(market: Market, bought: Json) -> Json:
    return await market.world.ok("GET", f"/v1/transactions/{bought['payment']['tx_id']}")


async def test_payment_kept_back_by_a_resource_that_answers_is_worthless(market: Market) -> None:
    buyer, before = await market.buyer(allowAllowances=True, maxPerDay="0.01"), await market.received()

    async def keep(_header: str) -> Response:
        return PlainTextResponse("yours")

    cheat = Cheat(market, keep)
    async with site(cheat.answer) as url:
        bought = await buyer.fetch(f"{url}/", idempotencyKey="kept")
        again = await buyer.fetch(f"{url}/", idempotencyKey="free")
    await _watch(market)

    # The first did not pay, so that the budget of one payment is enough for the second.
    assert [one["resource"]["body"] for one in (bought, again)] == ["yours", "yours"]
    assert (await _row(market, bought))["status"] == "failed"
    for header in cheat.payments:
        assert not await _settle(market, header)
    assert await _state(market, buyer) == (["settled", "settled"], "100.00", [])
    assert await market.received() == before


@pytest.mark.parametrize("status", [200, 402, 500])
async def test_payment_settled_twice_pays_once_whatever_is_answered(market: Market, status: int) -> None:
    buyer, before = await market.buyer(allowAllowances=True), await market.received()

    async def twice(header: str) -> Response:
        await asyncio.gather(*(_settle(market, header) for _ in range(2)))
        return demanding(cheat.offer, version=1) if status == 402 else PlainTextResponse("done", status)

    cheat = Cheat(market, twice)
    async with site(cheat.answer) as url:
        bought = await buyer.fetch(f"{url}/", idempotencyKey=f"twice-{status}")
        again = await buyer.fetch(f"{url}/", idempotencyKey=f"twice-{status}")
    await _watch(market)
    row = await _row(market, bought)

    assert len(cheat.payments) == 1
    assert again == bought
    assert (row["status"], row["x402"]["resource_status"]) == ("confirmed", status)
    assert row["tx_signature"] is not None
    reported = [] if status == 200 else [row["tx_id"]]
    assert await _state(market, buyer) == (["settled"], "99.99", reported)
    assert await market.received() - before == 10_000


async def test_payment_settled_after_its_expiry_pays_nothing(own_market: Market) -> None:
    market, release = own_market, asyncio.Event()
    buyer, before = await market.buyer(allowAllowances=True), await market.received()

    async def hang(_header: str) -> Response:
        await release.wait()
        return PlainTextResponse("late")

    cheat = Cheat(market, hang)
    async with site(cheat.answer) as url:
        bought = await buyer.fetch(f"{url}/")
        await market.world.later(_EXPIRED)
        raw = bytes(settled(cheat.payments[0], market.facilitator))
        with pytest.raises(BlockhashNotFound):
            await market.world.service.chain.simulate(raw)
        # A node takes it without a word, and drops it.
        await market.world.service.chain.send(raw)
        await _watch(market)
        release.set()

    assert (await _row(market, bought))["status"] == "failed"
    assert await _state(market, buyer) == (["settled"], "100.00", [])
    assert await market.received() == before


async def test_fetches_at_once_under_one_key_make_one_payment(market: Market) -> None:
    buyer, before = await market.buyer(allowAllowances=True), await market.received()

    async def settle(header: str) -> Response:
        return PlainTextResponse("yours" if await _settle(market, header) else "refused")

    cheat = Cheat(market, settle)
    async with site(cheat.answer) as url:
        body = {"url": f"{url}/", "maxAmount": "1", "idempotencyKey": "at-once"}
        answers = await asyncio.gather(*(buyer.post("fetch", **body) for _ in range(5)))
        last = await buyer.fetch(f"{url}/", most="1", idempotencyKey="at-once")

    assert {one.status_code for one in answers} <= {200, 409}
    paid: list[httpx.Response] = [one for one in answers if one.status_code == 200]
    assert {one.json()["payment"]["tx_id"] for one in paid} == {last["payment"]["tx_id"]}
    assert len(set(cheat.payments)) == 1
    assert await _state(market, buyer) == (["settled"], "99.99", [])
    assert await market.received() - before == 10_000


async def test_price_that_rises_after_the_quote_is_not_paid(market: Market) -> None:
    buyer, before = await market.buyer(allowAllowances=True), await market.received()

    async def settle(header: str) -> Response:
        await _settle(market, header)
        return PlainTextResponse("yours")

    cheat = Cheat(market, settle)
    async with site(cheat.answer) as url:
        told = (await buyer.post("quote", url=f"{url}/")).json()
        cheat.offer["maxAmountRequired"] = "10001"
        refused = await buyer.post("fetch", url=f"{url}/", maxAmount=told["price"])

    assert error_of(refused, 422, "x402_price_too_high")["price"] == "0.010001"
    assert cheat.payments == []
    assert await _state(market, buyer) == ([], "100.00", [])
    assert await market.received() == before
