"""Transactions: confirmed ones from the chain, and the service's attempts that are pending, blocked or failed."""

from dataclasses import dataclass, fields
from typing import Any

from sqlalchemy import ColumnElement, Connection, Row, bindparam, select

from app.store.paging import Page, fetch_page, sought
from app.store.read_tables import transactions as table

PAYMENT = "payment"
FUNDING = "funding"
WITHDRAWAL = "withdrawal"
ESCROW_LOCK, ESCROW_RELEASE, ESCROW_REFUND = "escrow_lock", "escrow_release", "escrow_refund"
A2A_SEND, A2A_RECEIVE = "a2a_send", "a2a_receive"
"""They mirror a lock and a release as what happened between two agents; in sums only the `escrow_*` rows count."""
ROW_TYPES = (PAYMENT, FUNDING, WITHDRAWAL, ESCROW_LOCK, A2A_SEND)
"""Types of attempts that are rows of the list; an attempt of another type (say, a freeze) moves no money.

An escrow that was refused is an `a2a_send`.
"""


@dataclass(frozen=True, slots=True)
class Transaction:
    """A movement of money, or the attempt at one. `amount` is in micro-USDC."""

    tx_id: str
    org: str
    wallet_id: str
    type: str
    recipient: str | None
    recipient_address: str | None
    amount: int
    status: str
    tx_signature: str | None
    on_chain_slot: int | None
    policy_id: str | None
    policy_triggered: bool
    memo: str | None
    attestation_hash: str | None
    violation: dict[str, Any] | None
    error: str | None
    timestamp: int


@dataclass(frozen=True, slots=True)
class TransactionFilter:
    """What a list of transactions is narrowed to. `start` is inclusive, `end` exclusive, in Unix milliseconds."""

    wallet_id: str | None = None
    status: str | None = None
    type: str | None = None
    recipient: str | None = None
    start: int | None = None
    end: int | None = None


#: What most rows have is no help in finding the others.
_USUAL = ("confirmed", PAYMENT)
_RENAMED = {"tx_signature": "signature", "on_chain_slot": "slot"}
_COLUMNS = [table.c[_RENAMED.get(field.name, field.name)].label(field.name) for field in fields(Transaction)]
# Built once: to build a statement takes longer than to execute it.
_BY_ID = select(*_COLUMNS).where(table.c.tx_id == bindparam("tx_id"), table.c.org == bindparam("org"))


def transaction(connection: Connection, org: str, tx_id: str) -> Transaction | None:
    """Return the organisation's transaction with this id."""
    row = connection.execute(_BY_ID, {"tx_id": tx_id, "org": org}).one_or_none()
    return None if row is None else _record(row)


def transactions(
    connection: Connection,
    org: str,
    narrowed: TransactionFilter | None = None,
    *,
    limit: int = 20,
    cursor: str | None = None,
) -> Page[Transaction]:
    """Return the organisation's transactions, newest first. Raises `InvalidCursorError`."""
    wanted = narrowed or TransactionFilter()
    rare = [one for one in (wanted.status, wanted.type) if one not in {None, *_USUAL}]
    query = select(*_COLUMNS).where(sought(table.c.org, there=wanted.wallet_id is None or bool(rare)) == org)
    either: list[ColumnElement[bool]] = []
    if wanted.wallet_id is not None:
        query = query.where(table.c.wallet_id == wanted.wallet_id)
    if wanted.status is not None:
        query = query.where(sought(table.c.status, there=wanted.status in rare) == wanted.status)
    if wanted.type is not None:
        query = query.where(sought(table.c.type, there=wanted.type in rare) == wanted.type)
    if wanted.recipient is not None:
        either = [table.c.recipient == wanted.recipient, table.c.recipient_address == wanted.recipient]
    if wanted.start is not None:
        query = query.where(table.c.timestamp >= wanted.start)
    if wanted.end is not None:
        query = query.where(table.c.timestamp < wanted.end)
    rows, more, following = fetch_page(
        connection, query, time=table.c.timestamp, key=table.c.tx_id, limit=limit, cursor=cursor, either=either
    )
    return Page([_record(row) for row in rows], more, following)


def _record(row: Row[Any]) -> Transaction:
    return Transaction(**row._mapping)  # noqa: SLF001
