"""Payments out of an allowance, where the public packages' facilitators settle plain transfers only."""

import asyncio
import base64
import json
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
import pytest_asyncio
from solders.instruction import AccountMeta, Instruction
from solders.pubkey import Pubkey
from solders.system_program import TransferParams, transfer
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from app.keeper.keeper import Keeper
from app.store.x402 import open_delegations
from app.x402.settlement.allowance import allowance_for
from app.x402.watch import PAID_WITHOUT_RESOURCE, IssuedPaymentWatch
from idl.transactions import signed
from tests.mcp.clients import agent
from tests.support.http import site
from tests.support.processes import PATIENCE
from tests.support.service_world import Json, error_of
from tests.x402.conftest import Buyer, Market
from tests.x402.plain import old_shop, pythons_shops
from tests.x402.servers import settled
from tests.x402.test_hostile import demanding, offer, old_offer

pytestmark = pytest.mark.asyncio(loop_scope="module")

_ALLOWING = {"allowAllowances": True}
#: More than a blockhash lives, by the chain's clock.
_EXPIRED = 120.0


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def static(market: Market) -> AsyncIterator[str]:
    """A paid resource whose facilitator settles plain transfers only."""
    async with market.shop(takes_us=False) as url:
        yield url


async def _watch(market: Market) -> None:
    await market.world.catch_up()
    await IssuedPaymentWatch(market.world.service, interval=3600, patience=0).tick()


async def _allowances(market: Market, buyer: Buyer) -> list[Json]:
    path = f"/v1/wallets/{buyer.wallet['wallet_id']}/allowances"
    found: list[Json] = (await market.world.ok("GET", path))["data"]
    return found


async def _balance(market: Market, buyer: Buyer) -> str:
    return str((await market.world.ok("GET", f"/v1/wallets/{buyer.wallet['wallet_id']}"))["usdc_balance"])


async def _row(market: Market, handed: Json) -> Json:
    return await market.world.ok("GET", f"/v1/transactions/{handed['payment']['tx_id']}")


async def _hand_out(market: Market, buyer: Buyer, **body: Any) -> httpx.Response:
    """Ask for a payment in version 1, whose facilitators are all static."""
    body = {"paymentRequired": {"x402Version": 1, "accepts": [old_offer(market)]}, "maxAmount": "1", **body}
    return await buyer.post("payments", url="http://127.0.0.1:9/x", **body)


async def _settled(market: Market, header: str) -> str | None:
    """Send a payload as its facilitator does; return its signature if it pays."""
    chain = market.world.service.chain
    signature = await chain.send(bytes(settled(header, market.facilitator)))
    status = await chain.confirm(signature, timeout=PATIENCE)
    assert status is not None
    return None if status.err else signature


@pytest.mark.proves("Quote(lane)", "PaidFor(lane)", "PaidRequest(lane)")
async def test_static_facilitator_is_paid_once_out_of_an_allowance(market: Market, static: str) -> None:
    buyer, before = await market.buyer(**_ALLOWING), await market.received()

    bought = await buyer.fetch(f"{static}/weather", idempotencyKey="weather-of-today")
    again = await buyer.fetch(f"{static}/weather", idempotencyKey="weather-of-today")
    told = (await buyer.post("quote", url=f"{static}/weather")).json()

    assert json.loads(bought["resource"]["body"])["report"]["weather"] == "sunny"
    payment = bought["payment"]
    assert (payment["status"], payment["type"], payment["amount"]) == ("confirmed", "payment", "0.01")
    assert (payment["recipient"], payment["x402"]["lane"], told["lane"]) == (market.payee, "allowance", "allowance")
    assert again == bought
    assert await market.received() - before == 10_000
    assert await _balance(market, buyer) == "99.99"
    # The row is the grant's, and shows the transfer that paid.
    [allowance] = await _allowances(market, buyer)
    assert (allowance["status"], allowance["spent_amount"], allowance["tx_id"]) == ("settled", "0.01", payment["tx_id"])
    [raw] = await market.world.service.chain.transactions([payment["tx_signature"]])
    assert isinstance(raw, dict)
    assert raw["slot"] == payment["on_chain_slot"]
    assert payment["tx_signature"] != allowance["tx_signature"]


