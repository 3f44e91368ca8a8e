"""Transactions: confirmed ones from the chain, and the service's attempts that are pending, blocked or failed."""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import cache
from itertools import product
from typing import Any

from sqlalchemy import Column, ColumnElement, Connection, and_, bindparam, literal_column, select, true

from app.store.paging import Listing, RecordPage, fetch_page, listing, sought
from app.store.read_tables import RECIPIENT_GIVEN
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
class TransactionRecord:
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


STATUSES = ("pending", "confirmed", "blocked", "failed")
TYPES = (PAYMENT, FUNDING, WITHDRAWAL, ESCROW_LOCK, ESCROW_RELEASE, ESCROW_REFUND, A2A_SEND, A2A_RECEIVE)
"""All that a row may have: one with another status or type would be missing from lists."""
_RENAMED = {"tx_signature": "signature", "on_chain_slot": "slot"}
_COLUMNS = [table.c[_RENAMED.get(field.name, field.name)].label(field.name) for field in fields(TransactionRecord)]
# Built once: to build a statement takes longer than to execute it.
_BY_ID = select(*_COLUMNS).where(table.c.tx_id == bindparam("tx_id"), table.c.org == bindparam("org"))
_FILTERS = [field.name for field in fields(TransactionFilter)]
_PERIOD = {
    "start": table.c.timestamp >= bindparam("start"),
    "end": table.c.timestamp < bindparam("end"),
}
# A row is found by what was given as its recipient only where that is not the address: so it is found once.
_RECIPIENT = (
    table.c.recipient_address == bindparam("recipient"),
    and_(table.c.recipient == bindparam("recipient"), literal_column(RECIPIENT_GIVEN)),
)


def transaction(connection: Connection, org: str, tx_id: str) -> TransactionRecord | None:
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
) -> RecordPage[TransactionRecord]:
    """Return the organisation's transactions, newest first. Raises `InvalidCursorError`."""
    wanted = narrowed or TransactionFilter()
    values = {name: value for name in _FILTERS if (value := getattr(wanted, name)) is not None}
    chosen = _listing(frozenset(values))
    rows, more, following = fetch_page(connection, chosen, {"org": org, **values}, limit=limit, cursor=cursor)
    return RecordPage([_record(row) for row in rows], more, following)


@cache
def _listing(given: frozenset[str]) -> Listing:
    """Return the list for the members of the filter that are given."""
    of_wallet = "wallet_id" in given
    query = select(*_COLUMNS).where(
        sought(table.c.org, there=not of_wallet) == bindparam("org"),
        *(condition for name, condition in _PERIOD.items() if name in given),
    )
    if of_wallet:
        query = query.where(table.c.wallet_id == bindparam("wallet_id"))
    either: list[ColumnElement[bool]] = []
    if given & {"status", "type", "recipient"}:
        of_status = _each(table.c.status, STATUSES, given)
        of_type = _each(table.c.type, TYPES, given)
        recipients = _RECIPIENT if "recipient" in given else (true(),)
        either = [and_(*conditions) for conditions in product(recipients, of_status, of_type)]
    return listing(query, time=table.c.timestamp, key=table.c.tx_id, either=either)


def _each(column: Column[Any], values: Sequence[str], given: frozenset[str]) -> list[ColumnElement[bool]]:
    """Return the condition that gives a column its value, or one for each that it may have when the filter has none."""
    return [column == bindparam(column.name)] if column.name in given else [column == value for value in values]


def _record(row: Sequence[Any]) -> TransactionRecord:
    return TransactionRecord(*row)
