"""E-mails of alerts through a real SMTP server, with a clock that the test moves."""

import asyncio
import signal
import subprocess
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from pydantic import SecretStr, ValidationError
from sqlalchemy import Connection
from sqlalchemy.exc import DatabaseError
from structlog.testing import capture_logs

from app.alerts.mailer import Mailer
from app.core.event_catalogue import EVENTS
from app.core.settings import Settings
from app.database.records import columns_of
from app.store.alert_kinds import EVENT_OF, TYPE_OF, AlertType
from app.store.alert_mails import purge, table
from app.store.deliveries import LIFETIME
from app.store.feed import append_event
from tests.support.alerts import HOUR, MINUTE, OPS, USDC, Mailbox, Scene, Vault, accepts, fails, hangs, refuses
from tests.support.certificates import certificate
from tests.support.warm import programs

_SCHEDULE = [0, 1 * MINUTE, 5 * MINUTE, 30 * MINUTE, 120 * MINUTE]
_FROM = "vault@example.com"


@pytest_asyncio.fixture
async def mailbox() -> AsyncIterator[Mailbox]:
    async with Mailbox() as opened:
        yield opened


@pytest_asyncio.fixture
async def scene(tmp_path: Path, mailbox: Mailbox) -> AsyncIterator[Scene]:
    opened = _scene(tmp_path, mailbox)
    await opened.open()
    yield opened
    await opened.close()


def _scene(folder: Path, mailbox: Mailbox, **settings: Any) -> Scene:
    return Scene(folder, smtp_host="127.0.0.1", smtp_port=mailbox.port, smtp_from=_FROM, **settings)


async def _blocked(scene: Scene, *emails: str) -> Vault:
    """A wallet with a refused payment to be mailed."""
    wallet = await scene.wallet(scene.organisation(), label="Agent")
    scene.rule(wallet.org, "policy_violation", emails=list(emails or (OPS,)), enabled=True)
    scene.block(wallet)
    await scene.look()
    return wallet


# What is sent, and to whom


async def test_mail_says_what_happened_to_which_wallet(scene: Scene, mailbox: Mailbox) -> None:
    org = scene.organisation()
    scene.rule(org, "balance_low", 10 * USDC, [OPS])
    wallet = await scene.wallet(org, 30, label="Einkäufer 7")
    await scene.pay(wallet, 26)
    await scene.look()
    await scene.mail()

    [event] = scene.reported(wallet, "balance.low")
    [message] = mailbox.received
    assert mailbox.envelopes == [(_FROM, [OPS])]
    assert (message["From"], message["To"]) == (_FROM, OPS)
    assert message["Subject"] == "Balance low: Einkäufer 7"
    assert message["Message-ID"] == f"<{event.event_id}@example.com>"
    assert message["Auto-Submitted"] == "auto-generated"
    assert message.get_content_type() == "text/plain"
    assert message.get_content().splitlines() == [
        "The balance of a wallet is below its threshold.",
        "",
        f"Wallet:      Einkäufer 7 ({wallet.wallet_id})",
        "Balance:     4.00 USDC",
        "Threshold:   10.00 USDC",
        "Time:        2026-05-01 01:46:40 UTC",
        f"Event:       {event.event_id}",
        f"Link:        http://127.0.0.1:8402/dashboard/vaults/{wallet.wallet_id}",
    ]


async def test_each_type_of_alert_is_mailed(scene: Scene, mailbox: Mailbox) -> None:
    rules: list[tuple[AlertType, int]] = [("velocity_spike", 1), ("large_transaction", 10 * USDC), ("inactivity", 24)]
    for kind, threshold in rules:
        wallet = await scene.wallet(scene.organisation(kind))
        scene.rule(wallet.org, kind, threshold, [OPS])
        await scene.pay(wallet, 1)
        await scene.pay(wallet, 20)
        await scene.look()
    await _blocked(scene)
    scene.now += 24 * HOUR
    await scene.look()
    await scene.mail()

    texts = {str(one["Subject"]): one.get_content().replace("\r\n", "\n") for one in mailbox.received}
    assert set(texts) == {
        "Velocity spike: Agent",
        "Large transaction: Agent",
        "Inactivity: Agent",
        "Policy violation: Agent",
    }
    assert len(mailbox.received) == 4
    assert "Count:       2\n" in texts["Velocity spike: Agent"]
    assert "Threshold:   1 an hour\n" in texts["Velocity spike: Agent"]
    assert "Amount:      20.00 USDC\nThreshold:   10.00 USDC\n" in texts["Large transaction: Agent"]
    assert "Threshold:   24 hours\n" in texts["Inactivity: Agent"]
    assert "Rule:        max_per_tx\nLimit:       5.00\nAttempted:   6.00\n" in texts["Policy violation: Agent"]