@pytest.mark.parametrize(("flow", "charged"), [("", False), ("upfront", True)])
async def test_failing_resource_is_paid_only_up_front(market: Market, flow: str, charged: bool) -> None:
    buyer, before = await market.buyer(**_ALLOWING, maxPerDay="0.01"), await market.received()
    async with market.shop(takes_us=False, FLOW=flow, MEMO="order 7") as shop:
        broken = await buyer.fetch(f"{shop}/broken")
        [allowance] = await _allowances(market, buyer)
        left = await buyer.post("fetch", url=f"{shop}/weather", maxAmount="1")
    await _watch(market)

    assert (broken["resource"]["status"], broken["payment"]["x402"]["resource_status"]) == (500, 500)
    assert (broken["payment"]["status"], allowance["status"]) == ("confirmed" if charged else "failed", "settled")
    assert (broken["payment"]["tx_signature"] is not None) is charged
    # What did not pay leaves the budget as it was.
    assert left.status_code == (402 if charged else 200), left.text
    assert await market.received() - before == 10_000
    path = f"/v1/events?type={PAID_WITHOUT_RESOURCE}&walletId={buyer.wallet['wallet_id']}"
    reported = [event["tx_id"] for event in (await market.world.ok("GET", path))["data"]]
    assert reported == ([broken["payment"]["tx_id"]] if charged else [])


async def test_allowance_above_the_threshold_passes_by_an_approval(market: Market, static: str) -> None:
    buyer = await market.buyer(**_ALLOWING, requireCoSign="0.005")
    refused = await buyer.post("fetch", url=f"{static}/weather", maxAmount="1")
    approval_id = error_of(refused, 402, "policy_violation")["approval_id"]
    await market.world.ok("POST", f"/v1/approvals/{approval_id}/approve", {})

    bought = await buyer.fetch(f"{static}/weather")

    assert (bought["resource"]["status"], bought["payment"]["status"]) == (200, "confirmed")
    assert bought["payment"]["policy_triggered"] is True


@pytest.mark.proves("error x402_wallet_not_supported")
async def test_policy_without_allowances_says_what_can_be_done(market: Market, static: str) -> None:
    buyer, before = await market.buyer(), await market.received()

    refused = [await buyer.post("fetch", url=f"{static}/weather", maxAmount="1"), await _hand_out(market, buyer)]
    told = (await buyer.post("quote", url=f"{static}/weather")).json()

    for one in refused:
        assert "allowAllowances" in error_of(one, 422, "x402_wallet_not_supported")["message"]
    assert told["lane"] == "not_supported"
    assert await _allowances(market, buyer) == []
    assert await market.received() == before


async def test_policy_judges_the_grant_like_a_payment(market: Market, static: str) -> None:
    buyer = await market.buyer(**_ALLOWING, maxPerTx="0.005")

    refused = await buyer.post("fetch", url=f"{static}/weather", maxAmount="1")

    violation = error_of(refused, 402, "policy_violation")
    assert violation["violation"]["rule"] == "max_per_tx"
    assert (await _row(market, {"payment": violation}))["status"] == "blocked"
    assert await _allowances(market, buyer) == []


async def test_first_version_is_paid_out_of_an_allowance(market: Market) -> None:
    buyer, before = await market.buyer(**_ALLOWING), await market.received()
    async with old_shop(market) as url:
        bought = await buyer.fetch(f"{url}/")

    assert (bought["resource"]["body"], bought["payment"]["status"]) == ("sunny", "confirmed")
    assert bought["payment"]["tx_signature"] is not None
    assert await market.received() - before == 10_000


async def test_pythons_facilitator_is_paid_in_both_versions(market: Market, monkeypatch: pytest.MonkeyPatch) -> None:
    buyer, before = await market.buyer(**_ALLOWING), await market.received()
    async with pythons_shops(market, monkeypatch) as shops:
        bought = [await buyer.fetch(url) for url in shops]

    assert [one["resource"]["status"] for one in bought] == [200, 200]
    assert [one["payment"]["status"] for one in bought] == ["confirmed", "confirmed"]
    assert {one["payment"]["x402"]["lane"] for one in bought} == {"allowance"}
    assert await market.received() - before == 20_000


