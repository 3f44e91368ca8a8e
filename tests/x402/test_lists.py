"""Payments for resources, found among all transactions and exported with them."""

import json
from pathlib import Path

import pytest

from app.chain.transport import AsgiTransport
from app.verifier.verify import verify
from app.x402.watch import IssuedPaymentWatch
from tests.support.exports import export
from tests.support.service_world import Json, error_of
from tests.x402.conftest import Buyer, Market
from tests.x402.mpp import challenge, charge
from tests.x402.servers import settled
from tests.x402.test_hostile import offer, old_offer

pytestmark = pytest.mark.asyncio(loop_scope="module")


async def _buy(market: Market, buyer: Buyer, url: str) -> str:
    """Hand out a payment for the resource, and return its id."""
    terms: Json = {"x402Version": 2, "accepts": [offer(market)], "resource": {"url": url}}
    answer = await buyer.post("payments", url=url, paymentRequired=terms, maxAmount="1")
    return str(answer.json()["payment"]["tx_id"])


async def _ids(market: Market, query: str, **options: str) -> list[str]:
    return [one["tx_id"] for one in (await market.world.ok("GET", f"/v1/transactions?{query}", **options))["data"]]


@pytest.mark.proves("GET /v1/transactions(x402Host)", "GET /v1/wallets/{wallet_id}/transactions(x402Host)")
async def test_payments_for_resources_are_listed_by_host(market: Market) -> None:
    # Given payments for two hosts by two wallets, and one for no resource
    world = market.world
    one, other = await market.buyer(), await market.buyer()
    a = await _buy(market, one, "https://a.example.com/1")
    b = await _buy(market, one, "https://B.Example.com./2?x=1")
    elsewhere = await _buy(market, other, "https://a.example.com/3")
    await world.pay(one.wallet, await world.payee(), "1")
    wallet = one.wallet["wallet_id"]

    # Then each filter finds its own, newest first, whatever else narrows the list
    assert await _ids(market, "x402Host=*&limit=3") == [elsewhere, b, a]
    assert await _ids(market, f"x402Host=*&walletId={wallet}") == [b, a]
    assert await _ids(market, "x402Host=b.example.com") == [b]
    assert await _ids(market, f"x402Host=a.example.com&walletId={wallet}") == [a]
    assert await _ids(market, f"x402Host=*&walletId={wallet}&status=pending&type=payment") == [b, a]
    assert await _ids(market, f"x402Host=*&walletId={wallet}&recipient={market.payee}") == [b, a]
    for nothing in ("status=confirmed", "type=funding", "recipient=nobody.example", "to=2020-01-01T00:00:00Z"):
        assert await _ids(market, f"x402Host=*&walletId={wallet}&{nothing}") == []
    assert await _ids(market, "x402Host=*", key=other.key) == [elsewhere]
    own = await world.ok("GET", f"/v1/wallets/{wallet}/transactions?x402Host=a.example.com")
    assert [found["x402"]["url"] for found in own["data"]] == ["https://a.example.com/1"]

    # And pages go on where the last one ended, in that list alone
    first = await world.ok("GET", f"/v1/transactions?x402Host=*&walletId={wallet}&limit=1")
    cursor = first["next_cursor"]
    assert await _ids(market, f"x402Host=*&walletId={wallet}&limit=1&cursor={cursor}") == [a]
    moved = await world.call("GET", f"/v1/transactions?walletId={wallet}&limit=1&cursor={cursor}")
    error_of(moved, 400, "invalid_request")


