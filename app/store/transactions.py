"""Transactions: confirmed ones from the chain, and the service's attempts that are pending, blocked or failed."""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import cache
from typing import Any

from sqlalchemy import Connection, bindparam, select

from app.store.paging import Listing, Page, fetch_page, listing, sought
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
_FILTERS = [field.name for field in fields(TransactionFilter)]
_CONDITIONS = {
    "wallet_id": table.c.wallet_id == bindparam("wallet_id"),
    "start": table.c.timestamp >= bindparam("start"),
    "end": table.c.timestamp < bindparam("end"),
}
_SHARED = {"status": table.c.status, "type": table.c.type}
_RECIPIENT = [table.c[name] == bindparam("recipient") for name in ("recipient", "recipient_address")]


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
    values = {name: value for name in _FILTERS if (value := getattr(wanted, name)) is not None}
    rare = frozenset(name for name in _SHARED if values.get(name, PAYMENT) not in _USUAL)
    rows, more, following = fetch_page(
        connection, _listing(frozenset(values), rare), {"org": org, **values}, limit=limit, cursor=cursor
    )
    return Page([_record(row) for row in rows], more, following)


@cache
def _listing(given: frozenset[str], rare: frozenset[str]) -> Listing:
    """Return the list for the members of the filter that are given; those in `rare` have a value that few rows have."""
    query = select(*_COLUMNS).where(
        sought(table.c.org, there="wallet_id" not in given or bool(rare)) == bindparam("org"),
        *(condition for name, condition in _CONDITIONS.items() if name in given),
        *(sought(_SHARED[name], there=name in rare) == bindparam(name) for name in _SHARED if name in given),
    )
    either = _RECIPIENT if "recipient" in given else ()
    return listing(query, time=table.c.timestamp, key=table.c.tx_id, either=either)


def _record(row: Sequence[Any]) -> Transaction:
    return Transaction(*row)
