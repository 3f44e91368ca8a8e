"""Sends the queued e-mails of alerts through an SMTP server."""

import asyncio
import socket
import ssl
from collections.abc import Callable
from datetime import UTC, datetime
from email.message import EmailMessage
from email.policy import SMTP
from typing import ClassVar

import aiosmtplib
import structlog
from sqlalchemy import Connection

from app.core.background import Periodic
from app.core.settings import Settings
from app.core.timestamps import now_ms
from app.database.claims import release
from app.database.interface import Database
from app.store.alert_mails import Mail, claim_mails, due_mails, mails_of, purge, record_failure, record_sent
from app.store.alert_mails import table as mails_table

_log = structlog.get_logger(__name__)

TIMEOUT = 10.0
"""Seconds within which the mail server must accept an e-mail."""
_PURGE_BATCH = 500
"""Maximum number of e-mails deleted per tick, so that due e-mails need not wait long."""
_PURGE_INTERVAL = 60 * 60 * 1000


class Mailer(Periodic):
    """Sends due e-mails at the start and every `interval` seconds.

    Each e-mail goes to one address, so that a wrong address does not delay others. An e-mail that was being sent when
    the process died is sent again, because its outcome is unknown. Mail clients recognise the copy by its Message-ID. A
    running process remembers each outcome until the database has stored it. A failure of the database therefore does
    not cause a second e-mail. With several nodes, each node claims e-mails in the database and sends only those.
    """

    name = "alert_mails"
    slack: ClassVar[bool] = False
    """True to send the queued Slack messages instead of the e-mails."""
    at_once: ClassVar[int] = 4
    """Maximum number of simultaneous connections of a node."""

    def __init__(
        self,
        db: Database,
        settings: Settings,
        *,
        timeout: float = TIMEOUT,
        tls_context: ssl.SSLContext | None = None,
        clock: Callable[[], int] = now_ms,
    ) -> None:
        """Use the server of `settings`. Without `tls_context`, the system's certificate authorities are trusted."""
        super().__init__(settings.alert_interval)
        self._db = db
        self._settings = settings
        self._timeout = timeout
        self._tls_context = tls_context or (None if settings.smtp_tls == "none" else ssl.create_default_context())
        self._clock = clock
        self._outcomes: dict[str, str | None] = {}
        """Outcomes that are not stored yet, by the e-mail's id: the error, or None on success."""
        self._purge_at = 0
        self._stopping = False
        self._sending: asyncio.Task[None] | None = None

    async def stop(self) -> None:
        """Stop once every e-mail that is being sent has been accepted or has failed."""
        self._stopping = True
        await super().stop()
        if self._sending is not None:
            await asyncio.gather(self._sending, return_exceptions=True)

    async def tick(self) -> None:
        """Send all due e-mails, and delete some old ones."""
        self._sending = asyncio.create_task(self._send_due())
        # A cancelled tick must not cancel the sending.
        await asyncio.shield(self._sending)

    async def _send_due(self) -> None:
        now = self._clock()
        while not self._stopping and (mails := await self._due(now)):
            # Wait for all attempts before raising an error. Otherwise the next tick would resend e-mails that are still
            # being sent.
            ended = await asyncio.gather(*(self._attempt(mail) for mail in mails), return_exceptions=True)
            for error in ended:
                if error is not None:
                    raise error
        if now >= self._purge_at:
            # Set the time of the next purge before this one, so that a failing purge is not repeated at every tick.
            self._purge_at = now + _PURGE_INTERVAL
            if await self._db.write(lambda conn: purge(conn, now, limit=_PURGE_BATCH)):
                self._purge_at = now

    async def _due(self, now: int) -> list[Mail]:
        node, most, slack = self._db.node, self.at_once, self.slack
        due = await self._db.look_up(lambda conn: due_mails(conn, now, most, slack=slack))
        if not node or not due:
            return due
        claimed = await self._db.write_unordered(lambda conn: claim_mails(conn, now, most, node, slack=slack))
        return await self._db.read(lambda conn: mails_of(conn, claimed)) if claimed else []

    async def _attempt(self, mail: Mail) -> None:
        """Send an e-mail and store its outcome. An e-mail with a remembered outcome is not sent again."""
        if mail.mail_id not in self._outcomes:
            self._outcomes[mail.mail_id] = await self._send(mail)
        error, now = self._outcomes[mail.mail_id], self._clock()
        if error is None:
            await self._db.write(lambda conn: record_sent(conn, mail, now))
        elif await self._db.write(lambda conn: self._fail(conn, mail, error, now)):
            _log.error("alert_mail_given_up", event_id=mail.event_id, error=error)
        else:
            _log.warning("alert_mail_failed", event_id=mail.event_id, error=error)
        del self._outcomes[mail.mail_id]
        if self._db.node:
            await self._db.write_unordered(lambda conn: release(conn, mails_table.name, mail.mail_id, self._db.node))

    def _fail(self, conn: Connection, mail: Mail, _error: str, now: int) -> bool:
        """Store a failed attempt. Return True if it was the last one."""
        return record_failure(conn, mail, now)

    async def _send(self, mail: Mail) -> str | None:
        """Send an e-mail once. Returns the error, or None if the server accepted the e-mail."""
        settings = self._settings
        password = settings.smtp_password
        try:
            async with asyncio.timeout(self._timeout):
                await aiosmtplib.send(
                    _message(mail, settings),
                    # Pass the addresses explicitly. Otherwise the library would read them from the headers, and might
                    # decode them.
                    sender=settings.smtp_from,
                    recipients=[mail.recipient],
                    hostname=settings.smtp_host,
                    port=settings.smtp_port,
                    # The library's default name needs a DNS lookup, which may take longer than the whole delivery.
                    local_hostname=socket.gethostname(),
                    username=settings.smtp_username,
                    password=None if password is None else password.get_secret_value(),
                    use_tls=settings.smtp_tls == "tls",
                    start_tls=settings.smtp_tls == "starttls",
                    tls_context=self._tls_context,
                    timeout=self._timeout,
                )
        except TimeoutError:
            return "timeout"
        except aiosmtplib.SMTPResponseException as refused:
            return f"{type(refused).__name__} {refused.code}"
        except aiosmtplib.SMTPRecipientsRefused as refused:
            return f"{type(refused).__name__} {refused.recipients[0].code}"
        except Exception as failed:  # noqa: BLE001 - an e-mail that cannot be composed must not block the queue
            # An error's message may contain addresses, which must not be logged.
            return type(failed).__name__
        return None


def _message(mail: Mail, settings: Settings) -> EmailMessage:
    """Return the message of an e-mail. A copy has the same Message-ID, which derives from the event and the sender."""
    assert settings.smtp_from is not None
    message = EmailMessage(policy=SMTP)
    message["From"] = settings.smtp_from
    message["To"] = mail.recipient
    message["Subject"] = mail.subject
    message["Message-ID"] = f"<{mail.event_id}@{settings.smtp_from.rpartition('@')[2]}>"
    message["Date"] = datetime.fromtimestamp(mail.created_at / 1000, UTC)
    message["Auto-Submitted"] = "auto-generated"
    message.set_content(mail.body)
    return message
