"""Resources that ask for a payment to an address without a known owner."""

from typing import Any

import httpx
import pytest
from starlette.requests import Request
from starlette.responses import Response

from tests.support.http import site
from tests.support.service_world import Json, error_of
from tests.support.unowned import unowned
from tests.x402.conftest import Buyer, Market
from tests.x402.test_hostile import demanding, offer

pytestmark = pytest.mark.asyncio(loop_scope="module")

_CODE = "recipient_unverified"
#: A facilitator's complaint that leads to the lane of allowances, or none, to that of the program.
_LANES = ("Payment required", "program_not_allowed")


async def _pay(buyer: Buyer, market: Market, payee: str, complaint: str, **more: Any) -> httpx.Response:
    accepted = offer(market, payTo=payee)
    terms = {"x402Version": 2, "accepts": [accepted], "error": complaint, "resource": {"url": "http://localhost/"}}
    return await buyer.post("payments", url="http://localhost/", paymentRequired=terms, maxAmount="1", **more)


@pytest.mark.proves("error recipient_unverified")
@pytest.mark.parametrize("complaint", _LANES)
async def test_payee_without_an_owner_is_not_paid(market: Market, complaint: str) -> None:
    buyer, payee = await market.buyer(allowAllowances=True), unowned()

    refused = error_of(await _pay(buyer, market, payee, complaint), 422, _CODE)
    unlisted = await _pay(buyer, market, payee, complaint, allowUnverifiedRecipient=True)

    assert payee in refused["message"]
    error_of(unlisted, 422, _CODE)
    path = f"/v1/wallets/{buyer.wallet['wallet_id']}/transactions?type=payment"
    assert (await market.world.ok("GET", path))["data"] == []


@pytest.mark.proves("FetchPaidResource(allowUnverifiedRecipient)", "PayOffer(allowUnverifiedRecipient)")
@pytest.mark.parametrize("complaint", _LANES)
async def test_override_does_not_open_the_missing_account(market: Market, complaint: str) -> None:
    payee = unowned()
    listing = {"allowedRecipients": [payee], "allowUnverifiedRecipient": True}
    buyer = await market.buyer(allowAllowances=True, **listing)

    answer = await _pay(buyer, market, payee, complaint, allowUnverifiedRecipient=True)

    assert error_of(answer, 400, "invalid_recipient")["message"].startswith("payTo: ")


@pytest.mark.parametrize("complaint", _LANES)
async def test_violation_comes_before_a_payee_without_an_owner(market: Market, complaint: str) -> None:
    buyer = await market.buyer(maxPerTx="0.001", allowAllowances=True)

    answer = await _pay(buyer, market, unowned(), complaint)

    assert error_of(answer, 402, "policy_violation")["violation"]["rule"] == "max_per_tx"
    events = await market.world.ok("GET", f"/v1/events?walletId={buyer.wallet['wallet_id']}")
    assert events["data"][0]["event"] == "transaction.blocked"


@pytest.mark.proves("Quote(warnings)")
async def test_quote_warns_and_fetch_refuses_a_payee_without_an_owner(market: Market) -> None:
    buyer, payee = await market.buyer(), unowned()

    async def handler(request: Request) -> Response:
        said: Json = {"error": "BlockhashNotFound"} if "payment-signature" in request.headers else {}
        return demanding(offer(market, payTo=payee), **said)

    async with site(handler) as url:
        quoted = await buyer.post("quote", url=f"{url}/")
        error_of(await buyer.post("fetch", url=f"{url}/", maxAmount="1"), 422, _CODE)

    assert [one.partition(":")[0] for one in quoted.json()["warnings"]] == [payee]