@pytest.mark.proves("alert security", "PutSecurityAlert(emails, enabled)")
@pytest.mark.proves(
    "alert approvals", "alert pauses", "alert spending_limit", "alert stopped_payments", "alert webhooks"
)
@pytest.mark.parametrize("event", sorted(set(TYPE_OF) - set(EVENT_OF.values())))
async def test_events_without_a_threshold_are_mailed_with_a_link(scene: Scene, mailbox: Mailbox, event: str) -> None:
    wallet = await scene.wallet(scene.organisation())
    scene.rule(wallet.org, TYPE_OF[event], emails=[OPS], enabled=True)
    kind = EVENTS[event]
    payload: dict[str, Any] = {
        **{name: f"the {name}" for name in (*kind.fields, *kind.optional)},
        "actor": {"type": "key", "id": "key_1"},
        "wallet_id": wallet.wallet_id,
    }
    of_wallet = wallet.wallet_id if "wallet_id" in kind.fields else None
    about: dict[str, Any] = {"org": wallet.org, "wallet_id": of_wallet, "payload": payload}
    scene.db.write_now(lambda conn: append_event(conn, event_id="evt_1", type=event, timestamp=scene.now, **about))
    await scene.look()
    await scene.mail()

    [message] = mailbox.received
    text = message.get_content()
    name = "the name" if "name" in kind.fields else "organisation"
    assert ("Agent" if of_wallet else name) in message["Subject"]
    # Without another page, the link leads to the vault's page or to the front page.
    page = kind.mail_link.replace("{", "the ").replace("}", "") or (f"vaults/{wallet.wallet_id}" if of_wallet else "")
    assert f"http://127.0.0.1:8402/dashboard/{page}".rstrip("/") in text.splitlines()[-1]
    assert ("Wallet:" in text) == bool(of_wallet)
    assert ("key key_1" in text) == ("actor" in kind.fields)


async def test_mails_go_to_the_addresses_of_the_rule_that_holds(scene: Scene, mailbox: Mailbox) -> None:
    org = scene.organisation()
    wallets = [await scene.wallet(org, label=f"{number}") for number in range(4)]
    scene.rule(org, "policy_violation", emails=["a@example.com", "b@example.com"], enabled=True)
    scene.rule(wallets[1], "policy_violation", emails=["own@example.com"], enabled=True)
    scene.rule(wallets[2], "policy_violation", emails=None, enabled=False)
    scene.rule(wallets[3], "policy_violation", emails=None, enabled=True)
    for one in wallets:
        scene.block(one)
    scene.block(await scene.wallet(scene.organisation("other")))
    await scene.look()
    await scene.look()
    await scene.mail()

    sent = sorted((str(one["To"]), str(one["Subject"])[-1]) for one in mailbox.received)
    common = [(f"{name}@example.com", number) for name in "ab" for number in "03"]
    assert sent == [*common, ("own@example.com", "1")]


async def test_line_breaks_in_a_label_add_no_header_and_no_line(scene: Scene, mailbox: Mailbox) -> None:
    label = "Agent\r\nBcc: thief@example.com\r\n\r\nAmount: 0\u2028\x85x"
    wallet = await scene.wallet(scene.organisation(), label=label)
    scene.rule(wallet.org, "policy_violation", emails=[OPS], enabled=True)
    scene.block(wallet, recipient="a\nTime: \u202enever\u200b")
    await scene.look()
    await scene.mail()

    [message] = mailbox.received
    assert message["Subject"] == "Policy violation: Agent Bcc: thief@example.com Amount: 0 x"
    assert message["Bcc"] is None
    assert mailbox.envelopes == [(_FROM, [OPS])]
    assert "Recipient:   a Time: never" in message.get_content().splitlines()
    names = [line.partition(":")[0] for line in message.get_content().splitlines()[2:]]
    assert names == ["Wallet", "Amount", "Recipient", "Rule", "Limit", "Attempted", "Refusals", "Time", "Event", "Link"]


