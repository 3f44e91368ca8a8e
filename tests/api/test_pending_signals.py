"""Events about pending work: approvals, refusals without a transaction, limits nearly used up, and pauses."""

import pytest
from sqlalchemy import select

from app.access.request_log import RequestLog, store_requests
from app.alerts.spending import report_spending
from app.core.event_catalogue import EVENTS
from app.core.timestamps import HOUR, now_ms
from app.server.housekeeping import Housekeeping
from app.store.attempts import pending_attempts
from app.store.daily_counts import MAX_RECORDS, table
from app.store.request_log import RequestRecord, request_log
from app.store.stopped_payments import report_stopped
from app.submission.recovery import Recovery
from tests.support.service_world import Json, ServiceWorld, error_of

pytestmark = pytest.mark.asyncio(loop_scope="module")

_EXPIRY_SECONDS = 90.0
"""Seconds after which a lost transaction can no longer land."""
_OF_EVERY = {"event_id", "event", "severity", "summary", "timestamp"}


async def _events(world: ServiceWorld, event: str, wallet: Json | None = None) -> list[Json]:
    """The events of a type, oldest first."""
    narrowed = "" if wallet is None else f"&walletId={wallet['wallet_id']}"
    found = list(reversed((await world.ok("GET", f"/v1/events?type={event}{narrowed}"))["data"]))
    for one in found:
        assert set(one) - _OF_EVERY == set(EVENTS[event].fields)
        assert one["severity"] == EVENTS[event].severity
    return found


async def _agent(world: ServiceWorld, **rules: str) -> tuple[Json, str, str]:
    """A wallet, the key of its agent and the token of its session."""
    wallet = await world.wallet((await world.policy(**rules))["policy_id"])
    return wallet, world.key("agent", wallet["wallet_id"]), await world.session(wallet)


def _housekeeping(world: ServiceWorld) -> Housekeeping:
    clock = world.service.clock.seen_ms
    return Housekeeping(world.service.db, interval=60, days=90, requests=100, chain_clock=clock)


@pytest.mark.proves("event approval.requested", "event approval.decided")
async def test_request_and_each_decision_are_reported(own_world: ServiceWorld) -> None:
    world = own_world
    wallet, key, session = await _agent(world, requireCoSign="10")
    to = await world.payee()

    ids = []
    for amount in ("20", "20", "30"):
        answer = await world.pay(wallet, to, amount, key=key, session=session, body={"memo": "<b>Order</b>"})
        ids.append(error_of(answer, 402, "policy_violation")["approval_id"])
    asked = await _events(world, "approval.requested", wallet)
    # An equal request asks for nothing new.
    assert [one["approval_id"] for one in asked] == [ids[0], ids[2]]
    shown = await world.ok("GET", f"/v1/approvals/{ids[0]}")
    same = ("wallet_id", "recipient", "recipient_address", "amount", "memo", "requested_by", "expires_at")
    assert {name: asked[0][name] for name in same} == {name: shown[name] for name in same}
    assert (asked[0]["purpose"], asked[0]["timestamp"]) == ("payment", shown["created_at"])

    await world.ok("POST", f"/v1/approvals/{ids[0]}/approve", {})
    await world.ok("POST", f"/v1/approvals/{ids[2]}/reject", {})
    await world.catch_up()
    await world.ok("POST", f"/v1/approvals/{ids[0]}/reject", {})
    await world.catch_up()
    decided = await _events(world, "approval.decided", wallet)
    assert {(one["approval_id"], one["decision"]) for one in decided} == {
        (ids[0], "approved"),
        (ids[0], "rejected"),
        (ids[2], "rejected"),
    }
    by = (await world.ok("GET", f"/v1/approvals/{ids[0]}"))["decided_by"]
    assert [one["decided_by"] for one in decided] == [by] * 3


async def test_used_approval_is_decided_once(own_world: ServiceWorld) -> None:
    world = own_world
    wallet, key, session = await _agent(world, requireCoSign="10")
    to = await world.payee()
    refused = await world.pay(wallet, to, "20", key=key, session=session)
    await world.ok("POST", f"/v1/approvals/{refused.json()['error']['approval_id']}/approve", {})
    await world.catch_up()
    assert (await world.pay(wallet, to, "20", key=key, session=session)).status_code == 200
    await world.catch_up()

    assert [one["decision"] for one in await _events(world, "approval.decided", wallet)] == ["approved"]


@pytest.mark.proves("event approval.expired")
async def test_request_without_a_decision_is_reported_when_it_expires(own_world: ServiceWorld) -> None:
    world = own_world
    wallet, key, session = await _agent(world, requireCoSign="10")
    to, rounds = await world.payee(), _housekeeping(world)
    await rounds.tick()
    ids = []
    for amount in ("20", "30", "40"):
        refused = await world.pay(wallet, to, amount, key=key, session=session)
        ids.append(refused.json()["error"]["approval_id"])
    await world.ok("POST", f"/v1/approvals/{ids[2]}/reject", {})
    await rounds.tick()
    assert await _events(world, "approval.expired", wallet) == []

    await world.later(24 * 3600 + 1)
    for _ in range(2):
        await rounds.tick()
    assert [one["approval_id"] for one in await _events(world, "approval.expired", wallet)] == ids[:2]


async def test_request_whose_decision_failed_still_waits_and_expires(own_world: ServiceWorld) -> None:
    world = own_world
    wallet, key, session = await _agent(world, requireCoSign="10")
    refused = await world.pay(wallet, await world.payee(), "20", key=key, session=session)
    approval_id, rounds = refused.json()["error"]["approval_id"], _housekeeping(world)
    await rounds.tick()
    world.line.lose_requests = lambda method: method == "sendTransaction"
    error_of(await world.call("POST", f"/v1/approvals/{approval_id}/approve", {}), 503, "chain_unavailable")
    world.line.mend()
    world.clock.ahead += _EXPIRY_SECONDS
    await world.service.part(Recovery).recover()
    assert world.service.db.read_now(pending_attempts) == []

    await world.later(24 * 3600 + 1)
    await rounds.tick()

    assert [one["approval_id"] for one in await _events(world, "approval.expired", wallet)] == [approval_id]


