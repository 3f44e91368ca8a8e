"""Alerts over HTTP: rules, and their effects in a running service."""

import asyncio
from collections.abc import AsyncIterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from app.alerts.models import MAX_EMAILS
from app.alerts.watcher import Watcher
from app.store.alert_mails import begin
from tests.support.alerts import OPS, Mailbox
from tests.support.service_world import Json, ServiceWorld, error_of
from tests.support.webhooks import Receiver

pytestmark = pytest.mark.asyncio(loop_scope="module")

_ALL = "/v1/alerts"
_OFF: Json = {"threshold": None, "emails": [], "inherited": True}
_PATIENCE = 30.0
#: Types of alerts without a threshold that only send e-mails.
_UNCONDITIONAL = ("security", "approvals", "stopped_payments", "spending_limit", "pauses", "webhooks")


@pytest_asyncio.fixture(loop_scope="module")
async def alarmed(tmp_path: Path) -> AsyncIterator[tuple[ServiceWorld, Mailbox]]:
    """A service that checks for alerts continually, with a mail server."""
    async with (
        Mailbox() as mailbox,
        ServiceWorld(
            tmp_path,
            alerts=True,
            alert_interval=0.05,
            smtp_host="127.0.0.1",
            smtp_port=mailbox.port,
            smtp_tls="none",
            smtp_from="vault@example.com",
        ) as opened,
    ):
        yield opened, mailbox


def _path(wallet: Json) -> str:
    return f"/v1/wallets/{wallet['wallet_id']}/alerts"


async def _reported(world: ServiceWorld, wallet: Json, event: str, count: int) -> list[Json]:
    """A wallet's events of a type, oldest first, once there are so many."""
    query = f"/v1/events?event={event}&wallet_id={wallet['wallet_id']}"
    async with asyncio.timeout(_PATIENCE):
        while len(found := (await world.ok("GET", query))["data"]) < count:  # noqa: ASYNC110
            await asyncio.sleep(0.02)
    return list(reversed(found))


# Rules


@pytest.mark.proves(
    "GET /v1/alerts", "alert policy_violation", "Alerts(policy_violation, updated_at)", "ViolationAlert(enabled)"
)
@pytest.mark.proves("Alerts(security)", "SecurityAlert(emails, enabled, inherited)")
@pytest.mark.proves(
    "Alerts(approvals, stopped_payments, spending_limit, pauses, webhooks)", "NoticeAlert(emails, enabled, inherited)"
)
async def test_alerts_are_off_but_policy_violations_until_they_are_set(own_world: ServiceWorld) -> None:
    world = own_world
    wallet = await world.wallet(funds=None)
    expected = {
        "balance_low": _OFF,
        "policy_violation": {"enabled": True, "emails": [], "inherited": True},
        "inactivity": _OFF,
        "velocity_spike": _OFF,
        "large_transaction": {**_OFF, "freeze": False},
        "sol_limit": {"enabled": True, "emails": [], "inherited": True},
        "refusals": {**_OFF, "freeze": False, "minutes": None},
        "new_payees": {**_OFF, "freeze": False},
        **{kind: {"enabled": True, "emails": [], "inherited": True} for kind in _UNCONDITIONAL},
        "updated_at": None,
    }

    assert await world.ok("GET", _ALL) == expected
    identity = {"wallet_id": wallet["wallet_id"], "id": wallet["wallet_id"]}
    assert await world.ok("GET", _path(wallet)) == {**expected, **identity}


