"""A mail server with configurable behaviour, and alerts with their own database, projection and clock."""

import asyncio
import hashlib
import secrets
import ssl
from collections.abc import Callable
from dataclasses import dataclass, replace
from email import message_from_bytes
from email.message import EmailMessage
from email.policy import default
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from aiosmtpd.smtp import SMTP, AuthResult, Envelope, Session
from solders.keypair import Keypair
from solders.signature import Signature
from sqlalchemy import select

from app.alerts.mailer import Mailer
from app.alerts.watcher import Watcher
from app.core.identifiers import wallet_id
from app.core.settings import Settings
from app.core.timestamps import iso_ms
from app.database import SqliteDatabase
from app.database.record_tables import insert_record
from app.projection.projector import Projector
from app.store.alert_kinds import AlertType
from app.store.alert_mails import Mail
from app.store.alert_mails import table as mails
from app.store.alerts import AlertRule, put_rules
from app.store.feed import FeedEvent, append_event, feed
from app.store.organisations import Organisation
from app.store.schema import create_tables
from app.store.wallets import WalletDetails, insert_wallet_details
from indexer import StoredEvent

SECOND, MINUTE, HOUR = 1000, 60 * 1000, 60 * 60 * 1000
USDC = 1_000_000
OPS = "ops@example.com"
_NOBODY = str(Keypair().pubkey())


# The mail server

Answer = Callable[[str], str | None]
"""Returns the response to a message for an address, or None for no response."""


def accepts(_address: str) -> str | None:
    return "250 accepted"


def refuses(_address: str) -> str | None:
    return "554 we do not want it"


def fails(_address: str) -> str | None:
    return "451 come back later"


def hangs(_address: str) -> str | None:
    return None


class Mailbox:
    """A real SMTP server on this machine. `answer` accepts or refuses each message; `received` holds the accepted ones.

    `asked` holds the addresses as clients wrote them, because the server's library decodes encoded words in addresses.
    """

    def __init__(
        self, answer: Answer = accepts, *, tls: ssl.SSLContext | None = None, login: tuple[bytes, bytes] | None = None
    ) -> None:
        self.answer = answer
        self.received: list[EmailMessage] = []
        self.envelopes: list[tuple[str | None, list[str]]] = []
        self.asked: list[str | None] = []
        self.tried = 0
        self.encrypted = False
        self._tls = tls
        self._login = login

    async def __aenter__(self) -> Self:
        asked = self.asked

        class Noting(SMTP):
            async def smtp_RCPT(self, arg: str | None) -> None:  # noqa: N802 - aiosmtpd's
                asked.append(arg)
                await super().smtp_RCPT(arg)

        def protocol() -> SMTP:
            return Noting(
                self,
                tls_context=self._tls,
                require_starttls=self._tls is not None,
                auth_required=self._login is not None,
                authenticator=self._authenticate,
            )

        self._server = await asyncio.get_running_loop().create_server(protocol, "127.0.0.1", 0)
        self.port = int(self._server.sockets[0].getsockname()[1])
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._server.close()

    @property
    def subjects(self) -> list[str]:
        return [str(one["Subject"]) for one in self.received]

    async def handle_DATA(self, _server: SMTP, session: Session, envelope: Envelope) -> str:  # noqa: N802 - aiosmtpd's
        self.tried += 1
        [address] = envelope.rcpt_tos
        answer = self.answer(address)
        if answer is None:
            await asyncio.Event().wait()
        assert answer is not None
        if answer.startswith("2"):
            assert isinstance(envelope.content, bytes)
            self.received.append(message_from_bytes(envelope.content, policy=default))
            self.envelopes.append((envelope.mail_from, envelope.rcpt_tos))
            self.encrypted = session.ssl is not None
        return answer

    def _authenticate(self, _server: Any, _session: Any, _envelope: Any, _mechanism: str, data: Any) -> AuthResult:
        return AuthResult(success=(data.login, data.password) == self._login, handled=False)


