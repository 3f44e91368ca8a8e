"""What became of a payment that others send: the chain says, whatever facilitator and resource do."""

import base64
import json

import pytest
from solders.transaction import VersionedTransaction
from sqlalchemy import update
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from app.approvals import service as approvals
from app.core.identifiers import random_id
from app.core.timestamps import now_ms
from app.database.record_tables import insert_record
from app.store.idempotency import table as idempotency
from app.store.people import Passkey
from app.submission.claim import Claim
from app.submission.recovery import Recovery
from app.x402.watch import PAID_WITHOUT_RESOURCE, IssuedPaymentWatch
from tests.dashboard.browsing import add_person
from tests.support.http import site
from tests.support.service_world import Json, error_of
from tests.x402.conftest import Market
from tests.x402.servers import settled
from tests.x402.test_hostile import demanding, offer, old_offer

pytestmark = pytest.mark.asyncio(loop_scope="module")

_EXPIRED = 120.0


async def _watch(market: Market) -> IssuedPaymentWatch:
    return IssuedPaymentWatch(market.world.service, interval=3600, patience=0)


def _settled(market: Market, header: str) -> bytes:
    return bytes(settled(header, market.facilitator))


@pytest.mark.proves("HandedOut(payment)")
async def test_payment_that_is_never_sent_fails_when_its_blockhash_has_expired(own_market: Market) -> None:
    market, buyer = own_market, await own_market.buyer(maxPerDay="0.01")
    terms = {"x402Version": 2, "accepts": [offer(market)], "resource": {"url": "http://x/"}}
    body = {"url": "http://127.0.0.1:9/x", "paymentRequired": terms, "maxAmount": "1", "idempotencyKey": "never sent"}
    handed = await buyer.post("payments", **body)
    tx_id = handed.json()["payment"]["tx_id"]
    assert handed.json()["payment"]["tx_signature"] is None

    await market.world.later(_EXPIRED)
    await market.world.service.part(Recovery).recover()

    shown = await market.world.ok("GET", f"/v1/transactions/{tx_id}")
    assert (shown["status"], shown["x402"]["resource_status"]) == ("failed", None)
    again = await buyer.post("payments", **body)
    assert again.json()["payment"]["tx_id"] != tx_id, "the key makes a new one, and the budget is as before"


@pytest.mark.proves(
    "POST /v1/x402/payments",
    "PayOffer(walletId, url, paymentRequired)",
    "HandedOut(header_name, header_value, expires_at, payment)",
    "PaidFor(url, scheme, network, pay_to, facilitator)",
    "PaidRequest(facilitator, network, pay_to, scheme, url)",
    "POST /v1/paid-requests/payments",
)
async def test_payment_handed_out_is_confirmed_when_the_facilitator_sends_it(market: Market) -> None:
    buyer, before = await market.buyer(), await market.received()
    terms = {"x402Version": 2, "accepts": [offer(market)], "resource": {"url": "http://x/"}}
    body = {"url": "http://127.0.0.1:9/x", "maxAmount": "1", "idempotencyKey": "mine"}
    header = base64.b64encode(json.dumps(terms).encode()).decode()
    handed = (await buyer.post("payments", paymentRequired=header, **body)).json()
    again = (await buyer.post("payments", paymentRequired=header, **body)).json()

    signature = await market.world.service.chain.send(_settled(market, handed["header_value"]))
    await market.world.service.chain.confirm(signature, timeout=30)
    await market.world.catch_up()
    late = (await buyer.post("payments", paymentRequired=header, **body)).json()

    assert handed["header_name"] == "PAYMENT-SIGNATURE"
    assert again == handed
    assert (late["payment"]["status"], late["header_value"]) == ("confirmed", handed["header_value"])
    shown = await market.world.ok("GET", f"/v1/transactions/{handed['payment']['tx_id']}")
    assert (shown["status"], shown["tx_signature"]) == ("confirmed", signature)
    assert await market.received() - before == 10_000


@pytest.mark.proves("PayOffer(paymentRequired)")
async def test_first_version_is_paid_by_its_own_header(market: Market) -> None:
    buyer = await market.buyer(allowAllowances=True)
    terms = {"x402Version": 1, "accepts": [old_offer(market)]}

    handed = (await buyer.post("payments", url="http://127.0.0.1:9/x", paymentRequired=terms, maxAmount="1")).json()

    assert handed["header_name"] == "X-PAYMENT"
    content = json.loads(base64.b64decode(handed["header_value"]))
    assert (content["x402Version"], content["scheme"], content["network"]) == (1, "exact", "solana")