@pytest.mark.proves(
    "PUT /v1/alerts",
    "GET /v1/wallets/{wallet_id}/alerts",
    "PUT /v1/wallets/{wallet_id}/alerts",
    "PutAlerts(balanceLow, policyViolation, inactivity, velocitySpike, largeTransaction)",
    "PutMoneyAlert(threshold, emails)",
    "PutLargeAlert(threshold, emails)",
    "PutInactivityAlert(threshold, emails)",
    "PutVelocityAlert(threshold, emails)",
    "PutViolationAlert(enabled, emails)",
    "Alerts(balance_low, policy_violation, inactivity, velocity_spike, large_transaction, updated_at)",
    "WalletAlerts(wallet_id, id, balance_low, policy_violation, inactivity, velocity_spike)",
    "WalletAlerts(large_transaction, updated_at)",
    "MoneyAlert(threshold, emails, inherited)",
    "LargeAlert(threshold, emails, inherited)",
    "CountAlert(threshold, emails, inherited)",
    "ViolationAlert(enabled, emails, inherited)",
    "Alerts(sol_limit)",
    "PutAlerts(solLimit)",
    "SolAlert(emails, enabled, inherited)",
    "WalletAlerts(sol_limit, security)",
    "PutAlerts(security)",
    "PutAlerts(approvals, stoppedPayments, spendingLimit, pauses, webhooks)",
    "PutNoticeAlert(emails, enabled)",
    "WalletAlerts(approvals, stopped_payments, spending_limit, pauses, webhooks)",
)
async def test_rules_are_stored_shown_inherited_and_replaced(own_world: ServiceWorld) -> None:
    world = own_world
    wallet, other = await world.wallet(funds=None), await world.wallet(funds=None)
    body = {
        "balanceLow": {"threshold": "10", "emails": [OPS, "Ops@Example.com", OPS]},
        "inactivity": {"threshold": 24},
        "velocity_spike": {"threshold": 100, "emails": []},
        "largeTransaction": {"threshold": "500.5"},
        "policyViolation": {"enabled": False},
        "solLimit": {"enabled": True, "emails": [OPS]},
        "security": {"enabled": False},
        "stoppedPayments": {"enabled": False},
        **{kind: {"enabled": True, "emails": [OPS]} for kind in ("approvals", "spendingLimit", "pauses", "webhooks")},
    }

    made = await world.ok("PUT", _ALL, body)

    assert made["balance_low"] == {"threshold": "10.00", "emails": [OPS, "Ops@example.com"], "inherited": False}
    assert made["inactivity"] == {"threshold": 24, "emails": [], "inherited": False}
    assert made["large_transaction"]["threshold"] == "500.50"
    assert made["policy_violation"] == {"enabled": False, "emails": [], "inherited": False}
    assert made["sol_limit"] == {"enabled": True, "emails": [OPS], "inherited": False}
    assert made["security"] == made["stopped_payments"] == {"enabled": False, "emails": [], "inherited": False}
    for kind in ("approvals", "spending_limit", "pauses", "webhooks"):
        assert made[kind] == {"enabled": True, "emails": [OPS], "inherited": False}
    own = await world.ok(
        "PUT", _path(wallet), {"balanceLow": {"threshold": "3"}, "inactivity": {"threshold": None, "emails": [OPS]}}
    )
    assert own["balance_low"] == {"threshold": "3.00", "emails": [OPS, "Ops@example.com"], "inherited": False}
    assert own["inactivity"] == {"threshold": None, "emails": [OPS], "inherited": False}
    assert own["velocity_spike"] == {"threshold": 100, "emails": [], "inherited": True}
    assert own["security"] == {**made["security"], "inherited": True}
    await world.restart()
    assert await world.ok("GET", _ALL) == made
    assert await world.ok("GET", _path(wallet)) == own
    assert (await world.ok("GET", _path(other)))["balance_low"] == {**made["balance_low"], "inherited": True}

    replaced = await world.ok("PUT", _ALL, {"velocitySpike": {"threshold": 7}})
    assert (replaced["balance_low"], replaced["policy_violation"]["enabled"]) == (_OFF, True)
    emptied = await world.ok("PUT", _path(wallet), {})
    assert emptied["velocity_spike"] == {"threshold": 7, "emails": [], "inherited": True}
    assert emptied["balance_low"] == _OFF


