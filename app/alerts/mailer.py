"""Sends the queued e-mails of alerts through an SMTP server."""

import asyncio
import socket
import ssl
from collections.abc import Callable
from datetime import UTC, datetime
from email.message import EmailMessage
from email.policy import SMTP

import aiosmtplib
import structlog
from pydantic import SecretStr

from app.core.background import Periodic
from app.core.settings import Settings
from app.core.timestamps import now_ms
from app.store.alert_mails import Mail, due_mails, purge, record_failure, record_sent
from app.store.database import Database

_log = structlog.get_logger(__name__)

TIMEOUT = 10.0
"""Seconds in which a server has to take an e-mail."""
_AT_ONCE = 4
"""Connections to the server at the same time."""
_PURGE_BATCH = 500
"""E-mails deleted at one look: what is due is sent in between."""
_PURGE_INTERVAL = 60 * 60 * 1000


class Mailer(Periodic):
    """Looks at the queue at the start and every `interval` seconds, and sends what is due.

    Each e-mail goes to one address, so that a wrong one holds up no other. What was sent when the process died is
    sent again, for what came of it is not known: with the same Message-ID, by which mail programs recognise it. While
    the process lives it remembers what came of an e-mail until the database has taken it, and does not send it again.
    """

    name = "alert_mails"

    def __init__(
        self,
        db: Database,
        settings: Settings,
        *,
        timeout: float = TIMEOUT,
        tls_context: ssl.SSLContext | None = None,
        clock: Callable[[], int] = now_ms,
    ) -> None:
        """Send through the server of `settings`; without `tls_context` the system's certificate authorities count."""
        super().__init__(settings.alert_interval)
        self._db = db
        self._settings = settings
        self._timeout = timeout
        self._tls_context = tls_context or (None if settings.smtp_tls == "none" else ssl.create_default_context())
        self._clock = clock
        self._outcomes: dict[str, str | None] = {}
        """Errors, None without one, of the e-mails that were sent and not yet noted, by the e-mail's id."""
        self._purge_at = 0
        self._stopping = False
        self._sending: asyncio.Task[None] | None = None

    async def stop(self) -> None:
        """End; what is being sent has its time to be taken."""
        self._stopping = True
        await super().stop()
        if self._sending is not None:
            await asyncio.gather(self._sending, return_exceptions=True)

    async def tick(self) -> None:
        """Send everything that is due at this moment."""
        self._sending = asyncio.create_task(self._send_due())
        # Ending the waiting does not end what is being sent.
        await asyncio.shield(self._sending)

    async def _send_due(self) -> None:
        now = self._clock()
        while not self._stopping and (mails := await self._db.read(lambda conn: due_mails(conn, now, _AT_ONCE))):
            # All have ended before an error of one is raised: what goes on beside the next look is sent twice.
            ended = await asyncio.gather(*(self._settle(mail) for mail in mails), return_exceptions=True)
            for error in ended:
                if error is not None:
                    raise error
        if now >= self._purge_at:
            # Set before: what fails is not tried again at every look.
            self._purge_at = now + _PURGE_INTERVAL
            if await self._db.write(lambda conn: purge(conn, now, limit=_PURGE_BATCH)):
                self._purge_at = now

    async def _settle(self, mail: Mail) -> None:
        """Make one attempt, unless it was made, and note what came of it."""
        if mail.mail_id not in self._outcomes:
            self._outcomes[mail.mail_id] = await self._send(mail)
        error, now = self._outcomes[mail.mail_id], self._clock()
        if error is None:
            await self._db.write(lambda conn: record_sent(conn, mail, now))
            last = False
        else:
            last = await self._db.write(lambda conn: record_failure(conn, mail, now))
        del self._outcomes[mail.mail_id]
        if error is not None:
            log = _log.error if last else _log.warning
            log("alert_mail_given_up" if last else "alert_mail_failed", event_id=mail.event_id, error=error)

    async def _send(self, mail: Mail) -> str | None:
        """Make one attempt; returns its error, whatever failed, or None when the server took the e-mail."""
        settings = self._settings
        try:
            async with asyncio.timeout(self._timeout):
                await aiosmtplib.send(
                    message_of(mail, settings),
                    # Not what a parser of the headers makes of them.
                    sender=settings.smtp_from,
                    recipients=[mail.recipient],
                    hostname=settings.smtp_host,
                    port=settings.smtp_port,
                    # By default it would be looked up in the DNS, which may take longer than all else.
                    local_hostname=socket.gethostname(),
                    username=settings.smtp_username,
                    password=_reveal(settings.smtp_password),
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
        except Exception as failed:  # noqa: BLE001 - a mail that cannot even be made must not come first for ever
            # Messages of errors may hold addresses, which do not belong into logs.
            return type(failed).__name__
        return None


def message_of(mail: Mail, settings: Settings) -> EmailMessage:
    """Return the message; the same e-mail always has the same Message-ID, made of its event."""
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


def _reveal(secret: SecretStr | None) -> str | None:
    return None if secret is None else secret.get_secret_value()
