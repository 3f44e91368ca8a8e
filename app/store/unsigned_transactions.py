"""Transactions that wait for a signature made elsewhere, each stored together with its attempt."""

from dataclasses import dataclass
from typing import Any, Final

from sqlalchemy import Connection, Select, UniqueConstraint, exists, select, update

from app.database.record_tables import table_of
from app.database.records import fetch_all, fetch_one
from app.store.attempts import Attempt
from app.store.attempts import table as attempts

AWAITING: Final = "awaiting_signature"
"""Status of an attempt with a transaction that lacks a signature and was never sent."""
WITHDRAWN, VOID = "withdrawn", "void"
"""Errors of attempts that were never sent: withdrawn by the organisation, or expired without a signature."""


@dataclass(frozen=True, slots=True)
class UnsignedTransaction:
    """The data of an unsigned transaction that its attempt does not contain.

    `accounts` are the accounts that the transaction changes, as read by the service, in base64 by address.
    """

    tx_id: str
    """Id of the attempt with this transaction."""
    org: str
    message_hash: str
    authority: str
    """Address of the authority that must sign."""
    accounts: dict[str, str]
    """Accounts that the transaction changes, as read at its creation: base64 data by address."""
    expires_at: int


table = table_of(
    "unsigned_transactions",
    UnsignedTransaction,
    UniqueConstraint("message_hash"),
    key=["tx_id"],
)


def unsigned_transaction(connection: Connection, org: str, tx_id: str) -> UnsignedTransaction | None:
    """Return the data of the organisation's transaction with this id, regardless of its outcome, or None."""
    return fetch_one(connection, UnsignedTransaction, _of(org).where(table.c.tx_id == tx_id))


def unsigned_by_message(connection: Connection, org: str, message_hash: str) -> UnsignedTransaction | None:
    """Return the data of the organisation's transaction with this message hash, regardless of its outcome, or None."""
    return fetch_one(connection, UnsignedTransaction, _of(org).where(table.c.message_hash == message_hash))


def awaiting_signature(connection: Connection, org: str) -> list[tuple[UnsignedTransaction, Attempt]]:
    """Return the transactions that wait for a signature, oldest first, with their attempts."""
    waiting = select(attempts).where(attempts.c.org == org, attempts.c.status == AWAITING)
    found = fetch_all(connection, Attempt, waiting.order_by(attempts.c.created_at))
    pairs = [(unsigned_transaction(connection, org, one.tx_id), one) for one in found]
    return [(unsigned, attempt) for unsigned, attempt in pairs if unsigned is not None]


def nonces_in_use(connection: Connection, org: str) -> set[str]:
    """Return the nonce accounts needed by an unsigned or pending transaction of the organisation."""
    mine = (attempts.c.org == org, attempts.c.nonce_account.is_not(None))
    query = select(attempts.c.nonce_account).where(*mine, attempts.c.status.in_((AWAITING, "pending")))
    return set(connection.scalars(query))


def end_expired(connection: Connection, now: int) -> None:
    """Mark attempts as failed if their transaction expired without the missing signature."""
    late = exists().where(table.c.tx_id == attempts.c.tx_id, table.c.expires_at <= now)
    ended = update(attempts).where(attempts.c.status == AWAITING, late)
    connection.execute(ended.values(status="failed", error=VOID, ended_at=now))


def withdraw(connection: Connection, tx_id: str, now: int) -> bool:
    """Withdraw a transaction that waits for a signature. If it no longer waits, change nothing and return False."""
    mine = update(attempts).where(attempts.c.tx_id == tx_id, attempts.c.status == AWAITING)
    return connection.execute(mine.values(status="failed", error=WITHDRAWN, ended_at=now)).rowcount > 0


def store_signed(connection: Connection, tx_id: str, raw: bytes, signature: str) -> bool:
    """Store a waiting transaction's signed bytes before they are sent. Return False if it no longer waits."""
    mine = update(attempts).where(attempts.c.tx_id == tx_id, attempts.c.status == AWAITING)
    return connection.execute(mine.values(status="pending", raw=raw, signature=signature)).rowcount > 0


def _of(org: str) -> Select[Any]:
    return select(table).where(table.c.org == org)