@pytest.mark.proves("GET /v1/transactions(x402Host)", "GET /v1/wallets/{wallet_id}/transactions(x402Host)")
async def test_status_of_payments_out_of_an_allowance_narrows_the_list(market: Market) -> None:
    # Given one that waits, one that has paid, and one whose allowance was settled unspent
    world, buyer = market.world, await market.buyer(allowAllowances=True)
    handed: list[Json] = []
    for _ in range(3):
        terms = {"x402Version": 1, "accepts": [old_offer(market)]}
        answer = await buyer.post("payments", url="https://a.example.com/", paymentRequired=terms, maxAmount="1")
        handed.append(answer.json())
    waiting, paid, unpaid = (one["payment"]["tx_id"] for one in handed)
    await world.service.chain.send(bytes(settled(handed[1]["header_value"], market.facilitator)))
    path = f"/v1/wallets/{buyer.wallet['wallet_id']}/allowances"
    for one in (await world.ok("GET", path))["data"]:
        if one["tx_id"] in {paid, unpaid}:
            await world.ok("POST", f"{path}/{one['allowance_id']}/settle", {})
    await IssuedPaymentWatch(world.service, interval=3600, patience=0).tick()

    # Then each status lists the one that shows it
    for status, listed in (("pending", waiting), ("confirmed", paid), ("failed", unpaid)):
        query = f"x402Host=*&walletId={buyer.wallet['wallet_id']}&status={status}"
        assert await _ids(market, query) == [listed]
        assert (await world.ok("GET", f"/v1/transactions/{listed}"))["status"] == status


@pytest.mark.proves("CreatePolicy(x402Hosts)", "GET /v1/transactions(x402Host)")
@pytest.mark.parametrize("host", ["a.example.com:443", "A.example.com", "https://a.example.com", "", "a..b", "a b"])
async def test_host_that_no_url_can_have_is_refused(market: Market, host: str) -> None:
    listed = await market.world.call("GET", f"/v1/transactions?x402Host={host}")
    policy = await market.world.call("POST", "/v1/policies", {"name": "Hosts", "x402Hosts": [host]})

    for refused in (listed, policy):
        message = error_of(refused, 400, "invalid_request")["message"]
        assert "x402Host" in message
        assert ("without a port" in message) is (host == "a.example.com:443")


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("[::1]", None),
        ("0:0:0:0:0:0:0:1", "::1"),
        ("::1", "::1"),
        ("127.0.0.1", "127.0.0.1"),
        ("localhost",) * 2,
    ],
)
async def test_address_is_listed_as_urls_have_it(market: Market, written: str, meant: str | None) -> None:
    answer = await market.world.call("POST", "/v1/policies", {"name": written, "x402Hosts": [written]})

    if written == meant:
        assert answer.json()["x402_hosts"] == [meant]
    else:
        message = error_of(answer, 400, "invalid_request")["message"]
        assert meant is None or f"must be written as {meant}" in message


@pytest.mark.proves("POST /v1/transactions/export", "CreateExport(format)", "PaidRequest(protocol)")
@pytest.mark.parametrize("form", ["json", "csv"])
async def test_export_names_the_protocol_and_still_verifies(market: Market, tmp_path: Path, form: str) -> None:
    # Given a payment by each protocol, one of them settled, and one for no resource
    world, buyer = market.world, await market.buyer(allowAllowances=True)
    terms: list[Json | str] = [{"x402Version": 1, "accepts": [old_offer(market)]}, challenge(charge(market))]
    for one in terms:
        body = {"url": "https://a.example.com/secret", "paymentRequired": one, "maxAmount": "1"}
        handed = (await buyer.post("payments", **body)).json()
    await world.service.chain.send(bytes(settled(handed["header_value"], market.facilitator)))
    await world.pay(buyer.wallet, await world.payee(), "1")
    await IssuedPaymentWatch(world.service, interval=3600, patience=0).tick()

    file = await export(world, tmp_path / "export", format=form, walletId=buyer.wallet["wallet_id"])
    report = await verify(file, AsgiTransport(world.localnet.rpc_app))

    # Then each row names its protocol, but not the URL, and the report counts these claims
    text = file.read_text()
    if form == "json":
        exported = json.loads(text)["transactions"]
        found = [row["paid_request"] for row in exported if row["type"] == "payment"]
        assert found == [None, {"protocol": "mpp"}, {"protocol": "x402"}]
    assert "paid_request" in text
    assert "secret" not in text
    assert (report.problems, report.unverified["protocols of paid requests"]) == ([], 2)
