"""Payments to resources of the public MPP packages, out of an allowance."""

import asyncio
import base64
import json
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import httpx
import pytest
import pytest_asyncio
from solders.keypair import Keypair
from solders.signature import Signature
from solders.transaction import VersionedTransaction
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from app.core.text import decode_base64
from app.keeper.keeper import Keeper
from app.store.fee_payer_use import use_of
from app.x402.watch import PAID_WITHOUT_RESOURCE, IssuedPaymentWatch
from tests.support.http import site
from tests.support.processes import PATIENCE
from tests.support.service_world import Json, error_of
from tests.x402.conftest import Buyer, Market
from tests.x402.mpp import challenge, charge, demanding, shop
from tests.x402.servers import settled
from tests.x402.test_hostile import demanding as demanding_x402
from tests.x402.test_hostile import offer

pytestmark = pytest.mark.asyncio(loop_scope="module")

_ALLOWING = {"allowAllowances": True}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def server(market: Market) -> AsyncIterator[str]:
    async with shop(market) as url:
        yield url


async def _shown(market: Market, buyer: Buyer) -> Json:
    return await market.world.ok("GET", f"/v1/wallets/{buyer.wallet['wallet_id']}")


async def _allowances(market: Market, buyer: Buyer) -> list[Json]:
    found: list[Json] = (await market.world.ok("GET", f"/v1/wallets/{buyer.wallet['wallet_id']}/allowances"))["data"]
    return found


async def _watch(market: Market) -> None:
    await market.world.catch_up()
    await IssuedPaymentWatch(market.world.service, interval=3600, patience=0).tick()


def _receipt(bought: Json) -> Json:
    found: Json = json.loads(decode_base64(bought["resource"]["headers"]["payment-receipt"]))
    return found


@pytest.mark.proves("PaidRequest(protocol)", "Transaction(paid_request)", "POST /v1/paid-requests/fetch")
@pytest.mark.parametrize("query", ["", "?sponsored=1&auth=1", "?memo=order%207&amount=1&currency=USDC"])
async def test_resource_of_the_public_packages_is_paid_once(market: Market, server: str, query: str) -> None:
    buyer, before, url = await market.buyer(**_ALLOWING), await market.received(), f"{server}/weather{query}"

    quoted = (await buyer.post("quote", url=url)).json()
    bought = await buyer.fetch(url, idempotencyKey="weather")
    again = await buyer.fetch(url, idempotencyKey="weather")

    assert (quoted["protocol"], quoted["lane"], quoted["allowed"]) == ("mpp", "allowance", True)
    assert json.loads(bought["resource"]["body"]) == {"weather": "sunny"}
    payment, paid_for = bought["payment"], bought["payment"]["paid_request"]
    assert (payment["status"], payment["amount"], payment["x402"]) == ("confirmed", quoted["price"], None)
    assert (paid_for["protocol"], paid_for["lane"], paid_for["resource_status"]) == ("mpp", "allowance", 200)
    assert again == bought
    # The row names the transfer that the server says it has sent.
    assert payment["tx_signature"] == _receipt(bought)["reference"]
    assert await market.received() - before == (1 if "amount" in query else 10_000)
    assert [one["status"] for one in await _allowances(market, buyer)] == ["settled"]


@pytest.mark.proves("error x402_wallet_not_supported")
async def test_limits_of_the_policy_bind_payments_by_mpp(market: Market, server: str) -> None:
    buyer = await market.buyer(**_ALLOWING, maxPerTx="0.005")
    refused = await buyer.post("fetch", url=f"{server}/weather", maxAmount="1")
    dear = await buyer.post("fetch", url=f"{server}/weather", maxAmount="0.009")
    assert error_of(refused, 402, "policy_violation")["violation"]["rule"] == "max_per_tx"
    assert error_of(dear, 422, "x402_price_too_high")["price"] == "0.01"
    without = await market.buyer()
    told = (await without.post("quote", url=f"{server}/weather")).json()
    needed = await without.post("fetch", url=f"{server}/weather", maxAmount="1")
    assert told["lane"] == "not_supported"
    assert "allowAllowances" in error_of(needed, 422, "x402_wallet_not_supported")["message"]


async def test_splits_are_refused_and_cost_nothing(market: Market, server: str) -> None:
    buyer = await market.buyer(**_ALLOWING)
    got = await buyer.post("fetch", url=f"{server}/weather?split={Keypair().pubkey()}:1000", maxAmount="1")
    assert "splits" in error_of(got, 422, "x402_no_acceptable_offer")["message"]
    assert (await _shown(market, buyer))["usdc_balance"] == "100.00"


