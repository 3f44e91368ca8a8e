"""GET /v1/events: filters, severities, payloads, pages and retention."""

import asyncio
import time
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from solders.keypair import Keypair

from app.audit.publisher import HeadPublisher
from app.core.event_catalogue import EVENTS
from app.core.timestamps import now_ms
from app.exports.exporter import Exporter
from app.server.housekeeping import Housekeeping
from app.store.feed import append_event, feed
from app.store.retention import delete_events
from tests.support.escrows import agent, of, shows_output
from tests.support.service_world import Json, ServiceWorld, error_of

pytestmark = pytest.mark.asyncio(loop_scope="module")

_DAY = 86_400_000


async def _events(world: ServiceWorld, query: str = "", key: str | None = None) -> list[Json]:
    return list((await world.ok("GET", f"/v1/events?limit=100&{query}", key=key))["data"])


async def _names(world: ServiceWorld, query: str = "") -> list[str]:
    return [one["event"] for one in await _events(world, query)]


async def _append(
    world: ServiceWorld,
    event_id: str,
    timestamp: int,
    type: str = "wallet.funded",  # noqa: A002
    **fields: Any,
) -> None:
    org = fields.pop("org", world.org)
    await world.service.db.write(
        lambda conn: append_event(
            conn, event_id=event_id, org=org, type=type, timestamp=timestamp, payload={}, **fields
        )
    )


def _payment(wallet: Json, to: str) -> Json:
    return {"walletId": wallet["wallet_id"], "to": to, "amount": "1", "currency": "USDC"}


def _batch(wallet: Json) -> Json:
    return {"allocations": [{"walletId": wallet["wallet_id"], "amount": "2"}], "currency": "USDC"}


@pytest.mark.proves(
    "GET /v1/events", "event transaction.blocked", "GET /v1/events(type, event, walletId, severity)", "Event(event)"
)
async def test_filters_narrow_and_combine(world: ServiceWorld) -> None:
    policy = await world.policy(maxPerTx="5")
    wallet, other, to = await world.wallet(policy["policy_id"]), await world.wallet(), await world.payee()
    await world.pay(wallet, to, "1")
    await world.pay(wallet, to, "9")
    await world.pay(other, to, "1")
    mine = f"walletId={wallet['wallet_id']}"

    assert await _names(world, mine) == [
        "transaction.blocked",
        "transaction.completed",
        "transaction.pending",
        "wallet.funded",
        "wallet.created",
    ]
    assert await _names(world, f"{mine}&type=wallet.created,wallet.funded") == ["wallet.funded", "wallet.created"]
    assert await _names(world, f"{mine}&event=wallet.created") == ["wallet.created"]
    assert await _names(world, f"{mine}&severity=warning") == ["transaction.blocked"]
    assert await _names(world, f"{mine}&severity=warning&type=transaction.completed") == []
    assert await _names(world, f"{mine}&severity=critical") == []
    assert await _names(world, f"wallet_id={wallet['wallet_id']}&severity=info&type=wallet.created") == [
        "wallet.created"
    ]
    created = await _events(world, "type=wallet.created")
    assert {one["wallet_id"] for one in created} >= {wallet["wallet_id"], other["wallet_id"]}


async def test_events_within_a_second_are_listed_and_found_in_order(world: ServiceWorld) -> None:
    to, started = await world.payee(), (await _events(world))[0]["timestamp"]
    wallet = await world.wallet(funds=None)
    mine, path = f"walletId={wallet['wallet_id']}", f"/v1/wallets/{wallet['wallet_id']}"
    steps: list[tuple[str, str, Json, list[str]]] = [
        ("POST", f"{path}/fund", {"amount": "5"}, ["wallet.funded"]),
        ("PATCH", path, {"status": "frozen"}, ["wallet.frozen"]),
        ("PATCH", path, {"status": "active"}, ["wallet.unfrozen"]),
        ("POST", "/v1/payments", _payment(wallet, to), ["transaction.completed", "transaction.pending"]),
        ("POST", "/v1/wallets/fund-batch", _batch(wallet), ["wallet.funded"]),
    ]
    happened = ["wallet.created"]
    for method, where, body, events in steps:
        last = (await _events(world, mine))[0]["timestamp"]
        await world.ok(method, where, body)
        happened[:0] = events
        # A client that asks from the time of its last event misses none.
        assert (await _names(world, f"{mine}&from={last}"))[: len(events)] == events
    assert await _names(world, f"{mine}&from={started}") == happened

    rows = (await world.ok("GET", f"{path}/transactions"))["data"]
    assert [(row["type"], row["amount"]) for row in rows] == [
        ("funding", "2.00"),
        ("payment", "1.00"),
        ("funding", "5.00"),
    ]
    assert (await world.ok("GET", path))["updated_at"] >= rows[0]["timestamp"]