@pytest.mark.proves(
    "PUT /v1/alerts",
    "PutAlerts(balanceLow, policyViolation, inactivity, velocitySpike, largeTransaction)",
    "PutMoneyAlert(threshold, emails)",
    "PutInactivityAlert(threshold, emails)",
    "PutVelocityAlert(threshold, emails)",
    "PutViolationAlert(enabled, emails)",
)
@pytest.mark.parametrize(
    ("body", "code"),
    [
        ({"balanceLow": {}}, "invalid_request"),
        ({"balanceLow": {"threshold": 10}}, "invalid_amount"),
        ({"balanceLow": {"threshold": "0"}}, "invalid_amount"),
        ({"balanceLow": {"threshold": "-1"}}, "invalid_amount"),
        ({"balanceLow": {"threshold": "0.0000001"}}, "invalid_amount"),
        ({"largeTransaction": {"threshold": "9300000000000"}}, "invalid_amount"),
        ({"inactivity": {"threshold": "24"}}, "invalid_request"),
        ({"inactivity": {"threshold": 0}}, "invalid_request"),
        ({"inactivity": {"threshold": 8761}}, "invalid_request"),
        ({"inactivity": {"threshold": 1.5}}, "invalid_request"),
        ({"velocitySpike": {"threshold": 0}}, "invalid_request"),
        ({"velocitySpike": {"threshold": 2**70}}, "invalid_request"),
        ({"refusals": {"threshold": 0}}, "invalid_request"),
        ({"refusals": {"threshold": 5, "minutes": 0}}, "invalid_request"),
        ({"refusals": {"threshold": 5, "minutes": 1441}}, "invalid_request"),
        ({"newPayees": {"threshold": 5, "minutes": 5}}, "invalid_request"),
        ({"newPayees": {"threshold": 5, "freeze": "yes"}}, "invalid_request"),
        ({"security": {"threshold": 5}}, "invalid_request"),
        ({"policyViolation": {"emails": [OPS]}}, "invalid_request"),
        ({"policyViolation": {"enabled": "yes"}}, "invalid_request"),
        ({"policyViolation": {"enabled": True, "threshold": 1}}, "invalid_request"),
        ({"somethingElse": {"threshold": 1}}, "invalid_request"),
        *(
            ({"policyViolation": {"enabled": True, "emails": emails}}, "invalid_request")
            for emails in (
                OPS,
                ["nobody"],
                [""],
                ["a@"],
                ["a b@example.com"],
                ["Ops <ops@example.com>"],
                ["ops@example.com\r\nBcc: thief@example.com"],
                ["ops@example.com,thief@example.com"],
                ["=?utf-8?q??=@example.com"],
                ["=?utf-8?q?thief=40example.org=2c?=@example.com"],
                ["ops.=?utf-8?q?=0d=0aBcc:thief=40example.org?=@example.com"],
                ["\u00fc@example.com"],
                [f"{'a' * 65}@example.com"],
                [1],
                [None],
                [f"ops{number}@example.com" for number in range(MAX_EMAILS + 1)],
            )
        ),
    ],
)
async def test_malformed_rules_are_refused_and_the_old_ones_stay(world: ServiceWorld, body: Json, code: str) -> None:
    wallet = await world.wallet(funds=None)
    before = await world.ok("PUT", _path(wallet), {"balanceLow": {"threshold": "1", "emails": [OPS]}})

    for path in (_ALL, _path(wallet)):
        error_of(await world.call("PUT", path, body), 400, code)

    assert await world.ok("GET", _path(wallet)) == before


async def test_unknown_wallet_is_404_and_another_organisations_too(world: ServiceWorld) -> None:
    wallet, path = await world.wallet(funds=None), "/v1/wallets/wal_1111111111111111/alerts"
    stranger = world.key("admin", org=await world.organisation("other"))

    error_of(await world.call("PUT", path, {}), 404, "wallet_not_found")
    error_of(await world.call("GET", path), 404, "wallet_not_found")
    error_of(await world.call("PUT", _path(wallet), {}, key=stranger), 404, "wallet_not_found")
    error_of(await world.call("GET", _path(wallet), key=stranger), 404, "wallet_not_found")


async def test_rules_of_an_organisation_are_its_own(world: ServiceWorld) -> None:
    stranger = world.key("admin", org=await world.organisation("third"))
    await world.ok("PUT", _ALL, {"inactivity": {"threshold": 5}})

    assert (await world.ok("GET", _ALL, key=stranger))["inactivity"] == _OFF


async def test_archived_wallet_takes_no_rules(world: ServiceWorld) -> None:
    wallet = await world.wallet(funds=None)
    await world.ok("DELETE", f"/v1/wallets/{wallet['wallet_id']}")

    error_of(await world.call("PUT", _path(wallet), {}), 422, "wallet_archived")


@pytest.mark.proves("GET /v1/wallets/{wallet_id}/alerts")
async def test_operators_set_rules_viewers_see_them_and_agents_see_none(world: ServiceWorld) -> None:
    wallet = await world.wallet(funds=None)
    viewer, agent = world.key("viewer"), world.key("agent", wallet["wallet_id"])

    for key in (viewer, agent):
        error_of(await world.call("PUT", _ALL, {}, key=key), 403, "insufficient_permissions")
        error_of(await world.call("PUT", _path(wallet), {}, key=key), 403, "insufficient_permissions")
    for path in (_ALL, _path(wallet)):
        await world.ok("GET", path, key=viewer)
        error_of(await world.call("GET", path, key=agent), 403, "insufficient_permissions")
    await world.ok("PUT", _path(wallet), {}, key=world.key("operator"))


