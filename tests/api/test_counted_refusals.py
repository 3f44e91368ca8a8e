"""Refusals of a wallet beyond its daily number share a row and an event for each hour, type and rule."""

import asyncio
from collections import Counter

import pytest
from sqlalchemy import func, select

from app.alerts.watcher import Watcher
from app.core.timestamps import HOUR
from app.payments.refusals import report_refusals
from app.server.housekeeping import Housekeeping
from app.store.alert_mails import begin
from app.store.attempts import table as attempts
from app.store.feed import table as feed
from app.store.fleet import spent_by_day, totals
from tests.support.escrows import A2A, agent
from tests.support.service_world import Json, ServiceWorld, error_of

pytestmark = pytest.mark.asyncio(loop_scope="module")

_SINGLY = 3


@pytest.fixture(autouse=True)
def _few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("app.store.daily_counts.MAX_RECORDS", _SINGLY)


async def _refused(world: ServiceWorld, wallet: Json, to: str, times: int, amount: str = "2") -> list[str]:
    """Make payments that the policy refuses. Return the ids of their rows."""
    answers = [await world.pay(wallet, to, amount) for _ in range(times)]
    return [error_of(one, 402, "policy_violation")["tx_id"] for one in answers]


async def _rows(world: ServiceWorld, wallet: Json) -> list[Json]:
    path = f"/v1/transactions?walletId={wallet['wallet_id']}&status=blocked&limit=100"
    return list((await world.ok("GET", path))["data"])


async def _events(world: ServiceWorld, wallet: Json) -> list[Json]:
    path = f"/v1/events?walletId={wallet['wallet_id']}&event=transaction.blocked&limit=100"
    return list((await world.ok("GET", path))["data"])


async def _end_hour(world: ServiceWorld) -> None:
    """Do a round of housekeeping as in the hour after the present one."""
    later = await world.service.clock.moment_ms() + HOUR
    await Housekeeping(world.service.db, interval=60, days=90, requests=0, chain_clock=lambda: later).tick()


@pytest.mark.proves(
    "event transaction.blocked",
    "Limits: Refusals of a wallet that are stored singly",
    "Idempotency: Aggregated refusals",
    "Transaction(refusals)",
)
async def test_refusals_beyond_the_daily_number_share_a_row_and_an_event(own_world: ServiceWorld) -> None:
    world = own_world
    wallet, to = await world.wallet((await world.policy(maxPerTx="1"))["policy_id"]), await world.payee()
    ids = await _refused(world, wallet, to, _SINGLY + 5)

    assert len(set(ids[:_SINGLY])) == _SINGLY
    assert len(set(ids[_SINGLY:])) == 1
    rows = {one["tx_id"]: one["refusals"] for one in await _rows(world, wallet)}
    assert rows == {**dict.fromkeys(ids[:_SINGLY], 1), ids[-1]: 5}
    assert (await world.ok("GET", f"/v1/transactions/{ids[-1]}"))["refusals"] == 5
    assert len(await _events(world, wallet)) == _SINGLY

    await _end_hour(world)
    await _end_hour(world)

    assert Counter(one["refusals"] for one in await _events(world, wallet)) == {1: _SINGLY, 5: 1}
    [newest] = [one for one in await _events(world, wallet) if one["refusals"] == 5]
    assert (newest["tx_id"], newest["violation"]["rule"]) == (ids[-1], "max_per_tx")
    assert newest["summary"].endswith("refused by max_per_tx (5 times)")


@pytest.mark.proves("alert refusals", "PutRefusalsAlert(minutes)")
@pytest.mark.parametrize(("minutes", "counted"), [(59, None), (60, _SINGLY + 5)])
async def test_refusals_of_an_hour_count_only_in_periods_of_an_hour(
    own_world: ServiceWorld, minutes: int, counted: int | None
) -> None:
    world = own_world
    wallet, to = await world.wallet((await world.policy(maxPerTx="1"))["policy_id"]), await world.payee()
    db, clock = world.service.db, world.service.clock
    watcher = Watcher(db, world.service.projector, world.settings, chain_clock=clock.seen_ms)
    await db.write(begin)
    rule = {"threshold": _SINGLY + 2, "minutes": minutes}
    await world.ok("PUT", f"/v1/wallets/{wallet['wallet_id']}/alerts", {"refusals": rule})
    await _refused(world, wallet, to, _SINGLY + 5)
    await watcher.tick()
    await _end_hour(world)
    await watcher.tick()

    alerts = await world.ok("GET", f"/v1/events?walletId={wallet['wallet_id']}&event=alert.refusals")
    assert [one["count"] for one in alerts["data"]] == ([] if counted is None else [counted])