async def test_creating_or_deleting_a_policy_with_a_list_is_no_update(world: ServiceWorld) -> None:
    made = await world.policy(allowedRecipients=[await world.payee()])
    clone = await world.ok("POST", f"/v1/policies/{made['policy_id']}/clone", {"name": "Copy"})
    await world.ok("PATCH", f"/v1/policies/{made['policy_id']}", {"maxPerTx": "1"})
    await world.ok("DELETE", f"/v1/policies/{clone['policy_id']}")
    await world.ok("DELETE", f"/v1/policies/{made['policy_id']}")

    updates = [one for one in await _events(world, "type=policy.updated") if "policy_id" in one]

    ours = {made["policy_id"], clone["policy_id"]}
    assert [(one["policy_id"], list(one["changes"])) for one in updates if one["policy_id"] in ours] == [
        (made["policy_id"], ["max_per_tx"])
    ]


@pytest.mark.proves("GET /v1/events", "GET /v1/events(from, to)", "Event(timestamp)")
async def test_time_bounds_are_exact_and_combine_with_the_others(world: ServiceWorld) -> None:
    wallet = await world.wallet()
    mine = f"walletId={wallet['wallet_id']}"
    [created] = await _events(world, f"{mine}&type=wallet.created")
    moment = datetime.fromisoformat(created["timestamp"])

    def at(milliseconds: int) -> str:
        return (moment + timedelta(milliseconds=milliseconds)).strftime("%Y-%m-%dT%H:%M:%S.%f")[:-3] + "Z"

    query = f"{mine}&type=wallet.created"
    assert len(await _events(world, f"{query}&from={at(0)}&to={at(1)}")) == 1
    assert await _events(world, f"{query}&from={at(1)}") == []
    assert await _events(world, f"{query}&to={at(0)}") == []


@pytest.mark.proves("GET /v1/events(type, event)")
@pytest.mark.parametrize(
    "query",
    [
        "type=unknown",
        "type=",
        "type=wallet.created,",
        "type=wallet.created&event=wallet.created",
        "severity=loud",
        "severity=",
        "from=yesterday",
        "limit=101",
        "cursor=nonsense",
        "wallet=wal_x",
    ],
)
async def test_bad_filter_is_refused(world: ServiceWorld, query: str) -> None:
    error_of(await world.call("GET", f"/v1/events?{query}"), 400, "invalid_request")


@pytest.mark.proves(
    "event transaction.pending",
    "event wallet.created",
    "event wallet.funded",
    "event wallet.frozen",
    "event wallet.unfrozen",
    "event policy.updated",
    "event policy.expired",
    "event escrow.created",
    "event escrow.completed",
    "event escrow.released",
    "event escrow.refunded",
    "event escrow.disputed",
    "event org.deposit_confirmed",
    "event export.ready",
    "event audit.head",
    "Event(severity)",
)
async def test_severities_and_payloads_are_those_of_the_catalogue(own_world: ServiceWorld) -> None:
    world = own_world
    # Given one of every event except alerts, which need rules
    ends = datetime.fromtimestamp(time.time() + 9_000, UTC).isoformat()
    policy = await world.policy(maxPerTx="50", expiry=ends, allowAllowances=True)
    paying, receiving = await agent(world, policy["policy_id"]), await agent(world)
    wallet, to = paying.wallet, await world.payee()
    path = f"/v1/wallets/{wallet['wallet_id']}"
    await world.pay(wallet, to, "1")
    await world.pay(wallet, to, "60")
    capped = await agent(world, (await world.policy(newRecipientCap="5"))["policy_id"])
    for amount in ("1", "9"):
        await world.pay(capped.wallet, to, amount, session=capped.session)
    await world.ok("POST", f"/v1/wallets/{capped.id}/forget-recipient", {"recipient": to})
    granted = {"amount": "1", "destination": to, "delegate": str(Keypair().pubkey())}
    allowance = (await world.ok("POST", f"{path}/allowances", granted))["allowance_id"]
    await world.ok("POST", f"{path}/allowances/{allowance}/settle", {})
    await world.ok("PATCH", path, {"status": "frozen"})
    await world.ok("PATCH", path, {"status": "active"})
    await world.ok("PATCH", f"/v1/policies/{policy['policy_id']}", {"maxPerTx": "40"})
    budget = (await world.ok("POST", "/v1/budgets", {"name": "Team"}))["budget_id"]
    await world.ok("PATCH", f"/v1/budgets/{budget}", {"maxPerDay": "500"})
    await world.ok("PATCH", f"/v1/budgets/{budget}", {"name": "Renamed"})
    for status in ("frozen", "active"):
        await world.ok("PATCH", f"/v1/budgets/{budget}", {"status": status})
    await world.ok("PATCH", path, {"budgetId": budget})
    await world.ok("PATCH", path, {"budgetId": None})
    await world.ok("DELETE", f"/v1/budgets/{budget}", {})
    escrow = await paying.lock(receiving)
    await receiving.ok("POST", of(escrow, "complete"), shows_output())
    late = await paying.lock(receiving, timeoutSeconds=60)
    disputed = await paying.lock(receiving)
    await paying.ok("POST", of(disputed, "dispute"), {"reason": "late"})
    await paying.ok("POST", of(disputed, "dispute/withdraw"))
    await receiving.ok("POST", of(disputed, "dispute"), {"reason": "late"})
    await world.ok("POST", of(disputed, "resolve"), {"decision": "refund"})
    await world.localnet.mint_usdc(world.build.reserve_tokens, 5)
    started = await world.ok("POST", "/v1/transactions/export", {"format": "csv"})
    await world.later(10_000)
    await world.keeper().tick()
    await world.service.indexer.check()
    await world.catch_up()
    await world.service.part(Exporter).tick()
    await HeadPublisher(world.service.db, days=0, clock=lambda: time.time() + 90_000).tick()

    # Then each has the severity and the fields of the catalogue
    events = await _events(world)
    alerts = {
        "balance.low",
        "alert.inactivity",
        "alert.velocity_spike",
        "alert.large_transaction",
        "alert.refusals",
        "alert.new_payees",
        "alert.brake_repeated",
        "alert.sol_limit",
    }
    alerts |= {"reconciliation.difference", "reconciliation.cleared", "x402.paid_without_resource"}
    alerts |= {"allowance.discrepancy", "allowance.overdue", "index.incomplete"}
    alerts |= {"database.commits_lost", "transaction.forgotten", "key.revoked", "key.expiring", "key.used_outside"}
    alerts |= {"person.joined", "person.removed", "webhook.degraded", "alert.month_limit", "alert.budget_limit"}
    alerts |= {"approval.requested", "approval.decided", "approval.expired", "wallet.payments_refused"}
    alerts |= {"org.paused", "org.resumed", "approval.given", "approval.reminder", "slack.changed"}
    assert {one["event"] for one in events} == set(EVENTS) - {"ping"} - alerts
    common = {"event_id", "event", "severity", "summary", "timestamp"}
    for one in events:
        kind = EVENTS[one["event"]]
        after_dispute = one["event"] == "escrow.refunded" and one["escrow_id"] == disputed["escrow_id"]
        assert one["severity"] == ("critical" if after_dispute else kind.severity), one
        assert set(one) - common - set(kind.optional) == set(kind.fields), one
        assert one["summary"]
    assert {one["event"] for one in events if one["severity"] == "critical"} == {
        *("wallet.frozen", "budget.frozen"),
        "escrow.refunded",
    }
    assert {one["escrow_id"] for one in events if one["event"] == "escrow.refunded"} == {
        late["escrow_id"],
        disputed["escrow_id"],
    }
    assert [one["export_id"] for one in events if one["event"] == "export.ready"] == [started["export_id"]]