async def test_hourly_limit_of_mails_is_announced_in_the_last_one(tmp_path: Path, mailbox: Mailbox) -> None:
    scene = _scene(tmp_path, mailbox, alert_emails_per_hour=12)
    await scene.open()
    wallet = await scene.wallet(scene.organisation())
    scene.rule(wallet.org, "policy_violation", emails=[OPS], enabled=True)
    for _ in range(3):
        scene.block(wallet)
        scene.block(wallet)
        await scene.look()
    await scene.mail()
    assert ["fewer were queued" in one.get_content() for one in mailbox.received] == [False, False, True]

    scene.now += HOUR
    scene.block(wallet)
    await scene.look()
    await scene.mail()

    assert len([one for one in mailbox.subjects if "omitted" not in one]) == 4
    assert len(scene.reported(wallet, "transaction.blocked")) == 7
    await scene.close()


@pytest.mark.proves("Limits: Alert e-mails")
async def test_wallet_uses_up_a_quarter_of_the_mails_at_most(tmp_path: Path, mailbox: Mailbox) -> None:
    scene = _scene(tmp_path, mailbox, alert_emails_per_hour=8)
    await scene.open()
    org = scene.organisation()
    loud = [await scene.wallet(org, label=f"loud {number}") for number in range(4)]
    quiet = [await scene.wallet(org, label=f"quiet {number}") for number in range(2)]
    scene.rule(org, "policy_violation", emails=[OPS], enabled=True)
    for wallet in [*loud * 5, *quiet]:
        scene.block(wallet)
        await scene.look()
    await scene.mail()

    # The last quarter is for wallets without a mail.
    told = ["loud 0", "loud 0", "loud 1", "loud 1", "loud 2", "loud 3", "quiet 0", "quiet 1"]
    assert sorted(mailbox.subjects) == [f"Policy violation: {one}" for one in told]
    await scene.close()


@pytest.mark.proves("Limits: Alert e-mails")
async def test_summary_states_the_number_of_omitted_mails(tmp_path: Path, mailbox: Mailbox) -> None:
    scene = _scene(tmp_path, mailbox, alert_emails_per_hour=4)
    await scene.open()
    wallet = await scene.wallet(scene.organisation())
    scene.rule(wallet.org, "policy_violation", emails=[OPS], enabled=True)
    for _ in range(6):
        scene.block(wallet)
        await scene.look()
        await scene.mail()
    assert mailbox.subjects == ["Policy violation: Agent"]

    scene.now += HOUR
    await scene.mail()

    assert mailbox.subjects[1:] == ["Policy violation: 5 messages omitted"]
    assert "5 messages about this type of event were omitted" in mailbox.received[1].get_content()
    scene.block(wallet)
    await scene.look()
    await scene.mail()
    assert mailbox.subjects[2:] == ["Policy violation: Agent"]
    await scene.close()


@pytest.mark.proves("Limits: Alert e-mails")
async def test_hourly_limit_is_per_organisation_and_type_of_alert(tmp_path: Path, mailbox: Mailbox) -> None:
    scene = _scene(tmp_path, mailbox, alert_emails_per_hour=12)
    await scene.open()
    loud = await scene.wallet(scene.organisation("loud"), label="loud")
    quiet = await scene.wallet(scene.organisation("quiet"), label="quiet")
    for wallet in (loud, quiet):
        scene.rule(wallet.org, "policy_violation", emails=[OPS], enabled=True)
    scene.rule(loud, "balance_low", 200 * USDC, [OPS])
    for _ in range(5):
        scene.block(loud)
    await scene.look()
    scene.block(quiet)
    await scene.look()
    await scene.mail()

    assert sorted(mailbox.subjects) == [
        "Balance low: loud",
        *["Policy violation: loud"] * 3,
        "Policy violation: quiet",
    ]
    await scene.close()


