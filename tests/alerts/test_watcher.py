"""When alerts are reported: once when they begin, and again only after they ended."""

import asyncio
import pickle
import signal
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from sqlalchemy import event as sqlalchemy_event

from app.store.alert_kinds import AlertType
from app.store.alerts import AlertRule, put_rules
from app.store.alerts import rules as rule_table
from app.store.deliveries import LIFETIME
from tests.support.alerts import HOUR, MINUTE, SECOND, USDC, Scene, Vault
from tests.support.plans import listening
from tests.support.warm import programs


@pytest_asyncio.fixture
async def scene(tmp_path: Path) -> AsyncIterator[Scene]:
    opened = Scene(tmp_path)
    await opened.open()
    yield opened
    await opened.close()


async def _again(scene: Scene, folder: Path) -> Scene:
    """The scene after a restart."""
    await scene.close()
    opened = Scene(folder, rows=scene.rows)
    opened.now = scene.now
    await opened.open()
    return opened


# Low balance


@pytest.mark.proves("alert balance_low", "event balance.low")
async def test_balance_is_low_once_until_it_recovers(scene: Scene) -> None:
    org = scene.organisation()
    scene.rule(org, "balance_low", 10 * USDC)
    wallet = await scene.wallet(org, 30)
    await scene.pay(wallet, 20)
    assert scene.reported(wallet, "balance.low") == []  # Not below 10 yet.

    await scene.pay(wallet, 1)
    await scene.pay(wallet, 1)
    await scene.look()

    [low] = scene.reported(wallet, "balance.low")
    assert low.severity == "warning"
    assert low.payload == {
        "wallet_id": wallet.wallet_id,
        "current_balance": "9.00",
        "threshold": "10.00",
        "timestamp": low.payload["timestamp"],
    }
    await scene.fund(wallet, 2)
    assert len(scene.reported(wallet, "balance.low")) == 1
    await scene.pay(wallet, 5)
    assert [one.payload["current_balance"] for one in scene.reported(wallet, "balance.low")] == ["9.00", "5.00"]


async def test_short_dip_below_the_threshold_is_reported(scene: Scene) -> None:
    org = scene.organisation()
    scene.rule(org, "balance_low", 10 * USDC)
    wallet = await scene.wallet(org, 30)

    for _ in range(3):
        await scene.pay(wallet, 25)
        await scene.fund(wallet, 25)

    assert len(scene.reported(wallet, "balance.low")) == 3


async def test_balance_below_a_new_threshold_is_reported_at_once(scene: Scene) -> None:
    org = scene.organisation()
    low, high, empty = await scene.wallet(org, 5), await scene.wallet(org, 50), await scene.wallet(org, 0)

    scene.rule(org, "balance_low", 10 * USDC)
    await scene.look()

    # A wallet that never held anything is not low.
    assert [len(scene.reported(one, "balance.low")) for one in (low, high, empty)] == [1, 0, 0]


async def test_threshold_lowered_and_raised_again_makes_another_alert(scene: Scene) -> None:
    org = scene.organisation()
    wallet = await scene.wallet(org, 5)
    for threshold in (10, 20, 3, 10):
        scene.rule(org, "balance_low", threshold * USDC)
        await scene.look()

    assert [one.payload["threshold"] for one in scene.reported(wallet, "balance.low")] == ["10.00", "10.00"]


@pytest.mark.proves("PUT /v1/wallets/{wallet_id}/alerts")
async def test_wallets_own_rule_holds_instead_of_the_organisations(scene: Scene) -> None:
    org, other = scene.organisation(), scene.organisation("other")
    scene.rule(org, "balance_low", 10 * USDC)
    common, own, silent, foreign = [await scene.wallet(one, 30) for one in (org, org, org, other)]
    scene.rule(own, "balance_low", 25 * USDC)
    scene.rule(silent, "balance_low", None)

    for one in (common, own, silent, foreign):
        await scene.pay(one, 8)
    assert [len(scene.reported(one, "balance.low")) for one in (common, own, silent, foreign)] == [0, 1, 0, 0]
    for one in (common, own, silent, foreign):
        await scene.pay(one, 15)
    await scene.look()
    assert [len(scene.reported(one, "balance.low")) for one in (common, own, silent, foreign)] == [1, 1, 0, 0]