@pytest.mark.proves("event x402.paid_without_resource")
async def test_payment_that_landed_without_a_resource_is_reported_once(market: Market) -> None:
    buyer, before = await market.buyer(), await market.received()

    async def handler(request: Request) -> Response:
        header = request.headers.get("payment-signature")
        if header is None:
            return demanding(offer(market))
        raw = _settled(market, header)
        if (
            VersionedTransaction.from_bytes(raw).message.recent_blockhash
            == type(VersionedTransaction.from_bytes(raw).message.recent_blockhash).default()
        ):
            return demanding(offer(market), error="BlockhashNotFound")
        await market.world.service.chain.send(raw)
        return PlainTextResponse("out of order", 500)

    async with site(handler) as url:
        got = await buyer.fetch(f"{url}/broken", idempotencyKey="broken")
    watch = await _watch(market)
    await market.world.catch_up()
    await watch.tick()
    await watch.tick()

    assert got["resource"]["status"] == 500
    assert got["payment"]["status"] == "confirmed"
    assert await market.received() - before == 10_000
    path = f"/v1/events?type={PAID_WITHOUT_RESOURCE}&walletId={buyer.wallet['wallet_id']}"
    [event] = (await market.world.ok("GET", path))["data"]
    assert (event["tx_id"], event["resource_status"]) == (got["payment"]["tx_id"], 500)


async def test_repetition_is_answered_from_what_was_handed_out(market: Market) -> None:
    # Given a payment that was handed out and whose answer was lost
    buyer, world = await market.buyer(), market.world
    given: list[str] = []

    async def handler(request: Request) -> Response:
        given.append(request.headers.get("payment-signature", ""))
        return demanding(offer(market), error="BlockhashNotFound")

    async with site(handler) as url:
        first = await buyer.fetch(f"{url}/", idempotencyKey="lost")
        await world.service.db.write(lambda conn: conn.execute(update(idempotency).values(state="running")))

        # When it is repeated after a rotation of the session, and once more after a freeze
        await world.session(buyer.wallet)
        again = await buyer.fetch(f"{url}/", idempotencyKey="lost")
        await world.service.db.write(lambda conn: conn.execute(update(idempotency).values(state="running")))
        await world.ok("PATCH", f"/v1/wallets/{buyer.wallet['wallet_id']}", {"status": "frozen"})
        frozen = await buyer.fetch(f"{url}/", idempotencyKey="lost")

    # Then it is the same payment, and never another signature
    assert first["payment"]["tx_id"] == again["payment"]["tx_id"] == frozen["payment"]["tx_id"]
    assert len(set(given[2:])) == 1


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize(
    ("policy", "rule"),
    [({"maxPerDay": "0.015"}, "max_per_day"), ({"velocityCap": 1}, "velocity_cap")],
)
async def test_what_is_handed_out_counts_before_it_lands(market: Market, policy: Json, rule: str, version: int) -> None:
    # Given a payment that is handed out and not settled
    buyer = await market.buyer(allowAllowances=True, **policy)
    new: Json = {"x402Version": 2, "accepts": [offer(market)], "resource": {"url": "http://x/"}}
    terms = [new, new if version == 2 else {"x402Version": 1, "accepts": [old_offer(market)]}]
    first, second = [
        await buyer.post("payments", url="http://127.0.0.1:9/x", paymentRequired=one, maxAmount="1") for one in terms
    ]

    # Then the agent is not given a second one, which could not settle after it
    assert first.status_code == 200, first.text
    assert error_of(second, 402, "policy_violation")["violation"]["rule"] == rule
    path = f"/v1/transactions?walletId={buyer.wallet['wallet_id']}&status=blocked"
    assert len((await market.world.ok("GET", path))["data"]) == 1


async def test_what_has_landed_does_not_count_twice(market: Market) -> None:
    # Given a payment that has landed a moment ago
    buyer = await market.buyer(maxPerDay="0.02")
    terms = {"x402Version": 2, "accepts": [offer(market)], "resource": {"url": "http://x/"}}
    body = {"url": "http://127.0.0.1:9/x", "paymentRequired": terms, "maxAmount": "1"}
    first = (await buyer.post("payments", **body)).json()
    await market.world.service.chain.send(_settled(market, first["header_value"]))

    second = await buyer.post("payments", **body)

    assert second.status_code == 200, second.text


async def test_what_is_handed_out_takes_the_balance_before_it_lands(market: Market) -> None:
    buyer = await market.buyer()
    terms = {"x402Version": 2, "accepts": [offer(market, amount="60000000")], "resource": {"url": "http://x/"}}
    first, second = [
        await buyer.post("payments", url="http://127.0.0.1:9/x", paymentRequired=terms, maxAmount="100")
        for _ in range(2)
    ]

    assert first.status_code == 200, first.text
    error_of(second, 422, "wallet_insufficient_balance")