async def test_second_demand_settles_the_allowance_and_signs_no_more(market: Market) -> None:
    buyer, before, given = await market.buyer(**_ALLOWING), await market.received(), list[str]()

    async def handler(request: Request) -> Response:
        given.append(request.headers.get("x-payment", ""))
        return demanding(old_offer(market), version=1)

    async with site(handler) as url:
        first = await buyer.fetch(f"{url}/", idempotencyKey="for-ever")
        second = await buyer.fetch(f"{url}/", idempotencyKey="for-ever")

    assert [bool(one) for one in given] == [False, True]
    assert first == second
    assert (first["resource"]["status"], first["payment"]["status"]) == (402, "failed")
    assert [one["status"] for one in await _allowances(market, buyer)] == ["settled"]
    # What the facilitator kept back is worth nothing any more.
    assert await _settled(market, given[1]) is None
    assert (await market.received(), await _balance(market, buyer)) == (before, "100.00")


async def test_same_bytes_go_out_again_until_their_blockhash_expires(own_market: Market) -> None:
    market, given, release = own_market, list[str](), asyncio.Event()
    buyer = await market.buyer(**_ALLOWING, maxPerDay="0.01")

    async def handler(request: Request) -> Response:
        header = request.headers.get("x-payment")
        if header is None:
            return demanding(old_offer(market), version=1)
        given.append(header)
        await release.wait()
        return PlainTextResponse("late")

    async with site(handler) as url:
        hung = [await buyer.fetch(f"{url}/", idempotencyKey="hangs") for _ in range(2)]
        # Given a resource that hangs, when the time of its payment is over
        outstanding = [one["status"] for one in await _allowances(market, buyer)]
        await market.world.later(_EXPIRED)
        await _watch(market)
        row = await _row(market, hung[0])
        settled_now = [one["status"] for one in await _allowances(market, buyer)]
        release.set()
        # Then the money is back, and the key makes a new payment
        again = await buyer.fetch(f"{url}/", idempotencyKey="hangs")

    assert [one["payment"]["status"] for one in hung] == ["pending", "pending"]
    assert hung[0]["resource"] is None
    assert (given[0], outstanding) == (given[1], ["outstanding"])
    assert (row["status"], row["tx_signature"], settled_now) == ("failed", None, ["settled"])
    assert again["payment"]["tx_id"] != row["tx_id"]
    assert given[2] != given[0]


@pytest.mark.proves("PaidFor(lane)", "PaidRequest(lane)")
async def test_payment_handed_out_is_settled_once_it_has_landed(market: Market) -> None:
    buyer, before = await market.buyer(**_ALLOWING), await market.received()
    handed = (await _hand_out(market, buyer, idempotencyKey="mine")).json()
    again = (await _hand_out(market, buyer, idempotencyKey="mine")).json()

    await _watch(market)
    waiting = await _row(market, handed)
    signature = await _settled(market, handed["header_value"])
    await _watch(market)
    row, late = await _row(market, handed), (await _hand_out(market, buyer, idempotencyKey="mine")).json()

    assert (handed["header_name"], again) == ("X-PAYMENT", handed)
    assert (waiting["status"], waiting["tx_signature"]) == ("pending", None)
    assert (row["status"], row["tx_signature"]) == ("confirmed", signature)
    assert (late["payment"], late["header_value"]) == (row, handed["header_value"])
    assert [one["status"] for one in await _allowances(market, buyer)] == ["settled"]
    assert await market.received() - before == 10_000


async def test_unreadable_transaction_of_a_stranger_hides_no_payment(market: Market) -> None:
    world, buyer = market.world, await market.buyer(**_ALLOWING)
    handed = (await _hand_out(market, buyer)).json()
    [*_, open_] = await world.service.db.read(lambda conn: open_delegations(conn, 1000))
    allowance = await allowance_for(world.service, open_)
    assert allowance is not None
    # Given a stranger's transaction that names the allowance's account, before the one that pays
    named = AccountMeta(Pubkey.from_string(allowance.tokens), is_signer=False, is_writable=False)
    payer = world.service.signers.fee_payer
    nothing = transfer(TransferParams(from_pubkey=payer.pubkey(), to_pubkey=payer.pubkey(), lamports=1))
    await world.land([Instruction(nothing.program_id, bytes(nothing.data), [*nothing.accounts, named])])
    [strange, *_] = await world.signatures(allowance.tokens)
    signature = await _settled(market, handed["header_value"])
    await world.catch_up()

    # When this release cannot read it
    def unreadable(method: str, result: Any) -> Any:
        if method == "getTransaction" and str(signed(result).signatures[0]) == strange:
            return {**result, "transaction": [base64.b64encode(b"\x82").decode(), "base64"]}
        return result

    world.line.alter = unreadable
    await IssuedPaymentWatch(world.service, interval=3600, patience=0).tick()
    world.line.mend()

    # Then the payment is known
    assert (await _row(market, handed))["tx_signature"] == signature