async def test_repetition_under_a_key_is_the_first_answer(world: ServiceWorld) -> None:
    wallet = await world.wallet(funds=None)
    body = {"inactivity": {"threshold": 3}, "idempotencyKey": "alerts"}
    first = await world.ok("PUT", _path(wallet), body)
    await world.ok("PUT", _path(wallet), {})

    again = await world.call("PUT", _path(wallet), body)

    assert (again.json(), again.headers["idempotent-replayed"]) == (first, "true")
    assert (await world.ok("GET", _path(wallet)))["inactivity"]["inherited"] is True


# Effects


@pytest.mark.proves(
    "alert policy_violation", "event balance.low", "event alert.velocity_spike", "event alert.large_transaction"
)
async def test_alerts_reach_the_events_the_webhooks_and_the_mailbox(alarmed: tuple[ServiceWorld, Mailbox]) -> None:
    world, mailbox = alarmed
    policy = await world.policy(maxPerTx="60")
    wallet, to = await world.wallet(policy["policy_id"], label="Buyer"), await world.payee()
    rules: dict[str, Any] = {
        "balanceLow": {"threshold": "50", "emails": [OPS]},
        "velocitySpike": {"threshold": 1, "emails": [OPS]},
        "largeTransaction": {"threshold": "55", "emails": [OPS]},
        "policyViolation": {"enabled": True, "emails": [OPS]},
    }
    await world.ok("PUT", _ALL, rules)
    async with Receiver() as receiver:
        types = ["balance.low", "alert.velocity_spike", "alert.large_transaction"]
        await world.ok("POST", "/v1/webhooks", {"url": receiver.url, "events": types})

        paid = (await world.pay(wallet, to, "60")).json()
        error_of(await world.pay(wallet, to, "61"), 402, "policy_violation")
        await world.pay(wallet, to, "1")

        [low] = await _reported(world, wallet, "balance.low", 1)
        [spike] = await _reported(world, wallet, "alert.velocity_spike", 1)
        [large] = await _reported(world, wallet, "alert.large_transaction", 1)
        [blocked] = await _reported(world, wallet, "transaction.blocked", 1)
        await receiver.wait_for(3)
    assert (low["current_balance"], low["threshold"], low["severity"]) == ("40.00", "50.00", "warning")
    assert (spike["transactions"], spike["threshold"], spike["severity"]) == (2, 1, "warning")
    assert (large["tx_id"], large["amount"], large["threshold"]) == (paid["tx_id"], "60.00", "55.00")
    assert {one.json["event_id"] for one in receiver.received} == {one["event_id"] for one in (low, spike, large)}

    async with asyncio.timeout(_PATIENCE):
        while len(mailbox.received) < 4:  # noqa: ASYNC110
            await asyncio.sleep(0.02)
    assert {str(one["Message-ID"]) for one in mailbox.received} == {
        f"<{one['event_id']}@example.com>" for one in (low, spike, large, blocked)
    }
    assert set(mailbox.subjects) == {
        f"{title}: Buyer" for title in ("Balance low", "Velocity spike", "Large transaction", "Policy violation")
    }


@pytest.mark.proves("PutSolAlert(emails, enabled)", "alert sol_limit")
async def test_four_fifths_of_a_sol_limit_are_mailed(alarmed: tuple[ServiceWorld, Mailbox]) -> None:
    world, mailbox = alarmed
    wallet, to = await world.wallet(label="Buyer"), await world.payee()
    await world.ok("PUT", _ALL, {"solLimit": {"enabled": True, "emails": [OPS]}})
    used = Decimal((await world.ok("GET", "/v1/organization"))["sol"]["spent_today"])

    # A payment costs 0.00001 SOL.
    await world.restart(sol_per_day=str((used + Decimal("0.00002")) * 5 / 4), sol_per_wallet_day="1")
    for _ in range(2):
        assert (await world.pay(wallet, to, "0.01")).status_code == 200

    async with asyncio.timeout(_PATIENCE):
        while len(mailbox.received) < 1:  # noqa: ASYNC110
            await asyncio.sleep(0.02)
    assert mailbox.subjects == ["SOL limit: all wallets"]
    assert "Wallet:      all\nSpent:" in mailbox.received[0].get_content().replace("\r\n", "\n")