@pytest.mark.proves("Idempotency: Aggregated refusals")
async def test_types_and_rules_are_counted_apart(own_world: ServiceWorld) -> None:
    world, to = own_world, await own_world.payee()
    wallet = await world.wallet((await world.policy(maxPerTx="1", allowedRecipients=[to]))["policy_id"])
    stranger = await world.payee()
    await _refused(world, wallet, to, _SINGLY)
    by_amount, by_recipient = await _refused(world, wallet, to, 2), await _refused(world, wallet, stranger, 3, "1")
    body = {"fromWallet": wallet["wallet_id"], "toWallet": to, "amount": "2", "currency": "USDC"}
    escrow = error_of(await world.call("POST", A2A, {**body, "taskDescription": "x"}), 402, "policy_violation")

    rows = {one["tx_id"]: one["refusals"] for one in await _rows(world, wallet) if one["refusals"] > 1}
    assert rows == {by_amount[0]: 2, by_recipient[0]: 3}
    assert escrow["tx_id"] not in {*by_amount, *by_recipient}


@pytest.mark.proves("Idempotency: Aggregated refusals", "PreviewedPayment(refusals)")
async def test_sums_count_every_refusal(own_world: ServiceWorld) -> None:
    world = own_world
    policy = await world.policy(maxPerTx="1")
    wallet, to = await world.wallet(policy["policy_id"]), await world.payee()
    await _refused(world, wallet, to, _SINGLY + 4)

    preview = await world.ok("POST", f"/v1/policies/{policy['policy_id']}/preview", {"maxPerTx": "5"})
    assert (preview["payments"], preview["newly_confirmed"]) == (_SINGLY + 4, _SINGLY + 4)
    now = await world.service.clock.moment_ms()

    assert world.service.db.read_now(lambda conn: totals(conn, world.org, now)).refused_today == _SINGLY + 4
    [day] = world.service.db.read_now(lambda conn: spent_by_day(conn, wallet["wallet_id"], 0))
    assert day.refused == _SINGLY + 4


@pytest.mark.proves("Idempotency: Aggregated refusals")
async def test_other_wallets_and_the_next_day_are_counted_singly_again(own_world: ServiceWorld) -> None:
    world = own_world
    policy = (await world.policy(maxPerTx="1"))["policy_id"]
    wallet, other, to = await world.wallet(policy), await world.wallet(policy), await world.payee()
    await _refused(world, wallet, to, _SINGLY + 2)

    assert len(set(await _refused(world, other, to, 2))) == 2
    await world.later(86_400)
    assert len(set(await _refused(world, wallet, to, _SINGLY))) == _SINGLY
    # A clock that steps back does not begin the earlier day again.
    await world.later(-86_400)
    assert len(set(await _refused(world, wallet, to, 2))) == 1


@pytest.mark.proves("Idempotency: Aggregated refusals")
async def test_concurrent_refusals_are_all_counted(own_world: ServiceWorld) -> None:
    world = own_world
    wallet, to = await world.wallet((await world.policy(maxPerTx="1"))["policy_id"]), await world.payee()

    await asyncio.gather(*(_refused(world, wallet, to, 1) for _ in range(12)))

    assert sorted(one["refusals"] for one in await _rows(world, wallet)) == [*[1] * _SINGLY, 12 - _SINGLY]
    stored = select(func.count()).where(attempts.c.wallet_id == wallet["wallet_id"], attempts.c.status == "blocked")
    assert world.service.db.read_now(lambda conn: conn.scalar(stored)) == _SINGLY + 1
    assert world.service.db.write_now(lambda conn: report_refusals(conn, 2**60, most=10)) == 1
    events = select(func.count()).where(feed.c.wallet_id == wallet["wallet_id"], feed.c.type == "transaction.blocked")
    assert world.service.db.read_now(lambda conn: conn.scalar(events)) == _SINGLY + 1


@pytest.mark.proves("Limits: Rotations of a session token by its agent")
async def test_agent_rotates_its_token_a_limited_number_of_times_a_day(own_world: ServiceWorld) -> None:
    world, acting = own_world, await agent(own_world, funds=None)
    path = f"/v1/wallets/{acting.id}/rotate-token"
    for _ in range(_SINGLY):
        acting.session = (await acting.ok("POST", path, {}))["session_token"]

    refused = await acting.call("POST", path, {})

    error_of(refused, 429, "rate_limited")
    assert 1 <= int(refused.headers["retry-after"]) <= 86_400
    assert (await world.call("POST", path, {})).status_code == 200