async def test_refused_program_is_answered_by_an_allowance(market: Market) -> None:
    # Given a facilitator that is not known, and a client that makes its requests itself
    buyer = await market.buyer(**_ALLOWING)
    terms: Json = {"x402Version": 2, "accepts": [offer(market)], "resource": {"url": "http://x/"}}
    first = (await _hand_out(market, buyer, paymentRequired=terms)).json()

    terms["error"] = "invalid_exact_svm_payload_no_transfer_instruction"
    second = (await _hand_out(market, buyer, paymentRequired=terms)).json()

    assert (first["payment"]["x402"]["lane"], second["payment"]["x402"]["lane"]) == ("enforced", "allowance")


@pytest.mark.parametrize("stop", ["freeze", "rotation"])
async def test_freeze_and_rotation_settle_what_is_outstanding(market: Market, stop: str) -> None:
    buyer, before = await market.buyer(**_ALLOWING), await market.received()
    handed = (await _hand_out(market, buyer)).json()

    if stop == "freeze":
        await market.world.ok("PATCH", f"/v1/wallets/{buyer.wallet['wallet_id']}", {"status": "frozen"})
    else:
        await market.world.session(buyer.wallet)
    await Keeper(market.world.service, interval=3600).tick()
    await _watch(market)

    assert (await _row(market, handed))["status"] == "failed"
    assert await _settled(market, handed["header_value"]) is None
    assert (await market.received(), await _balance(market, buyer)) == (before, "100.00")


async def test_grants_of_a_day_are_bounded(own_market: Market) -> None:
    market = own_market
    await market.world.restart(allowances_per_day=1)
    buyer = await market.buyer(**_ALLOWING)

    first, second = await _hand_out(market, buyer), await _hand_out(market, buyer)

    assert first.status_code == 200
    error_of(second, 422, "too_many_allowances")


async def test_each_delegate_signs_one_transfer(market: Market) -> None:
    buyer = await market.buyer(**_ALLOWING)
    headers = [(await _hand_out(market, buyer)).json()["header_value"] for _ in range(2)]

    signers = {settled(one, market.facilitator).message.account_keys[1] for one in headers}

    assert len(signers) == 2
    assert {one["delegate"] for one in await _allowances(market, buyer)} == set(map(str, signers))


async def test_recipient_without_an_account_is_not_paid(market: Market) -> None:
    buyer = await market.buyer(**_ALLOWING)
    for payee in (str(market.facilitator.pubkey()), buyer.wallet["chain_address"]):
        accepted = {**old_offer(market), "payTo": payee}
        refused = await _hand_out(market, buyer, paymentRequired={"x402Version": 1, "accepts": [accepted]})
        error_of(refused, 400, "invalid_recipient")

    assert await _allowances(market, buyer) == []


async def test_tools_of_mcp_pay_out_of_an_allowance(market: Market, static: str) -> None:
    before = await market.received()
    async with agent(market.world, allowAllowances=True) as one:
        bought = await one.call("fetch_paid_url", url=f"{static}/weather", max_amount="1")
        told = await one.call("quote_paid_url", url=f"{static}/weather")
        listed = await one.call("list_transactions", x402_host="*")

    assert (told["data"]["lane"], bought["outcome"]) == ("allowance", "done")
    assert bought["data"]["resource"]["status"] == 200
    [row] = listed["data"]["data"]
    assert (row["tx_id"], row["status"]) == (bought["data"]["payment"]["tx_id"], "confirmed")
    assert await market.received() - before == 10_000


async def test_tools_of_mcp_say_why_no_allowance_pays(market: Market, static: str) -> None:
    async with agent(market.world) as one:
        refused = await one.call("fetch_paid_url", url=f"{static}/weather", max_amount="1")

    assert (refused["outcome"], refused["error"]["code"]) == ("refused", "x402_wallet_not_supported")
    assert "Ask an admin" in refused["message"]
    assert "allowAllowances" in refused["message"]