async def test_frozen_wallet_hands_out_nothing(market: Market) -> None:
    buyer = await market.buyer()
    await market.world.ok("PATCH", f"/v1/wallets/{buyer.wallet['wallet_id']}", {"status": "frozen"})
    terms: Json = {"x402Version": 2, "accepts": [offer(market)], "resource": {"url": "http://x/"}}

    got = await buyer.post("payments", url="http://127.0.0.1:9/x", paymentRequired=terms, maxAmount="1")

    error_of(got, 422, "wallet_frozen")


@pytest.mark.parametrize("brake", ["freeze", "pause", "rotation"])
async def test_payment_overtaken_by_a_brake_is_not_delivered_by_a_repetition(own_market: Market, brake: str) -> None:
    # Given an issued payment that the resource has received and not settled
    market = own_market
    buyer, world = await market.buyer(), market.world
    given: list[str | None] = []

    async def handler(request: Request) -> Response:
        given.append(request.headers.get("payment-signature"))
        return demanding(offer(market), error="BlockhashNotFound")

    async with site(handler) as url:
        first = await buyer.fetch(f"{url}/", idempotencyKey="late")
        delivered = len(given)
        path = f"/v1/wallets/{buyer.wallet['wallet_id']}"
        if brake == "freeze":
            await world.ok("PATCH", path, {"status": "frozen"})
        elif brake == "pause":
            await world.ok("POST", "/v1/organization/pause", {"paused": True})
        else:
            await world.session(buyer.wallet)

        # When the request is repeated, even after the brake was lifted
        again = await buyer.fetch(f"{url}/", idempotencyKey="late")
        if brake == "freeze":
            await world.ok("PATCH", path, {"status": "active"})
            await buyer.fetch(f"{url}/", idempotencyKey="late")

    # Then the resource does not get the payment again
    assert first["payment"]["status"] == again["payment"]["status"] == "pending"
    assert again["resource"] is None
    assert len(given) == delivered


async def test_frozen_wallet_with_an_issued_payment_names_the_freeze(market: Market) -> None:
    buyer = await market.buyer()
    terms: Json = {"x402Version": 2, "accepts": [offer(market)], "resource": {"url": "http://x/"}}
    body: Json = {"url": "http://127.0.0.1:9/x", "paymentRequired": terms, "maxAmount": "1"}
    issued = await buyer.post("payments", **body)
    assert issued.status_code == 200, issued.text
    await market.world.ok("PATCH", f"/v1/wallets/{buyer.wallet['wallet_id']}", {"status": "frozen"})

    error_of(await buyer.post("payments", **body), 422, "wallet_frozen")

    blocked = f"/v1/transactions?walletId={buyer.wallet['wallet_id']}&status=blocked"
    assert (await market.world.ok("GET", blocked))["data"] == []


async def test_payment_above_the_threshold_passes_by_an_approval(market: Market) -> None:
    buyer = await market.buyer(requireCoSign="0.005")
    async with market.shop() as shop:
        refused = await buyer.post("fetch", url=f"{shop}/weather", maxAmount="1")
        approval_id = error_of(refused, 402, "policy_violation")["approval_id"]
        await market.world.ok("POST", f"/v1/approvals/{approval_id}/approve", {})
        bought = await buyer.fetch(f"{shop}/weather")

    assert bought["resource"]["status"] == 200
    assert bought["payment"]["status"] == "confirmed"
    assert bought["payment"]["policy_triggered"] is True


async def test_lone_operator_cannot_pay_for_a_resource(market: Market) -> None:
    world = market.world
    people = [add_person(world, "operator", name) for name in ("Ada", "Grace")]
    now = now_ms()
    for one in people:
        made = Passkey(random_id("cred_"), one.actor.id, b"", 0, now, now)
        world.service.db.write_now(lambda conn, made=made: insert_record(conn, made))  # type: ignore[misc]
    buyer = await market.buyer(approvals={"required": 2, "above": "0.005"})
    async with market.shop() as shop:
        refused = await buyer.post("fetch", url=f"{shop}/weather", maxAmount="1")
        approval_id = error_of(refused, 402, "policy_violation")["approval_id"]
        answer = await world.call("POST", f"/v1/approvals/{approval_id}/approve", {})
        error_of(answer, 403, "insufficient_permissions")
        for given, one in enumerate(people):
            refused = await buyer.post("fetch", url=f"{shop}/weather", maxAmount="1")
            assert error_of(refused, 402, "policy_violation")["approval_id"] == approval_id, given
            await approvals.approve(world.service, one, Claim(world.service.db), approval_id)
        assert (await buyer.fetch(f"{shop}/weather"))["payment"]["status"] == "confirmed"