async def test_freeze_before_the_settlement_returns_everything(market: Market, server: str) -> None:
    buyer, before = await market.buyer(**_ALLOWING), await market.received()
    async with httpx.AsyncClient(timeout=30) as client:
        demanded = (await client.get(f"{server}/weather")).headers["www-authenticate"]
        body = {"url": f"{server}/weather", "paymentRequired": demanded, "maxAmount": "1"}
        handed = (await buyer.post("payments", **body)).json()
        await market.world.ok("PATCH", f"/v1/wallets/{buyer.wallet['wallet_id']}", {"status": "frozen"})
        await Keeper(market.world.service, interval=3600).tick()
        answer = await client.get(f"{server}/weather", headers={handed["header_name"]: handed["header_value"]})
    await _watch(market)

    assert handed["header_name"] == "Authorization"
    assert handed["payload"]["challenge"]["realm"] == "weather.example"
    assert answer.status_code == 500
    row = await market.world.ok("GET", f"/v1/transactions/{handed['payment']['tx_id']}")
    assert (row["status"], row["tx_signature"]) == ("failed", None)
    assert (await market.received(), (await _shown(market, buyer))["usdc_balance"]) == (before, "100.00")


async def test_transfer_has_nothing_but_what_the_challenge_asks_for(market: Market) -> None:
    buyer = await market.buyer(**_ALLOWING)
    for request, programs in ((charge(market), 3), (charge(market, externalId="order 7"), 4)):
        body = {"url": "http://127.0.0.1:9/x", "paymentRequired": challenge(request), "maxAmount": "1"}
        payload = (await buyer.post("payments", **body)).json()["payload"]["payload"]
        assert payload["type"] == "transaction"
        transaction = VersionedTransaction.from_bytes(base64.b64decode(payload["transaction"]))
        assert len(transaction.message.instructions) == programs
        assert [one == Signature.default() for one in transaction.signatures] == [True, False]


@pytest.mark.proves("Quote(protocol)", "POST /v1/paid-requests/quote")
async def test_cheaper_protocol_is_paid_and_the_other_is_no_obstacle(market: Market) -> None:
    buyer, given = await market.buyer(**_ALLOWING), list[str]()

    async def handler(request: Request) -> Response:
        given.extend({"authorization", "payment-signature"} & set(request.headers))
        answer = demanding_x402(offer(market, amount=request.query_params["x402"]))
        answer.headers.append("WWW-Authenticate", 'Basic realm="a, b"')
        answer.headers.append("WWW-Authenticate", challenge(charge(market)))
        return answer

    async with site(handler) as url:
        quoted = [(await buyer.post("quote", url=f"{url}/?x402={price}")).json() for price in (9_999, 10_001)]
        await buyer.fetch(f"{url}/?x402=10001")
        bad = (await (await market.buyer()).post("quote", url=f"{url}/?x402=10001")).json()

    assert [(one["protocol"], one["price"]) for one in quoted] == [("x402", "0.009999"), ("mpp", "0.01")]
    assert given == ["authorization"]
    # Without allowances, the dearer offer by x402 is left.
    assert (bad["protocol"], bad["allowed"]) == ("x402", True)
    assert "allowAllowances" in bad["warnings"][0]


async def test_older_paths_answer_the_same(market: Market, server: str) -> None:
    buyer, url = replace(await market.buyer(**_ALLOWING), paths="paid-requests"), f"{server}/weather?sponsored=1"
    older = replace(buyer, paths="x402")

    quoted = [(await one.post("quote", url=url)).json() for one in (buyer, older)]
    bought = [await one.fetch(url) for one in (buyer, older)]

    # The quotes differ only in the times of their verdicts.
    assert {**quoted[0], "rules": [], "retry_at": ""} == {**quoted[1], "rules": [], "retry_at": ""}
    assert [one["payment"]["paid_request"]["protocol"] for one in bought] == ["mpp", "mpp"]
    assert {one["resource"]["body"] for one in bought} == {'{"weather":"sunny"}'}


class Settling:
    """A server that settles what it gets and keeps its first ``lost`` answers back until it is released.

    If it is ``changing``, it changes price and challenge at every request, and the protocol at every other one.
    """

    def __init__(self, market: Market, lost: int, *, protocol: str = "mpp", changing: bool = False) -> None:
        self.market, self.lost, self.protocol, self.changing = market, lost, protocol, changing
        self.asked = 0
        self.given: set[str] = set()
        self.released = asyncio.Event()

    async def answer(self, request: Request) -> Response:
        self.asked += 1
        credential = request.headers.get("authorization", request.headers.get("payment-signature"))
        if credential is None:
            return self._demand()
        first = credential not in self.given
        self.given.add(credential)
        if first:
            raw = bytes(settled(credential, self.market.facilitator))
            signature = await self.market.world.service.chain.send(raw)
            await self.market.world.service.chain.confirm(signature, timeout=PATIENCE)
        if self.lost:
            self.lost -= 1
            await self.released.wait()
        return self._demand() if self.changing else PlainTextResponse("yours")

    def _demand(self) -> Response:
        price = str(10_000 + (self.asked if self.changing else 0))
        if self.protocol == "x402" or (self.changing and self.asked % 2):
            return demanding_x402(offer(self.market, amount=price), error="program_not_allowed")
        return demanding(challenge(charge(self.market, amount=price), id=f"c{self.asked}"))