async def test_archived_wallet_is_neither_low_nor_inactive(scene: Scene) -> None:
    org = scene.organisation()
    wallet = await scene.wallet(org, 5)
    await scene.archive(wallet)
    rules: list[tuple[AlertType, int]] = [("balance_low", 10 * USDC), ("inactivity", 1)]
    for kind, threshold in rules:
        scene.rule(org, kind, threshold)
        scene.now += 2 * HOUR
        await scene.look()

    assert scene.reported(wallet, "balance.low") + scene.reported(wallet, "alert.inactivity") == []


async def test_rebuilding_the_read_models_reports_nothing_again(scene: Scene) -> None:
    org = scene.organisation()
    scene.rule(org, "balance_low", 10 * USDC)
    wallet = await scene.wallet(org, 30)
    for _ in range(150):
        await scene.pay(wallet, 25)
        await scene.fund(wallet, 25)
    scene.rule(org, "balance_low", 20 * USDC)
    before = len(scene.reported(wallet, "balance.low"))
    assert before == 150

    await scene.projector.rebuild()
    await scene.look()

    assert len(scene.reported(wallet, "balance.low")) == before


# Inactivity


@pytest.mark.proves("alert inactivity", "event alert.inactivity")
async def test_wallet_is_inactive_once_until_it_does_something(scene: Scene) -> None:
    org = scene.organisation()
    wallet, never = await scene.wallet(org), await scene.wallet(org, 0)
    scene.rule(org, "inactivity", 24)

    scene.now += 24 * HOUR - MINUTE
    await scene.look()
    assert scene.reported(wallet, "alert.inactivity") == []
    scene.now += MINUTE
    await scene.look()
    scene.now += 48 * HOUR
    await scene.look()

    [event] = scene.reported(wallet, "alert.inactivity")
    assert event.severity == "warning"
    assert event.payload["threshold"] == 24
    assert event.payload["last_transaction_at"] is not None
    [created] = scene.reported(never, "alert.inactivity")
    assert created.payload["last_transaction_at"] is None
    await scene.pay(wallet, 1)
    scene.now += MINUTE
    await scene.look()
    scene.now += 24 * HOUR
    await scene.look()
    assert len(scene.reported(wallet, "alert.inactivity")) == 2


@pytest.mark.proves("alert inactivity")
async def test_received_money_is_no_activity(scene: Scene) -> None:
    org = scene.organisation()
    wallet, other = await scene.wallet(org), await scene.wallet(org)
    await scene.pay(wallet, 1)
    scene.rule(org, "inactivity", 24)
    scene.now += 23 * HOUR
    await scene.release(other, wallet, 1)
    await scene.fund(wallet, 1)

    scene.now += HOUR + MINUTE
    await scene.look()
    assert len(scene.reported(wallet, "alert.inactivity")) == 1
    await scene.release(other, wallet, 1)
    scene.now += MINUTE
    await scene.look()
    scene.now += 25 * HOUR
    await scene.look()
    assert len(scene.reported(wallet, "alert.inactivity")) == 1


# Velocity


@pytest.mark.proves("alert velocity_spike", "event alert.velocity_spike")
async def test_velocity_spikes_once_until_the_hour_has_fewer_transactions(scene: Scene) -> None:
    org = scene.organisation()
    scene.rule(org, "velocity_spike", 3)
    wallet = await scene.wallet(org)

    await scene.pay(wallet, 1, 3)
    await scene.look()
    assert scene.reported(wallet, "alert.velocity_spike") == []
    scene.now += 10 * MINUTE
    await scene.pay(wallet, 1)
    await scene.look()
    scene.now += 10 * MINUTE
    await scene.pay(wallet, 1)
    await scene.look()

    [event] = scene.reported(wallet, "alert.velocity_spike")
    assert event.severity == "warning"
    assert (event.payload["transactions"], event.payload["threshold"]) == (4, 3)
    # The first three leave the hour; with the two that remain, the second new one makes a spike again.
    scene.now += 41 * MINUTE
    await scene.look()
    await scene.pay(wallet, 1)
    await scene.look()
    assert len(scene.reported(wallet, "alert.velocity_spike")) == 1
    await scene.pay(wallet, 1)
    await scene.look()
    assert len(scene.reported(wallet, "alert.velocity_spike")) == 2