@pytest.mark.proves("alert balance_low")
async def test_low_balance_is_reported_again_after_funding_and_restart(
    alarmed: tuple[ServiceWorld, Mailbox],
) -> None:
    world, _ = alarmed
    wallet, to = await world.wallet(), await world.payee()
    await world.ok("PUT", _path(wallet), {"balanceLow": {"threshold": "50"}})
    await world.pay(wallet, to, "60")
    await _reported(world, wallet, "balance.low", 1)
    await world.restart()
    await world.pay(wallet, to, "1")
    await world.ok("POST", f"/v1/wallets/{wallet['wallet_id']}/fund", {"amount": "20", "currency": "USDC"})
    await world.pay(wallet, to, "20")

    low = await _reported(world, wallet, "balance.low", 2)

    assert [one["current_balance"] for one in low] == ["40.00", "39.00"]


@pytest.mark.proves("PutLargeAlert(freeze)", "LargeAlert(freeze)")
async def test_large_payment_freezes_its_vault_alone(alarmed: tuple[ServiceWorld, Mailbox]) -> None:
    world, mailbox = alarmed
    watched, other, to = await world.wallet(), await world.wallet(), await world.payee()
    rule = {"threshold": "5", "emails": [OPS]}
    await world.ok("PUT", _ALL, {"largeTransaction": rule})
    made = await world.ok("PUT", _path(watched), {"largeTransaction": {**rule, "freeze": True}})
    assert made["large_transaction"]["freeze"]
    assert not (await world.ok("GET", _path(other)))["large_transaction"]["freeze"]
    for wallet, amount in ((watched, "5"), (other, "6"), (watched, "5.01")):
        assert (await world.pay(wallet, to, amount)).status_code == 200

    [event] = await _reported(world, watched, "alert.large_transaction", 1)
    [mild] = await _reported(world, other, "alert.large_transaction", 1)
    [frozen] = await _reported(world, watched, "wallet.frozen", 1)

    assert (event["freeze"], event["amount"], "freeze" in mild) == (True, "5.01", False)
    assert frozen["reason"] == "manual"
    error_of(await world.pay(watched, to, "1"), 422, "wallet_frozen")
    assert (await world.pay(other, to, "1")).status_code == 200
    [entry] = (await world.ok("GET", "/v1/audit-log?action=wallet.freeze"))["data"]
    assert entry["actor"] == {"type": "system", "id": "alert_rule_large_transaction"}
    assert entry["object"] == watched["wallet_id"]
    async with asyncio.timeout(_PATIENCE):
        while len(mailbox.received) < 2:  # noqa: ASYNC110
            await asyncio.sleep(0.02)
    says = {str(one["Subject"]): one.get_content() for one in mailbox.received}
    assert sum("The alert freezes the wallet for this reason." in text for text in says.values()) == 1