@pytest.mark.parametrize("first", ["x402", "mpp"])
async def test_server_that_changes_everything_is_paid_once(own_market: Market, first: str) -> None:
    market = own_market
    buyer, before = await market.buyer(**_ALLOWING), await market.received()
    settling = Settling(market, 3, changing=True)
    settling.asked = ["mpp", "x402"].index(first) - 1
    async with site(settling.answer) as url:
        answers = [await buyer.fetch(f"{url}/", idempotencyKey="one") for _ in range(4)]
        settling.released.set()

    assert len({one["payment"]["tx_id"] for one in answers}) == len(settling.given) == 1
    assert (answers[0]["resource"], answers[-1]["payment"]["status"]) == (None, "confirmed")
    assert answers[-1]["payment"]["paid_request"]["protocol"] == first
    assert await market.received() - before == 10_000 + ["mpp", "x402"].index(first)


@pytest.mark.parametrize("protocol", ["x402", "mpp"])
async def test_requests_with_lost_answers_pay_once_each(
    own_market: Market, request: pytest.FixtureRequest, protocol: str
) -> None:
    market, count = own_market, 20 if request.config.getoption("--full") else 5
    buyer, before = await market.buyer(**_ALLOWING), await market.received()
    settling = Settling(market, 0, protocol=protocol)
    async with site(settling.answer) as url:
        for key in range(count):
            settling.lost = 1
            lost = await buyer.fetch(f"{url}/{key}", idempotencyKey=f"key-{key}")
            again = await buyer.fetch(f"{url}/{key}", idempotencyKey=f"key-{key}")
            assert (lost["resource"], again["payment"]["status"]) == (None, "confirmed")
        settling.released.set()

    assert await market.received() - before == 10_000 * count


async def test_server_that_hangs_gets_the_same_credential_again(own_market: Market) -> None:
    market, given, release = own_market, list[str](), asyncio.Event()
    buyer = await market.buyer(**_ALLOWING)

    async def handler(request: Request) -> Response:
        if "authorization" not in request.headers:
            return demanding(challenge(charge(market)))
        given.append(request.headers["authorization"])
        await release.wait()
        return PlainTextResponse("late")

    async with site(handler) as url:
        hung = [await buyer.fetch(f"{url}/", idempotencyKey="hangs") for _ in range(2)]
        await market.world.later(120)
        await _watch(market)
        release.set()
    row = await market.world.ok("GET", f"/v1/transactions/{hung[0]['payment']['tx_id']}")

    assert [one["payment"]["status"] for one in hung] == ["pending", "pending"]
    assert given[0] == given[1]
    assert row["status"] == "failed"
    assert (await _shown(market, buyer))["usdc_balance"] == "100.00"


async def test_payment_without_resource_is_reported_with_its_protocol(market: Market) -> None:
    buyer, settling = await market.buyer(**_ALLOWING), Settling(market, 0)

    async def handler(request: Request) -> Response:
        answer = await settling.answer(request)
        # A status 500 says nothing about the money.
        return PlainTextResponse("broken", 500) if settling.given else answer

    async with site(handler) as url:
        broken = await buyer.fetch(f"{url}/")
    await _watch(market)

    assert (broken["resource"]["status"], broken["payment"]["status"]) == (500, "confirmed")
    path = f"/v1/events?type={PAID_WITHOUT_RESOURCE}&walletId={buyer.wallet['wallet_id']}"
    [event] = (await market.world.ok("GET", path))["data"]
    assert (event["tx_id"], event["protocol"]) == (broken["payment"]["tx_id"], "mpp")


async def test_fee_of_an_unsponsored_transfer_counts_towards_the_wallets_sol(market: Market) -> None:
    spent = []
    for sponsors in (True, False):
        buyer = await market.buyer(**_ALLOWING)
        body = {"url": "http://127.0.0.1:9/x", "maxAmount": "1"}
        body["paymentRequired"] = challenge(charge(market, methodDetails={"feePayer": sponsors}))
        handed = (await buyer.post("payments", **body)).json()
        spent.append(await _lamports(market, buyer))
    assert spent[1] - spent[0] == 10_001
    raw = base64.b64decode(handed["payload"]["payload"]["transaction"])
    assert VersionedTransaction.from_bytes(raw).signatures[0] != Signature.default()


async def _lamports(market: Market, buyer: Buyer) -> Any:
    service = market.world.service
    day = service.clock.seen_ms() // 86_400_000
    return (await service.db.read(lambda conn: use_of(conn, buyer.wallet["wallet_id"], day)))[0]