async def test_pages_hold_every_event_once_while_events_arrive(world: ServiceWorld) -> None:
    wallet = await world.wallet(funds=None)
    now, identifier = now_ms(), wallet["wallet_id"]
    # Several in one millisecond, so that only their positions differ.
    for number in range(7):
        await _append(world, f"evt_page_{number}", now, wallet_id=identifier, type="wallet.unfrozen")
    path, seen, cursor = f"/v1/events?walletId={identifier}&type=wallet.unfrozen&limit=3", [], ""
    while True:
        page = await world.ok("GET", path + cursor)
        seen += [one["event_id"] for one in page["data"]]
        await _append(world, f"evt_new_{len(seen)}", now_ms() + 1, wallet_id=identifier, type="wallet.unfrozen")
        if not page["has_more"]:
            break
        cursor = f"&cursor={page['next_cursor']}"

    assert seen == [f"evt_page_{number}" for number in reversed(range(7))]


@pytest.mark.proves("Limits: Events")
async def test_events_are_kept_for_90_days_in_every_organisation(own_world: ServiceWorld) -> None:
    world = own_world
    other = await world.organisation("old-events")
    now = now_ms()
    await asyncio.gather(
        *(_append(world, f"evt_old_{number}", now - 90 * _DAY - 1 - number) for number in range(1_200))
    )
    await _append(world, "evt_edge", now - 90 * _DAY)
    await _append(world, "evt_theirs", now - 91 * _DAY, org=other)
    rounds = Housekeeping(world.service.db, interval=60, days=90, requests=0, chain_clock=lambda: now)

    assert await rounds.tick() == 1_201
    assert await rounds.tick() == 0

    ids = [one.event_id for one in world.service.db.read_now(lambda conn: feed(conn, world.org, limit=1_000)).data]
    assert ids[-1] == "evt_edge"
    assert not [one for one in ids if one.startswith("evt_old")]


async def test_one_transaction_deletes_a_bounded_number(own_world: ServiceWorld) -> None:
    now = now_ms()
    for number in range(30):
        await _append(own_world, f"evt_{number}", now - number)
    db = own_world.service.db

    def newest_first() -> list[str]:
        return [one.event_id for one in db.read_now(lambda conn: feed(conn, own_world.org, limit=100)).data]

    before = newest_first()
    assert await db.write(lambda conn: delete_events(conn, now + 1, most=20)) == 20
    assert newest_first() == before[:-20]