@pytest.mark.proves("Limits: Events about requested approvals of a wallet")
async def test_requests_beyond_a_days_number_are_not_reported(own_world: ServiceWorld) -> None:
    world = own_world
    wallet, key, session = await _agent(world, requireCoSign="10")
    to = await world.payee()
    await world.pay(wallet, to, "20", key=key, session=session)
    full = table.update().where(table.c.kind == "approval").values(count=MAX_RECORDS)
    await world.service.db.write(lambda conn: conn.execute(full))
    await world.pay(wallet, to, "30", key=key, session=session)

    assert [one["amount"] for one in await _events(world, "approval.requested", wallet)] == ["20.00"]


@pytest.mark.proves("event org.paused", "event org.resumed")
async def test_pause_and_its_end_are_reported_once(own_world: ServiceWorld) -> None:
    world = own_world
    for paused in (True, True, False, False):
        await world.ok("POST", "/v1/organization/pause", {"paused": paused})
        await world.catch_up()
    # Another change of the organisation reports neither.
    await world.ok("PATCH", "/v1/organization", {"solPerDay": "1"})

    assert len(await _events(world, "org.paused")) == len(await _events(world, "org.resumed")) == 1


@pytest.mark.proves("event wallet.payments_refused")
async def test_first_refusal_is_reported_at_once_and_others_hourly(own_world: ServiceWorld) -> None:
    world = own_world
    log, db = world.service.part(RequestLog), world.service.db
    wallet, other, to = await world.wallet(), await world.wallet(funds=None), await world.payee()

    async def refuse(paying: Json, code: str, times: int = 1) -> None:
        for _ in range(times):
            error_of(await world.pay(paying, to, "1"), 422, code)
        await log.tick()

    async def told(paying: Json) -> list[tuple[str, int]]:
        return [(one["reason"], one["refusals"]) for one in await _events(world, "wallet.payments_refused", paying)]

    await refuse(other, "wallet_insufficient_balance")
    await world.ok("PATCH", f"/v1/wallets/{wallet['wallet_id']}", {"status": "frozen"})
    await refuse(wallet, "wallet_frozen")
    await refuse(wallet, "wallet_frozen", 3)
    assert await told(wallet) == [("wallet_frozen", 1)]
    assert await told(other) == [("wallet_insufficient_balance", 1)]

    # A batch written by a doubtful commit is written again.
    again = await db.read(lambda conn: conn.execute(select(request_log)).mappings().all())
    await db.write(lambda conn: store_requests(conn, [RequestRecord(**one) for one in again]))

    later = now_ms() + HOUR
    for _ in range(2):
        await db.write(lambda conn: report_stopped(conn, later, most=10))
    assert await told(wallet) == [("wallet_frozen", 1), ("wallet_frozen", 3)]
    # After an hour without a refusal, the next one is the first again.
    await db.write(lambda conn: report_stopped(conn, later + HOUR, most=10))
    await refuse(wallet, "wallet_frozen")
    assert sorted(await told(wallet)) == [("wallet_frozen", 1), ("wallet_frozen", 1), ("wallet_frozen", 3)]


@pytest.mark.proves("event alert.month_limit", "event alert.budget_limit")
async def test_four_fifths_of_a_month_and_of_a_budget_are_reported_once(own_world: ServiceWorld) -> None:
    world, to = own_world, await own_world.payee()
    wallet = await world.wallet((await world.policy(maxPerMonth="10"))["policy_id"])
    above = await world.ok("POST", "/v1/budgets", {"name": "Company", "maxTotal": "12"})
    body = {"name": "Ads", "maxPerDay": "20", "maxPerMonth": "1000", "parentId": above["budget_id"]}
    budget = await world.ok("POST", "/v1/budgets", body)
    path = f"/v1/wallets/{wallet['wallet_id']}"
    await world.ok("PATCH", path, {"budgetId": budget["budget_id"]})
    await world.catch_up()
    vault = wallet["chain_address"]

    async def spend(amount: str) -> None:
        await world.pay(wallet, to, amount)
        for _ in range(2):
            await report_spending(world.service, [vault])

    await spend("7.99")
    assert await _events(world, "alert.month_limit") == []
    await spend("0.01")
    [month] = await _events(world, "alert.month_limit", wallet)
    assert (month["period"], month["spent"], month["limit"]) == ("month", "8.00", "10.00")
    await world.ok("PATCH", f"/v1/budgets/{budget['budget_id']}", {"maxPerDay": "10"})
    await spend("1")
    assert len(await _events(world, "alert.month_limit", wallet)) == 1
    [day] = await _events(world, "alert.budget_limit")
    assert (day["budget_id"], day["name"], day["period"], day["spent"]) == (budget["budget_id"], "Ads", "day", "9.00")
    # Another limit is another alert.
    await world.ok("PATCH", f"/v1/budgets/{budget['budget_id']}", {"maxPerDay": "11"})
    await spend("0.5")
    assert len(await _events(world, "alert.budget_limit")) == 2
    # The total of the parent is reported, too, and only once.
    for amount in ("0.3", "0.1"):
        await spend(amount)
    total = [one for one in await _events(world, "alert.budget_limit") if one["budget_id"] == above["budget_id"]]
    assert [(one["name"], one["period"], one["spent"]) for one in total] == [("Company", "total", "9.80")]