async def test_without_a_mail_server_nothing_is_queued(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    await scene.open()
    await _blocked(scene)

    assert scene.mails() == []
    await scene.close()


async def test_events_before_the_first_start_of_alerts_are_not_mailed(tmp_path: Path, mailbox: Mailbox) -> None:
    scene = _scene(tmp_path, mailbox)
    wallet = await scene.wallet(scene.organisation())
    scene.rule(wallet.org, "policy_violation", emails=[OPS], enabled=True)
    scene.block(wallet)
    await scene.open()
    await scene.look()

    assert scene.mails() == []
    await scene.close()


# Failures


@pytest.mark.parametrize("answer", [refuses, fails])
async def test_failed_mail_is_tried_five_times_then_given_up(scene: Scene, mailbox: Mailbox, answer: Any) -> None:
    mailbox.answer = answer
    await _blocked(scene)
    with capture_logs() as logs:
        for tries, delay in enumerate(_SCHEDULE):
            if delay:
                scene.now += delay - 1
                await scene.mail()
                assert mailbox.tried == tries
                scene.now += 1
            await scene.mail()
            assert mailbox.tried == tries + 1
        scene.now += 10_000 * HOUR
        await scene.mail()

    assert mailbox.tried == 5
    assert mailbox.received == []
    code = answer("").partition(" ")[0]
    named = [(one["event"], one["log_level"], one["error"]) for one in logs]
    assert named == [
        *[("alert_mail_failed", "warning", f"SMTPDataError {code}")] * 4,
        ("alert_mail_given_up", "error", f"SMTPDataError {code}"),
    ]
    assert OPS not in str(logs)


async def test_mail_that_failed_for_a_time_arrives_once(scene: Scene, mailbox: Mailbox) -> None:
    mailbox.answer = fails
    await _blocked(scene)
    await scene.mail()
    mailbox.answer = accepts
    scene.now += MINUTE
    await scene.mail()
    scene.now += 1000 * HOUR
    await scene.mail()

    assert (mailbox.tried, len(mailbox.received)) == (2, 1)
    assert [one.status for one in scene.mails()] == ["sent"]


async def test_bad_address_does_not_delay_others(scene: Scene, mailbox: Mailbox) -> None:
    mailbox.answer = lambda address: refuses(address) if address.startswith("bad") else accepts(address)
    await _blocked(scene, "bad@example.com", OPS)
    await scene.mail()

    assert {one.recipient: one.status for one in scene.mails()} == {"bad@example.com": "pending", OPS: "sent"}


async def test_mail_that_cannot_be_composed_fails_alone(scene: Scene, mailbox: Mailbox) -> None:
    # Given invalid addresses that were stored once, enough of them to fill every connection
    bad = [f"=?utf-8?q??=@{number}.example.com" for number in range(6)]
    wallet = await _blocked(scene, *bad, OPS)
    scene.rule(wallet.org, "policy_violation", emails=["late@example.com"], enabled=True)
    scene.block(wallet)
    await scene.look()
    with capture_logs() as logs:
        for delay in _SCHEDULE:
            scene.now += delay
            await scene.mail()

    assert sorted(address for _, [address] in mailbox.envelopes) == ["late@example.com", OPS]
    states = {one.recipient: one.status for one in scene.mails()}
    assert states == {**dict.fromkeys(bad, "failed"), OPS: "sent", "late@example.com": "sent"}
    assert "example.com" not in str(logs)


async def test_mail_goes_to_the_address_as_given_not_as_headers_decode_it(scene: Scene, mailbox: Mailbox) -> None:
    given = "=?utf-8?q?thief?=@example.com"
    await _blocked(scene, given)
    await scene.mail()

    assert mailbox.asked == [f"TO:<{given}>"]


async def test_outcome_that_cannot_be_stored_does_not_disturb_other_mails(scene: Scene, mailbox: Mailbox) -> None:
    def refuse(conn: Connection) -> None:
        conn.exec_driver_sql(
            "CREATE TRIGGER refuse BEFORE UPDATE ON alert_mails WHEN old.recipient = 'full@example.com'"
            " BEGIN SELECT RAISE(ABORT, 'no space'); END"
        )

    scene.db.write_now(refuse)
    mailbox.answer = lambda address: hangs(address) if address == OPS else accepts(address)
    await _blocked(scene, "full@example.com", OPS)
    with pytest.raises(DatabaseError):
        await scene.mailer(timeout=0.5).tick()

    assert {one.recipient: one.attempts for one in scene.mails()} == {"full@example.com": 0, OPS: 1}


@pytest.mark.parametrize("answer", [accepts, fails])
async def test_mail_is_not_sent_again_while_its_outcome_cannot_be_stored(
    scene: Scene, mailbox: Mailbox, answer: Any
) -> None:
    scene.db.write_now(
        lambda conn: conn.exec_driver_sql(
            "CREATE TRIGGER refuse BEFORE UPDATE ON alert_mails BEGIN SELECT RAISE(ABORT, 'no space'); END"
        )
    )
    mailbox.answer = answer
    await _blocked(scene)
    mailer = scene.mailer()
    for _ in range(3):
        with pytest.raises(DatabaseError):
            await mailer.tick()
        scene.now += MINUTE
    assert mailbox.tried == 1

    # When there is space again, the outcome is stored, and a failed e-mail follows its schedule
    scene.db.write_now(lambda conn: conn.exec_driver_sql("DROP TRIGGER refuse"))
    await mailer.tick()
    assert mailbox.tried == 1
    mailbox.answer = accepts
    scene.now += MINUTE
    await mailer.tick()

    assert [one.status for one in scene.mails()] == ["sent"]
    assert len(mailbox.received) == 1


async def test_hanging_or_unreachable_server_is_tried_again(scene: Scene, mailbox: Mailbox) -> None:
    mailbox.answer = hangs
    await _blocked(scene)
    with capture_logs() as logs:
        await scene.mailer(timeout=0.5).tick()
    assert [one["error"] for one in logs] in (["timeout"], ["SMTPTimeoutError"])
    port, mailbox.answer = mailbox.port, accepts
    scene.settings = scene.settings.model_copy(update={"smtp_port": 1})
    scene.now += MINUTE
    with capture_logs() as logs:
        await scene.mail()
    assert [one["error"] for one in logs] == ["SMTPConnectError"]

    scene.settings = scene.settings.model_copy(update={"smtp_port": port})
    scene.now += 5 * MINUTE
    await scene.mail()
    assert len(mailbox.received) == 1


async def test_running_mailer_stops_after_the_mail_being_sent(scene: Scene, mailbox: Mailbox) -> None:
    await _blocked(scene)
    mailer = scene.mailer()
    await mailer.start()
    async with asyncio.timeout(30):
        while not mailbox.tried:  # noqa: ASYNC110
            await asyncio.sleep(0.001)
    await mailer.stop()

    assert [one.status for one in scene.mails()] == ["sent"]
    assert len(mailbox.received) == 1


async def test_old_mails_are_deleted(scene: Scene) -> None:
    await _blocked(scene)
    await scene.mail()
    scene.db.write_now(lambda conn: purge(conn, scene.now + LIFETIME, limit=10))
    assert len(scene.mails()) == 1

    scene.db.write_now(lambda conn: purge(conn, scene.now + LIFETIME + 1, limit=10))

    assert scene.mails() == []


async def test_mails_are_sent_while_many_old_ones_are_deleted(scene: Scene, mailbox: Mailbox) -> None:
    wallet = await _blocked(scene)
    await scene.mail()
    [sent] = scene.mails()
    old = [columns_of(replace(sent, mail_id=f"mail_{number}")) for number in range(1199)]
    scene.db.write_now(lambda conn: conn.execute(table.insert(), old))
    scene.now += LIFETIME + 1
    mailer, remaining = scene.mailer(), []
    for _ in range(3):
        scene.block(wallet)
        await scene.look()
        await mailer.tick()
        remaining.append(len(scene.mails()))

    assert remaining == [700 + 1, 200 + 2, 3]
    assert len(mailbox.received) == 4


_DEADLY = """
import asyncio, os, signal, sys
from dataclasses import replace
from pathlib import Path
from app.alerts import mailer
from tests.support.alerts import Scene
moment, port = sys.argv[2], int(sys.argv[3])
work = mailer.record_sent
def deadly(*args):
    if moment == "recorded":
        work(*args)
    os.kill(os.getpid(), signal.SIGKILL)
mailer.record_sent = deadly
async def run():
    scene = Scene(Path(sys.argv[1]), smtp_host="127.0.0.1", smtp_port=port, smtp_from="vault@example.com")
    await scene.mail()
asyncio.run(run())
"""


@pytest.mark.parametrize("moment", ["sent", "recorded"])
async def test_killed_mailer_sends_again_under_the_same_message_id(
    scene: Scene, mailbox: Mailbox, tmp_path: Path, moment: str
) -> None:
    await _blocked(scene)
    process = await asyncio.create_subprocess_exec(
        *(programs() / "interpreter", "-c", _DEADLY, str(tmp_path), moment, str(mailbox.port)),
        stderr=subprocess.PIPE,
    )
    _, errors = await asyncio.wait_for(process.communicate(), 60)
    assert process.returncode == -signal.SIGKILL, errors.decode()
    assert len(mailbox.received) == 1

    await scene.mail()

    first, second = mailbox.received
    assert first["Message-ID"] == second["Message-ID"]
    assert first.as_bytes() == second.as_bytes()
    assert [one.status for one in scene.mails()] == ["sent"]


# Encryption and login


async def test_password_is_sent_over_starttls_to_a_trusted_server_only(tmp_path: Path) -> None:
    server, client = certificate(tmp_path, "localhost")
    async with Mailbox(tls=server, login=(b"vault", b"hunter2")) as mailbox:
        scene = _scene(tmp_path, mailbox)
        await scene.open()
        await _blocked(scene)
        encrypted: dict[str, Any] = {
            "smtp_host": "localhost",
            "smtp_port": mailbox.port,
            "smtp_from": _FROM,
            "smtp_tls": "starttls",
        }
        settings = Settings(**encrypted, smtp_username="vault", smtp_password=SecretStr("hunter2"))
        wrong = Settings(**encrypted, smtp_username="vault", smtp_password=SecretStr("hunter3"))
        with capture_logs() as logs:
            # An untrusted certificate, then a wrong password
            await Mailer(scene.db, settings, clock=lambda: scene.now).tick()
            scene.now += MINUTE
            await Mailer(scene.db, wrong, tls_context=client, clock=lambda: scene.now).tick()
        assert mailbox.received == []
        scene.now += 5 * MINUTE
        await Mailer(scene.db, settings, tls_context=client, clock=lambda: scene.now).tick()
        await scene.close()

    assert len(mailbox.received) == 1
    assert mailbox.encrypted
    assert [one["event"] for one in logs] == ["alert_mail_failed"] * 2
    assert logs[1]["error"] == "SMTPAuthenticationError 535"
    assert "hunter" not in str(logs)
    assert "hunter" not in repr(settings)


async def test_mail_is_not_sent_in_the_clear_if_encryption_is_required(tmp_path: Path, mailbox: Mailbox) -> None:
    scene = _scene(tmp_path, mailbox)
    await scene.open()
    await _blocked(scene)
    settings = scene.settings.model_copy(update={"smtp_tls": "starttls"})
    with capture_logs() as logs:
        await Mailer(scene.db, settings, clock=lambda: scene.now).tick()

    assert mailbox.received == []
    assert len(logs) == 1
    await scene.close()


@pytest.mark.parametrize(
    "given",
    [
        {"smtp_host": "mail.example.com"},
        {"smtp_host": "mail.example.com", "smtp_from": "nobody"},
        {"smtp_host": "mail.example.com", "smtp_from": "a@example.com\nBcc: b@example.com"},
        {"smtp_username": "vault"},
        {"smtp_username": "vault", "smtp_password": "x", "smtp_tls": "none"},
        {"smtp_port": 0},
    ],
)
def test_inconsistent_settings_are_refused(given: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        Settings(**given)
