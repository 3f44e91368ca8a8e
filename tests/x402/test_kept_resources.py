"""Resources are stored for replays only if they were paid for, within a quota per wallet."""

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from solders.hash import Hash
from solders.transaction import VersionedTransaction
from sqlalchemy import func, select
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from app.core.timestamps import now_ms
from app.store.audit import table as audit_entries
from app.store.idempotency import LIFETIME, purge
from app.store.idempotency import table as idempotency
from app.store.x402 import facilitators
from tests.support.http import site
from tests.x402.conftest import Market, opened
from tests.x402.servers import settled
from tests.x402.test_hostile import demanding, offer

pytestmark = pytest.mark.asyncio(loop_scope="module")

_BODY = "x" * 10_000


@pytest_asyncio.fixture(scope="module", loop_scope="module", name="small")
async def _small(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Market]:
    """A market with room for two bodies per wallet."""
    async with opened(Path(tmp_path_factory.mktemp("small")), x402_kept_bytes=25_000) as found:
        yield found


@contextlib.asynccontextmanager
async def _selling(market: Market) -> AsyncIterator[str]:
    """A resource that settles each payment itself."""

    async def handler(request: Request) -> Response:
        header = request.headers.get("payment-signature")
        if header is None:
            return demanding(offer(market))
        paid = settled(header, market.facilitator)
        raw = bytes(paid)
        if VersionedTransaction.from_bytes(raw).message.recent_blockhash == Hash.default():
            return demanding(offer(market), error="BlockhashNotFound")
        signature = await market.world.service.chain.send(raw)
        await market.world.service.chain.confirm(signature, timeout=30)
        return PlainTextResponse(_BODY)

    async with site(handler) as url:
        yield f"{url}/"


def _stored(market: Market) -> int:
    """Return the bytes of all stored responses."""
    size = select(func.coalesce(func.sum(func.length(idempotency.c.response)), 0))
    return int(market.world.service.db.read_now(lambda conn: conn.scalar(size)) or 0)


@pytest.mark.proves(
    "Limits: Stored resources of a wallet", "Idempotency: Paid resources", "FetchedResource(resource_expired)"
)
async def test_oldest_paid_resource_is_dropped_first(small: Market) -> None:
    buyer, other = await small.buyer(), await small.buyer()
    async with _selling(small) as url:
        bought = [await buyer.fetch(url, idempotencyKey=f"kept-{number}") for number in range(3)]
        others = await other.fetch(url, idempotencyKey="kept-other")

        again = [await buyer.fetch(url, idempotencyKey=f"kept-{number}") for number in range(3)]

        assert {one["payment"]["status"] for one in bought} == {"confirmed"}
        assert [one["resource_expired"] for one in bought] == [False] * 3
        assert again[0] == {**bought[0], "resource": None, "resource_expired": True}
        assert again[1:] == bought[1:]
        assert await other.fetch(url, idempotencyKey="kept-other") == others


@pytest.mark.proves("Idempotency: Paid resources", "FetchedResource(resource_expired)")
async def test_resource_received_before_its_payment_settles_is_stored(small: Market) -> None:
    # Given a resource that answers at once and whose facilitator settles later
    buyer, given = await small.buyer(), list[bytes]()

    async def handler(request: Request) -> Response:
        header = request.headers.get("payment-signature")
        if header is None:
            return demanding(offer(small))
        paid = settled(header, small.facilitator)
        if paid.message.recent_blockhash == Hash.default():
            return demanding(offer(small), error="BlockhashNotFound")
        given.append(bytes(paid))
        return PlainTextResponse(_BODY)

    async with site(handler) as url:
        # When three requests are repeated, for which there is room for two
        bought = [await buyer.fetch(f"{url}/", idempotencyKey=f"later-{number}") for number in range(3)]
        again = [await buyer.fetch(f"{url}/", idempotencyKey=f"later-{number}") for number in range(3)]
        for raw in given:
            await small.world.service.chain.confirm(await small.world.service.chain.send(raw), timeout=30)
        await small.world.catch_up()
        confirmed = [await buyer.fetch(f"{url}/", idempotencyKey=f"later-{number}") for number in range(3)]
        replayed = [await buyer.fetch(f"{url}/", idempotencyKey=f"later-{number}") for number in range(3)]

    # Then the newer ones are returned each time, and no payment is delivered twice
    assert {one["payment"]["status"] for one in (*bought, *again)} == {"pending"}
    assert {one["payment"]["status"] for one in confirmed} == {"confirmed"}
    assert again[0] == {**bought[0], "resource": None, "resource_expired": True}
    assert again[1:] == bought[1:]
    assert [(one["resource"], one["resource_expired"]) for one in confirmed] == [
        (one["resource"], one["resource_expired"]) for one in again
    ]
    assert replayed == confirmed
    assert len(given) == 3