# The wallets


def _row(number: int, name: str, org: str, block_time: int, data: dict[str, Any]) -> StoredEvent:
    """Return the row that the indexer would have stored for an event."""
    signature = str(Signature(secrets.token_bytes(64)))
    return StoredEvent(
        number,
        signature,
        0,
        0,
        number,
        block_time,
        _NOBODY,
        hashlib.sha256(signature.encode()).hexdigest(),
        name,
        org,
        data,
    )


@dataclass(slots=True)
class Vault:
    """A test's wallet, with the data needed to build the wallet's next event."""

    org: str
    address: str
    balance: int = 0
    sequence: int = 0

    @property
    def wallet_id(self) -> str:
        return wallet_id(self.address)


class Scene:
    """Wallets with events at a time set by the test: `now`, in Unix milliseconds.

    The test provides the rows of the chain; everything else belongs to the service. A scene opened again in the same
    folder continues with its database, like a restarted process.
    """

    def __init__(self, folder: Path, *, rows: list[StoredEvent] | None = None, **settings: Any) -> None:
        self.now = 1_777_600_000_000
        self.rows = [] if rows is None else rows
        self.db = SqliteDatabase(folder / "alerts.db", create_tables)
        self.settings = Settings(smtp_tls="none", alert_interval=3600, **settings)
        self.projector = Projector(self.db, self._changes)
        self.watcher = Watcher(
            self.db, self.projector, self.settings, chain_clock=lambda: self.now, clock=lambda: self.now
        )

    async def _changes(self, after: int, limit: int) -> list[StoredEvent]:
        return [row for row in self.rows if row.id > after][:limit]

    async def open(self) -> None:
        """Start the watcher, which makes its first check. The test triggers all later checks."""
        await self.watcher.start()
        await self.settled()

    async def close(self) -> None:
        await self.watcher.stop()
        self.db.close()

    def mailer(self, timeout: float = 5.0, tls_context: ssl.SSLContext | None = None) -> Mailer:
        return Mailer(self.db, self.settings, timeout=timeout, tls_context=tls_context, clock=lambda: self.now)

    async def mail(self) -> None:
        """Send the e-mails that are due now."""
        await self.mailer().tick()

    def organisation(self, name: str = "org") -> str:
        org = str(Keypair().pubkey())
        made = Organisation(org, name, "Acme", _NOBODY, _NOBODY, _NOBODY, 1)
        self.db.write_now(lambda conn: insert_record(conn, made))
        return org

    async def wallet(self, org: str, balance: int = 100, label: str = "Agent") -> Vault:
        vault = Vault(org, str(Keypair().pubkey()))
        details = WalletDetails(vault.wallet_id, org, vault.address, vault.address, label, (), self.now)
        self.db.write_now(lambda conn: insert_wallet_details(conn, details))
        self._happens(
            vault,
            "WalletCreated",
            vault_tokens=_NOBODY,
            policy=_NOBODY,
            agent_hash="",
            session_authority=_NOBODY,
            session_expires_at=0,
        )
        if balance:
            self._fund(vault, balance)
        await self.settled()
        return vault

    async def fund(self, vault: Vault, amount: int) -> None:
        self._fund(vault, amount)
        await self.settled()

    async def pay(self, vault: Vault, amount: int, count: int = 1) -> None:
        for _ in range(count):
            self.pay_unseen(vault, amount)
        await self.settled()

    def pay_unseen(self, vault: Vault, amount: int) -> None:
        """Append a payment to the chain's rows, which the service has not read yet."""
        vault.balance -= amount
        self._happens(
            vault,
            "PaymentExecuted",
            recipient=_NOBODY,
            amount=amount * USDC,
            balance=vault.balance * USDC,
            policy=_NOBODY,
            approval="1" * 32,
            co_signed=False,
            by_session=False,
            reference=secrets.token_hex(16),
        )

    async def release(self, payer: Vault, receiver: Vault, amount: int) -> None:
        """Release an escrow from one wallet to another."""
        receiver.balance += amount
        self._happens(
            payer,
            "EscrowSettled",
            escrow=_NOBODY,
            outcome="Completed",
            amount=amount * USDC,
            released=amount * USDC,
            refunded=0,
            surplus=0,
            surplus_to_receiver=False,
            receiver=receiver.address,
            receiver_is_vault=True,
            receiver_balance=receiver.balance * USDC,
            receiver_owed=0,
            vault_owed=0,
            vault_balance=payer.balance * USDC,
        )
        await self.settled()

    def revert_last(self) -> None:
        """Roll the last transaction back."""
        gone = self.rows.pop()
        data = {"events": [{**gone.data, "name": gone.name, "org": gone.org}]}
        reverted = replace(gone, name="TransactionReverted", org=None, data=data, instruction=-1, inner=-1)
        self.rows.append(replace(reverted, id=gone.id + 1, block_time=self.now // 1000))

    async def archive(self, vault: Vault) -> None:
        self._happens(vault, "WalletClosed")
        await self.settled()

    def block(self, vault: Vault, *, recipient: str = _NOBODY) -> None:
        """Append a payment that the policy refuses."""
        payload = {
            "wallet_id": vault.wallet_id,
            "tx_id": f"tx_{secrets.token_hex(8)}",
            "attempted_amount": "6.00",
            "recipient": recipient,
            "violation": {"rule": "max_per_tx", "limit": "5.00", "attempted": "6.00"},
            "timestamp": iso_ms(self.now),
        }
        self.db.write_now(
            lambda conn: append_event(
                conn,
                event_id=f"evt_{payload['tx_id']}",
                org=vault.org,
                type="transaction.blocked",
                timestamp=self.now,
                wallet_id=vault.wallet_id,
                payload=payload,
            )
        )

    def rule(
        self,
        scope: str | Vault,
        kind: AlertType,
        threshold: int | None = None,
        emails: list[str] | None = None,
        *,
        enabled: bool | None = None,
    ) -> None:
        """Replace the rules of an organisation or a wallet with this one. Money is in micro-USDC."""
        name, org = (scope, scope) if isinstance(scope, str) else (scope.wallet_id, scope.org)
        on = threshold is not None if enabled is None else enabled
        new = AlertRule(name, kind, org, on, threshold, emails, self.now)
        self.db.write_now(lambda conn: put_rules(conn, name, [new]))
        self.watcher.rules_changed()

    async def settled(self) -> None:
        await self.projector.catch_up()

    async def look(self) -> None:
        await self.watcher.tick()

    def reported(self, vault: Vault, kind: str) -> list[FeedEvent]:
        """Return a wallet's events of a type, oldest first."""
        found = self.db.read_now(lambda conn: feed(conn, vault.org, limit=10_000)).data
        return [one for one in reversed(found) if one.type == kind and one.wallet_id == vault.wallet_id]

    def mails(self) -> list[Mail]:
        """Return all e-mails, with any status."""
        rows = self.db.read_now(
            lambda conn: conn.execute(select(mails).order_by(mails.c.created_at, mails.c.mail_id)).all()
        )
        return [Mail(**row._mapping) for row in rows]

    def _fund(self, vault: Vault, amount: int) -> None:
        vault.balance += amount
        balance = vault.balance * USDC
        self._happens(
            vault,
            "WalletFunded",
            amount=amount * USDC,
            vault_balance=balance,
            reserve_balance=0,
            reference=secrets.token_hex(16),
        )

    def _happens(self, vault: Vault, name: str, **data: Any) -> None:
        vault.sequence += 1
        number = self.rows[-1].id + 1 if self.rows else 1
        fields = {**data, "vault": vault.address, "sequence": vault.sequence}
        self.rows.append(_row(number, name, vault.org, self.now // 1000, fields))