@pytest.mark.proves(
    "PutAlerts(refusals, newPayees)",
    "PutRefusalsAlert(emails, freeze, minutes, threshold)",
    "PutPayeesAlert(emails, freeze, threshold)",
    "Alerts(refusals, new_payees)",
    "WalletAlerts(refusals, new_payees)",
    "RefusalsAlert(emails, freeze, inherited, minutes, threshold)",
    "PayeesAlert(emails, freeze, inherited, threshold)",
    "alert refusals",
    "alert new_payees",
    "event alert.refusals",
    "event alert.new_payees",
)
@pytest.mark.parametrize("kind", ["refusals", "new_payees"])
async def test_counted_alert_freezes_its_vault_alone(alarmed: tuple[ServiceWorld, Mailbox], kind: str) -> None:
    world, mailbox = alarmed
    policy = await world.policy(maxPerTx="10")
    watched, other = await world.wallet(policy["policy_id"]), await world.wallet(policy["policy_id"])
    known = await world.payee()

    async def does_it(wallet: Json, payee: str | None = None) -> None:
        if kind == "refusals":
            error_of(await world.pay(wallet, known, "11"), 402, "policy_violation")
        else:
            assert (await world.pay(wallet, payee or await world.payee(), "1")).status_code == 200

    rule = {"threshold": 2, "emails": [OPS]}
    await world.ok("PUT", _ALL, {kind: rule})
    made = await world.ok("PUT", _path(watched), {kind: {**rule, "freeze": True}})
    assert made[kind]["freeze"]
    for wallet in (other, watched):
        await does_it(wallet, known)
        if kind == "new_payees":
            await does_it(wallet, known)  # the same payee again
        await does_it(wallet)

    [event] = await _reported(world, watched, f"alert.{kind}", 1)
    [mild] = await _reported(world, other, f"alert.{kind}", 1)
    await _reported(world, watched, "wallet.frozen", 1)
    assert (event["count"], event["threshold"], event["freeze"], "freeze" in mild) == (2, 2, True, False)
    assert event["minutes"] == (60 if kind == "refusals" else 1440)
    assert (await world.pay(other, known, "1")).status_code == 200
    [entry] = (await world.ok("GET", "/v1/audit-log?action=wallet.freeze"))["data"]
    assert entry["actor"] == {"type": "system", "id": f"alert_rule_{kind}"}
    async with asyncio.timeout(_PATIENCE):
        while len(mailbox.received) < 2:  # noqa: ASYNC110
            await asyncio.sleep(0.02)
    assert sum("The alert freezes the wallet for this reason." in one.get_content() for one in mailbox.received) == 1

    # Counted refusals and payees do not count again.
    await world.ok("PATCH", f"/v1/wallets/{watched['wallet_id']}", {"status": "active"})
    await does_it(watched)
    assert (await world.pay(watched, known, "1")).status_code == 200
    await does_it(watched)
    [_, second] = await _reported(world, watched, f"alert.{kind}", 2)
    assert second["count"] == 2
    await _reported(world, watched, "wallet.frozen", 2)


async def test_check_for_alerts_waits_for_no_freeze(own_world: ServiceWorld) -> None:
    world = own_world
    wallet, to = await world.wallet(), await world.payee()
    watcher = Watcher(
        world.service.db, world.service.projector, world.settings, chain_clock=world.service.clock.seen_ms
    )
    watcher.service = world.service
    await world.service.db.write(begin)
    await world.ok("PUT", _path(wallet), {"largeTransaction": {"threshold": "5", "freeze": True}})
    await world.pay(wallet, to, "6")
    answering = asyncio.Event()
    world.line.hold = lambda _method: answering.wait()
    try:
        async with asyncio.timeout(_PATIENCE):
            await watcher.tick()
        assert world.service.brake.is_engaged(wallet["wallet_id"], "freeze")
    finally:
        answering.set()
    await _reported(world, wallet, "wallet.frozen", 1)


async def test_freeze_by_a_rule_outlives_a_crash_after_its_event(own_world: ServiceWorld) -> None:
    world = own_world
    wallet, to = await world.wallet(), await world.payee()
    watcher = Watcher(
        world.service.db, world.service.projector, world.settings, chain_clock=world.service.clock.seen_ms
    )
    await world.service.db.write(begin)
    await world.ok("PUT", _path(wallet), {"largeTransaction": {"threshold": "5", "freeze": True}})
    await world.pay(wallet, to, "6")
    # The process dies after the event is stored and before the freeze begins.
    [brake] = await world.service.db.write(watcher._read_feed)
    assert (brake.org, brake.scope) == (world.org, wallet["wallet_id"])
    await world.restart()
    error_of(await world.pay(wallet, to, "1"), 422, "wallet_frozen")


@pytest.mark.proves("alert large_transaction")
async def test_escrow_is_a_large_transaction_too(alarmed: tuple[ServiceWorld, Mailbox]) -> None:
    world, _ = alarmed
    wallet, receiving = await world.wallet(), await world.wallet(funds=None)
    await world.ok("PUT", _path(wallet), {"largeTransaction": {"threshold": "30"}})
    body = {
        "fromWallet": wallet["wallet_id"],
        "toWallet": receiving["wallet_id"],
        "amount": "31",
        "currency": "USDC",
        "taskDescription": "Work",
        "timeoutSeconds": 600,
    }
    escrow = await world.ok("POST", "/v1/payments/a2a", body)

    [large] = await _reported(world, wallet, "alert.large_transaction", 1)

    assert (large["amount"], large["recipient"]) == ("31.00", receiving["wallet_id"])
    assert large["tx_signature"] == escrow["tx_signature"]