@pytest.mark.proves("FetchedResource(resource_expired)")
async def test_resource_of_a_pending_payment_is_stored_for_a_day(small: Market) -> None:
    buyer = await small.buyer()

    async def handler(request: Request) -> Response:
        header = request.headers.get("payment-signature")
        if header is None:
            return demanding(offer(small))
        known = settled(header, small.facilitator).message.recent_blockhash != Hash.default()
        return PlainTextResponse("sunny") if known else demanding(offer(small), error="BlockhashNotFound")

    async with site(handler) as url:
        bought = await buyer.fetch(f"{url}/", idempotencyKey="day")
        await small.world.service.db.write(lambda conn: purge(conn, now_ms() + LIFETIME - 60_000))
        kept = await buyer.fetch(f"{url}/", idempotencyKey="day")
        await small.world.service.db.write(lambda conn: purge(conn, now_ms() + LIFETIME))
        dropped = await buyer.fetch(f"{url}/", idempotencyKey="day")

    assert (kept, bought["payment"]["status"]) == (bought, "pending")
    assert dropped == {**bought, "resource": None, "resource_expired": True}


@pytest.mark.proves("Idempotency: Free resources")
async def test_resource_that_cost_nothing_is_not_stored(small: Market) -> None:
    buyer, asked = await small.buyer(), []

    async def handler(request: Request) -> Response:
        asked.append(request)
        return PlainTextResponse(_BODY)

    before = _stored(small)
    async with site(handler) as url:
        first = await buyer.fetch(f"{url}/", idempotencyKey="for-nothing")
        second = await buyer.fetch(f"{url}/", idempotencyKey="for-nothing")

    assert _stored(small) == before
    assert first == second
    assert (first["payment"], first["resource"]["body"], len(asked)) == (None, _BODY, 2)


@pytest.mark.proves("action x402.fetch")
async def test_failed_quotes_and_fetches_write_no_audit_entries(small: Market) -> None:
    buyer = await small.buyer()

    async def handler(_request: Request) -> Response:
        return Response(b"not terms", 402)

    async with site(handler) as url:
        before = _entries(small)
        for _ in range(2):
            assert (await buyer.post("quote", url=f"{url}/")).status_code == 422
            assert (await buyer.post("fetch", url=f"{url}/", maxAmount="1")).status_code == 422
    assert (await buyer.post("quote", url="http://127.0.0.1:9/")).status_code == 422

    assert _entries(small) == before


@pytest.mark.proves("action x402.fetch")
async def test_requests_that_cost_nothing_write_a_limited_number_of_records(
    small: Market, monkeypatch: pytest.MonkeyPatch
) -> None:
    buyer, other = await small.buyer(), await small.buyer()
    monkeypatch.setattr("app.store.daily_counts.MAX_RECORDS", 3)

    async def handler(_request: Request) -> Response:
        return PlainTextResponse("free")

    async with site(handler) as url:
        before = _entries(small)
        for _ in range(4):
            await buyer.fetch(f"{url}/")
            assert (await buyer.post("quote", url=f"{url}/")).status_code == 200
        assert _entries(small) == before + 3
        await other.fetch(f"{url}/")
        assert _entries(small) == before + 4


async def test_resource_cannot_store_facilitators_without_limit(small: Market, monkeypatch: pytest.MonkeyPatch) -> None:
    buyer = await small.buyer()
    monkeypatch.setattr("app.store.daily_counts.MAX_RECORDS", 1)
    for _ in range(2):
        async with _selling(small) as url:
            await buyer.fetch(url)

    known = small.world.service.db.read_now(lambda conn: conn.scalar(select(func.count()).select_from(facilitators)))
    async with _selling(small) as url:
        assert (await buyer.fetch(url))["payment"]["status"] == "confirmed"
    after = small.world.service.db.read_now(lambda conn: conn.scalar(select(func.count()).select_from(facilitators)))
    assert after == known


def _entries(market: Market) -> int:
    query = select(func.count()).select_from(audit_entries)
    return int(market.world.service.db.read_now(lambda conn: conn.scalar(query)) or 0)
