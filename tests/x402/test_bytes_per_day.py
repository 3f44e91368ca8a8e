"""What an agent's key adds to the disk in a day, measured for each kind of record and multiplied by its limit."""

from pathlib import Path

import pytest
from sqlalchemy import text
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from app.chain.rules import RULES
from app.core.identifiers import random_id
from app.core.settings import Settings
from app.core.timestamps import now_ms
from app.core.transaction_types import PURPOSES
from app.store.daily_counts import MAX_RECORDS
from app.store.request_log import RequestRecord, insert_requests
from app.store.x402 import put_facilitator
from tests.support.http import site
from tests.support.service_world import ServiceWorld, error_of
from tests.x402.conftest import Buyer, opened

pytestmark = pytest.mark.asyncio(loop_scope="module")

_MEASURED = 100
_ALLOWED = 100_000_000
_LONG = "x" * 500


async def _bytes(world: ServiceWorld) -> int:
    """Return the used bytes of the service's database."""
    await world.catch_up()

    def used(conn: object) -> int:
        pages, free, size = (
            conn.scalar(text(f"PRAGMA {name}"))  # type: ignore[attr-defined]
            for name in ("page_count", "freelist_count", "page_size")
        )
        return int((pages - free) * size)

    return world.service.db.read_now(used)


async def test_agents_key_adds_at_most_100_mb_in_a_day(tmp_path: Path) -> None:
    defaults = Settings()
    async with opened(tmp_path) as market:
        world, buyer = market.world, await market.buyer(maxPerTx="0.01")
        assert world.service.db.node == ""
        added: dict[str, float] = {}

        async def measure(kind: str, before: int, times: int) -> None:
            added[kind] = ((await _bytes(world)) - before) / _MEASURED * times

        before = await _bytes(world)
        for _ in range(_MEASURED):
            refused = await world.pay(buyer.wallet, market.payee, "2", session=buyer.session, body={"memo": _LONG})
            error_of(refused, 402, "policy_violation")
        hourly = 24 * len(PURPOSES) * len(RULES)
        await measure("refusals", before, MAX_RECORDS + hourly)

        async def free(_request: Request) -> Response:
            return PlainTextResponse("free")

        async with site(free) as url:
            before = await _bytes(world)
            for number in range(_MEASURED):
                await buyer.fetch(f"{url}/", idempotencyKey=f"{number}")
            await measure("requests", before, MAX_RECORDS)

        before = await _bytes(world)
        for _ in range(_MEASURED):
            await _rotate(buyer)
        await measure("rotations", before, MAX_RECORDS)

        before = await _bytes(world)
        for number in range(_MEASURED):
            key = (world.org, f"https://{_LONG[:240]}.example:{number}", market.payee)
            world.service.db.write_now(lambda conn, key=key: put_facilitator(conn, *key, accepts=True, now=now_ms()))  # type: ignore[misc]
        await measure("facilitators", before, MAX_RECORDS)

        before = await _bytes(world)
        rows = [
            RequestRecord(
                request_id=random_id("req_"),
                org=world.org,
                key_id=random_id("key_"),
                timestamp=now_ms(),
                method="DELETE",
                path=_LONG[:128],
                status=404,
                code="wallet_insufficient_balance",
                duration_ms=1_000,
                wallet_id=buyer.wallet["wallet_id"],
            )
            for _ in range(10 * _MEASURED)
        ]
        world.service.db.write_now(lambda conn: insert_requests(conn, rows))
        await measure("request log", before, defaults.request_log_size // 10)

        added["resources"] = defaults.x402_kept_bytes + 2 * defaults.x402_max_bytes
    assert sum(added.values()) <= _ALLOWED, added
    assert min(added.values()) > 0, added


async def _rotate(buyer: Buyer) -> None:
    path = f"/v1/wallets/{buyer.wallet['wallet_id']}/rotate-token"
    headers = {"Session-Token": buyer.session}
    answer = await buyer.world.call("POST", path, {}, key=buyer.key, headers=headers)
    assert answer.status_code == 200, answer.text
    buyer.session = answer.json()["session_token"]
