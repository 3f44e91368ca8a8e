"""What a key of an agent or a viewer adds to the disk in a day: each kind of record, multiplied by its limit."""

import asyncio
from pathlib import Path

import pytest
from sqlalchemy import Connection, select, text
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from app.access.keyring import Principal
from app.access.recorder import MAX_BY_MINUTE, Recorder
from app.alerts._rules import Rules
from app.alerts.messages import compose
from app.alerts.models import MAX_EMAILS
from app.chain.rules import RULES
from app.core.actors import Actor
from app.core.identifiers import random_id
from app.core.settings import Settings
from app.core.timestamps import iso_ms, now_ms
from app.core.transaction_types import PURPOSES
from app.database.records import fetch_all
from app.exports.service import MAX_LIVE, MAX_ROWS, MAX_ROWS_OF_AGENT
from app.store.alert_kinds import EVENT_OF
from app.store.alert_mails import queue
from app.store.alerts import AlertRule
from app.store.daily_counts import MAX_RECORDS
from app.store.feed import FeedEvent
from app.store.feed import table as feed
from app.store.request_log import RequestRecord, insert_requests
from app.store.x402 import put_facilitator
from tests.support.http import site
from tests.support.service_world import ServiceWorld, error_of
from tests.x402.conftest import Buyer, opened

pytestmark = pytest.mark.asyncio(loop_scope="module")

_MEASURED = 100
_ALLOWED = 100_000_000
_LONG = "x" * 500
_CAUSED = 4
"""Types of alerts that an agent can cause: refusals, large payments, many payments and a low balance."""


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


class _Day:
    """The bytes that records of each kind add in a day. The test makes `_MEASURED` records of a kind."""

    def __init__(self, world: ServiceWorld) -> None:
        self.world = world
        self.added: dict[str, float] = {}

    async def measure(self, kind: str, before: int, times: int) -> None:
        self.added[kind] = (await _bytes(self.world) - before) / _MEASURED * times

    async def log_requests(self, wallet_id: str) -> None:
        before = await _bytes(self.world)
        rows = [
            RequestRecord(
                request_id=random_id("req_"),
                org=self.world.org,
                key_id=random_id("key_"),
                timestamp=now_ms(),
                method="DELETE",
                path=_LONG[:128],
                status=404,
                code="wallet_insufficient_balance",
                duration_ms=1_000,
                wallet_id=wallet_id,
            )
            for _ in range(10 * _MEASURED)
        ]
        self.world.service.db.write_now(lambda conn: insert_requests(conn, rows))
        await self.measure("request log", before, Settings().request_log_size // 10)

    async def export(self, key: str) -> float:
        """Make as many exports as a key may have, and return the bytes of a transaction in a file."""
        before = await _bytes(self.world)
        for _ in range(MAX_LIVE // 4):
            made = await self.world.ok("POST", "/v1/transactions/export", {"format": "json"}, key=key)
            while made["status"] == "processing":
                await asyncio.sleep(0.01)
                made = await self.world.ok("GET", f"/v1/transactions/exports/{made['export_id']}", key=key)
        # One lot can expire and be followed by another in a day.
        self.added["export records"] = 2 * (await _bytes(self.world) - before)
        [file] = list((self.world.settings.data_dir / "exports").glob(f"{made['export_id']}*"))
        return float(file.stat().st_size / made["rows"])


@pytest.mark.proves("Limits: Bytes that an agent's key adds in a day, apart from its payments")
async def test_agents_key_adds_at_most_100_mb_in_a_day(tmp_path: Path) -> None:
    defaults = Settings()
    async with opened(tmp_path) as market:
        world, buyer = market.world, await market.buyer(maxPerTx="0.01")
        assert world.service.db.node == ""
        day = _Day(world)
        added, measure = day.added, day.measure

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

        await day.log_requests(buyer.wallet["wallet_id"])
        agent = market.world.key("agent", buyer.wallet["wallet_id"])
        added["exported rows"] = await day.export(agent) * MAX_ROWS_OF_AGENT

        before = await _bytes(world)
        world.service.db.write_now(lambda conn: _mail(conn, world.org))
        # A wallet's share of each hour and a summary, for each address of the alerts that an agent can cause.
        hourly = defaults.alert_emails_per_hour // 4 + 1
        await measure("mails", before, 24 * hourly * MAX_EMAILS * _CAUSED)

        added["resources"] = defaults.x402_kept_bytes + 2 * defaults.x402_max_bytes
    assert sum(added.values()) <= _ALLOWED, added
    assert min(added.values()) > 0, added


@pytest.mark.proves("Limits: Bytes that a viewer's key adds in a day, apart from the files of its exports")
async def test_viewers_key_adds_at_most_50_mb_in_a_day(tmp_path: Path) -> None:
    async with ServiceWorld(tmp_path / "service") as world:
        day, wallet = _Day(world), await world.wallet()
        await world.pay(wallet, await world.payee(), "1", body={"memo": _LONG})
        recorder = world.service.part(Recorder)
        networks = [{"network": f"2001:db8:{number}::/64", "count": 10} for number in range(10)]
        viewer = Principal(Actor("key", random_id("key_")), world.org, "viewer", None, "2001:db8::1", random_id("req_"))
        refused = viewer.entry("access.refused", operation="PATCH /v1/wallets/{wallet_id}/approvals", count=1)
        before = await _bytes(world)
        for _ in range(_MEASURED):
            recorder.later(refused.about(networks=networks, since=iso_ms(now_ms())))
        await recorder.tick()
        operations = sum(map(len, (await world.ok("GET", "/openapi.json"))["paths"].values()))
        # An operation has two entries: one of the first refusal in a minute or an hour, and one of its repeats.
        await day.measure("refusals", before, 2 * (MAX_BY_MINUTE + 24 * operations))

        await day.log_requests(wallet["wallet_id"])
        row = await day.export(world.key("viewer"))
    assert sum(day.added.values()) <= 50_000_000, day.added
    assert min(day.added.values()) > 0, day.added
    assert row * MAX_ROWS // 4 <= 4_000_000_000


async def _rotate(buyer: Buyer) -> None:
    path = f"/v1/wallets/{buyer.wallet['wallet_id']}/rotate-token"
    headers = {"Session-Token": buyer.session}
    answer = await buyer.world.call("POST", path, {}, key=buyer.key, headers=headers)
    assert answer.status_code == 200, answer.text
    buyer.session = answer.json()["session_token"]


def _mail(conn: Connection, org: str) -> None:
    """Queue e-mails about a refusal to as many addresses as are measured."""
    refusals = select(feed).where(feed.c.type == EVENT_OF["policy_violation"]).limit(1)
    addresses = [f"{number:03}{_LONG[:40]}@example.com" for number in range(_MEASURED)]
    rule = AlertRule(org, "policy_violation", org, True, None, addresses, 0)
    rules: Rules = {(org, "policy_violation"): rule}
    queue(conn, compose(conn, fetch_all(conn, FeedEvent, refusals), rules, now_ms(), hourly=0, dashboard=""))
