"""Transactions: confirmed ones from the chain, pending, blocked and failed ones from the service's attempts."""

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from functools import cache
from itertools import product
from typing import Any, ClassVar

from sqlalchemy import Column, ColumnElement, Connection, and_, bindparam, func, or_, select, true

from app.core.hosts import ANY_HOST
from app.core.pages import RecordPage
from app.core.transaction_types import FUNDING, STATUSES, TYPES, TransactionStatus, TransactionType
from app.database.paging import Listing, fetch_page, listing, unindexed
from app.database.records import fetch_one
from app.store.read_tables import RECIPIENT_GIVEN, allowances
from app.store.read_tables import transactions as table
from app.store.x402 import paid_status, payloads


@dataclass(frozen=True, slots=True)
class TransactionRecord:
    """A movement of money, or an attempt at one. `amount` is in micro-USDC."""

    currency: ClassVar = "USDC"
    tx_id: str
    org: str
    wallet_id: str
    type: TransactionType
    recipient: str | None
    recipient_address: str | None
    amount: int
    status: TransactionStatus
    signature: str | None
    instruction_index: int | None
    inner_index: int | None
    slot: int | None
    policy_id: str | None
    policy_triggered: bool
    memo: str | None
    attestation_hash: str | None
    violation: dict[str, Any] | None
    error: str | None
    timestamp: int
    refusals: int | None


@dataclass(frozen=True, slots=True)
class TransactionFilter:
    """Narrows a list of transactions. `start` is inclusive, `end` exclusive, in Unix milliseconds.

    `x402_host` selects x402 payments for a host's resources, or for the resources of any host if it is `*`.
    """

    wallet_id: str | None = None
    status: str | None = None
    type: str | None = None
    recipient: str | None = None
    start: int | None = None
    end: int | None = None
    x402_host: str | None = None


_COLUMNS = [table.c[field.name] for field in fields(TransactionRecord)]
# Built once: building a statement takes longer than executing it.
_BY_ID = select(*_COLUMNS).where(table.c.tx_id == bindparam("tx_id"), table.c.org == bindparam("org"))
_FILTERS = [field.name for field in fields(TransactionFilter)]
_RECIPIENT_COLUMNS = ("recipient_address", "recipient")
_PERIOD = {
    "start": table.c.timestamp >= bindparam("start"),
    "end": table.c.timestamp < bindparam("end"),
}
# Matches the recipient as given only if it is not the address, so that each row is found once.
_RECIPIENT = (
    table.c.recipient_address == bindparam("recipient"),
    and_(table.c.recipient == bindparam("recipient"), RECIPIENT_GIVEN),
)


def transaction(connection: Connection, org: str, tx_id: str) -> TransactionRecord | None:
    """Return the organisation's transaction with this id, or None."""
    return fetch_one(connection, TransactionRecord, _BY_ID, {"tx_id": tx_id, "org": org})


def funded_since(connection: Connection, wallet_id: str, since: int) -> int:
    """Return the micro-USDC of a wallet's confirmed and pending fundings and top-ups after a Unix millisecond."""
    return int(connection.scalar(_FUNDED, {"wallet": wallet_id, "since": since}) or 0)


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
    given = frozenset(values)
    chosen = _listing(given) if wanted.x402_host is None else _paid_for(given, any_host=wanted.x402_host == ANY_HOST)
    return fetch_page(connection, TransactionRecord, chosen, {"org": org, **values}, limit=limit, cursor=cursor)


@cache
def _listing(given: frozenset[str]) -> Listing:
    """Return the list for these members of the filter."""
    of_wallet = "wallet_id" in given
    query = select(*_COLUMNS).where(
        (unindexed(table.c.org) if of_wallet else table.c.org) == bindparam("org"),
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


@cache
def _paid_for(given: frozenset[str], *, any_host: bool) -> Listing:
    """Return the list of payments for resources, for these members of the filter.

    It is read from the payloads, which have the same ids and times as the transactions. The other filters are checked
    row by row, because all of these rows are payments and most of them are confirmed.
    """
    scope = "wallet_id" if "wallet_id" in given else "org"
    ordered = {"timestamp": payloads.c.created_at, "tx_id": payloads.c.tx_id}
    columns = [ordered[one.name].label(one.name) if one.name in ordered else one for one in _COLUMNS]
    query = (
        select(*columns)
        .join_from(payloads, table, table.c.tx_id == payloads.c.tx_id)
        .where(payloads.c[scope] == bindparam(scope))
    )
    if scope == "wallet_id":
        query = query.where(unindexed(payloads.c.org) == bindparam("org"))
    if not any_host:
        query = query.where(payloads.c.host == bindparam("x402_host"))
    if "status" in given:
        query = query.outerjoin(allowances, allowances.c.tx_id == payloads.c.tx_id)
        query = query.where(paid_status(table.c.status) == bindparam("status"))
    if "type" in given:
        query = query.where(unindexed(table.c.type) == bindparam("type"))
    if "recipient" in given:
        query = query.where(or_(*(unindexed(table.c[name]) == bindparam("recipient") for name in _RECIPIENT_COLUMNS)))
    if "start" in given:
        query = query.where(payloads.c.created_at >= bindparam("start"))
    if "end" in given:
        query = query.where(payloads.c.created_at < bindparam("end"))
    return replace(listing(query, time=payloads.c.created_at, key=payloads.c.tx_id), time=table.c.timestamp.name)


_FUNDED = select(func.sum(table.c.amount)).where(
    table.c.wallet_id == bindparam("wallet"),
    table.c.type == FUNDING,
    table.c.status.in_(("confirmed", "pending")),
    table.c.timestamp > bindparam("since"),
)


def _each(column: Column[Any], values: Sequence[str], given: frozenset[str]) -> list[ColumnElement[bool]]:
    """Return the filter's condition on a column, or one condition per possible value if the filter has none."""
    return [column == bindparam(column.name)] if column.name in given else [column == value for value in values]