async def test_fundings_do_not_count_as_velocity(scene: Scene) -> None:
    org = scene.organisation()
    scene.rule(org, "velocity_spike", 1)
    wallet = await scene.wallet(org)
    await scene.fund(wallet, 1)
    await scene.fund(wallet, 1)
    await scene.pay(wallet, 1)
    await scene.look()

    assert scene.reported(wallet, "alert.velocity_spike") == []


# Large transactions


@pytest.mark.proves("alert large_transaction", "event alert.large_transaction")
async def test_every_transaction_above_the_threshold_is_reported_once(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    await scene.open()
    org = scene.organisation()
    scene.rule(org, "large_transaction", 10 * USDC)
    wallet = await scene.wallet(org)
    for amount in (10, 11, 12):
        await scene.pay(wallet, amount)
    await scene.look()
    scene = await _again(scene, tmp_path)
    await scene.look()
    await scene.projector.rebuild()
    await scene.look()

    large = scene.reported(wallet, "alert.large_transaction")
    assert [one.payload["amount"] for one in large] == ["11.00", "12.00"]
    completed = scene.reported(wallet, "transaction.completed")[1].payload
    assert large[0].payload == {
        **{name: completed[name] for name in ("wallet_id", "tx_id", "tx_signature", "amount", "recipient")},
        **{name: completed[name] for name in ("on_chain_slot", "timestamp")},
        "threshold": "10.00",
    }
    await scene.close()


async def test_old_events_that_a_rebuild_adds_again_are_not_reported(scene: Scene) -> None:
    org = scene.organisation()
    scene.rule(org, "large_transaction", 10 * USDC)
    wallet = await scene.wallet(org)
    await scene.pay(wallet, 50)
    scene.now += LIFETIME + SECOND
    await scene.look()

    assert scene.reported(wallet, "alert.large_transaction") == []


# All of them


async def test_without_rules_only_blocked_payments_have_an_event(scene: Scene) -> None:
    org = scene.organisation()
    wallet = await scene.wallet(org)
    await scene.pay(wallet, 50, 2)
    scene.block(wallet)
    scene.now += 1000 * HOUR
    await scene.look()

    types = ("balance.low", "alert.inactivity", "alert.velocity_spike", "alert.large_transaction")
    assert [scene.reported(wallet, one) for one in types] == [[], [], [], []]
    assert len(scene.reported(wallet, "transaction.blocked")) == 1


async def test_running_watcher_checks_at_once_when_rules_change(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    await scene.open()
    wallet = await scene.wallet(scene.organisation(), 5)
    scene.rule(wallet, "balance_low", 10 * USDC)
    async with asyncio.timeout(30):
        while not scene.reported(wallet, "balance.low"):  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    await scene.close()

    assert "alerts" not in {task.get_name() for task in asyncio.all_tasks()}


@pytest.mark.parametrize("rounds", range(4))
async def test_watcher_stops_even_if_rules_have_just_changed(tmp_path: Path, rounds: int) -> None:
    scene = Scene(tmp_path)
    await scene.open()
    async with asyncio.timeout(30):
        while not scene.watcher._woken._waiters:  # noqa: ASYNC110 - until it waits for its next round
            await asyncio.sleep(0)
    scene.watcher.rules_changed()
    for _ in range(rounds):
        await asyncio.sleep(0)
    async with asyncio.timeout(30):
        await scene.close()


async def test_payments_cost_few_queries_and_no_commit_where_no_alert_begins(scene: Scene) -> None:
    org = scene.organisation()
    wallets = [await scene.wallet(org) for _ in range(50)]
    scene.rule(org, "balance_low", 10 * USDC)
    await scene.look()
    queries: list[str] = []
    commits: list[int] = []
    sqlalchemy_event.listen(scene.db._writer, "commit", lambda _conn: commits.append(1))
    for one in wallets:
        scene.pay_unseen(one, 1)

    with listening(lambda conn, sql, _: queries.append(sql) if conn.engine is scene.db._readers else None):
        await scene.settled()

    # One batch of 50 payments: whether there are rules, and for which wallets the alert begins or ends.
    assert len([one for one in queries if "alert" in one]) == 2
    assert len(commits) == 1


async def test_alerts_continue_after_a_failed_check(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    org = scene.organisation()
    scene.rule(org, "balance_low", 10 * USDC)
    wallet = await scene.wallet(org, 30)
    with monkeypatch.context() as broken:
        broken.setattr("app.alerts.watcher.changed_alerts", lambda *_args, **_options: 1 / 0)
        await scene.pay(wallet, 25)
    assert scene.reported(wallet, "balance.low") == []

    scene.now += MINUTE
    await scene.look()

    assert len(scene.reported(wallet, "balance.low")) == 1


_DEADLY = """
import asyncio, os, pickle, signal, sys
from pathlib import Path
from app.alerts import _events as events
from tests.support.alerts import Scene
folder, moment, count = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
calls = 0
work = events.append_event
def deadly(conn, **event):
    global calls
    calls += 1
    work(conn, **event)
    if moment == "within" and calls == count:
        os.kill(os.getpid(), signal.SIGKILL)
events.append_event = deadly
async def run():
    rows, now = pickle.loads((folder / "rows").read_bytes())
    scene = Scene(folder, rows=rows, smtp_host="127.0.0.1", smtp_from="vault@example.com")
    scene.now = now
    await scene.open()
    await scene.look()
    os.kill(os.getpid(), signal.SIGKILL)
asyncio.run(run())
"""


@pytest.mark.parametrize(("moment", "count"), [("within", 1), ("within", 3), ("within", 5), ("after", 0)])
async def test_killed_watcher_loses_and_duplicates_nothing(tmp_path: Path, moment: str, count: int) -> None:
    # Given wallets with an alert of every type to be reported
    scene = Scene(tmp_path)
    await scene.open()
    org = scene.organisation()
    wallets: list[Vault] = [await scene.wallet(org, 1000) for _ in range(2)]
    rules: list[Any] = []
    given: list[tuple[AlertType, int]] = [
        ("balance_low", 999 * USDC),
        ("velocity_spike", 2),
        ("large_transaction", 10 * USDC),
    ]
    for kind, threshold in given:
        scene.rule(org, kind, threshold, ["ops@example.com"])
        rules += scene.db.read_now(_rules)
    scene.db.write_now(lambda conn: put_rules(conn, org, rules))
    await scene.close()
    for one in wallets:
        for _ in range(3):
            scene.pay_unseen(one, 20)
    (tmp_path / "rows").write_bytes(pickle.dumps((scene.rows, scene.now)))

    # When the process that reports them is killed, and another continues
    for _ in range(2):
        process = await asyncio.create_subprocess_exec(
            *(programs() / "interpreter", "-c", _DEADLY, str(tmp_path), moment, str(count)),
            stderr=subprocess.PIPE,
        )
        _, errors = await asyncio.wait_for(process.communicate(), 60)
        assert process.returncode == -signal.SIGKILL, errors.decode()
    after = Scene(tmp_path, rows=scene.rows, smtp_host="127.0.0.1", smtp_from="vault@example.com")
    after.now = scene.now
    await after.open()
    # Waits for the watcher's own first check, which may still be running.
    await after.settled()
    await after.look()

    # Then each is reported once and mailed once
    for one in wallets:
        assert len(after.reported(one, "balance.low")) == 1
        assert len(after.reported(one, "alert.velocity_spike")) == 1
        assert len(after.reported(one, "alert.large_transaction")) == 3
    assert len(after.mails()) == 10
    assert len({mail.event_id for mail in after.mails()}) == 10
    await after.close()


def _rules(conn: Any) -> list[Any]:
    return [AlertRule(**row._mapping) for row in conn.execute(rule_table.select())]
