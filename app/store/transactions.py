"""Transactions: confirmed ones from the chain; pending, blocked and failed ones from the service's attempts."""

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from functools import cache
from itertools import product
from typing import Any

from sqlalchemy import Column, ColumnElement, Connection, and_, bindparam, exists, func, or_, select, true

from app.core.hosts import ANY_HOST
from app.core.pages import RecordPage
from app.core.transaction_types import FUNDING, REFUSED, SPENT, STATUSES, TYPES
from app.database.paging import Listing, fetch_page, listing, unindexed
from app.database.records import fetch_one
from app.store.allowances import table as allowances
from app.store.read_tables import RECIPIENT_GIVEN, TransactionRecord
from app.store.read_tables import transactions as table
from app.store.spending import KINDS, labels
from app.store.x402 import paid_status, payloads


@dataclass(frozen=True, slots=True)
class TransactionFilter:
    """Narrows a list of transactions. `start` is inclusive, `end` exclusive, in Unix milliseconds.

    `x402_host` selects x402 payments for a host's resources, or for the resources of any host if it is `*`. `tag`,
    `budget`, `category` (its code) and `rule` select by the labels that payments and escrows keep. `spending` selects
    the transactions that sums of spending count.
    """

    wallet_id: str | None = None
    status: str | None = None
    type: str | None = None
    recipient: str | None = None
    start: int | None = None
    end: int | None = None
    x402_host: str | None = None
    tag: str | None = None
    budget: str | None = None
    category: str | None = None
    rule: str | None = None
    spending: bool | None = None


_COLUMNS = [table.c[field.name] for field in fields(TransactionRecord)]
# Built once: building a statement takes longer than executing it.
_BY_ID = select(*_COLUMNS).where(table.c.tx_id == bindparam("tx_id"), table.c.org == bindparam("org"))
_FOUND = (
    select(table.c.tx_id)
    .where(or_(table.c.tx_id == bindparam("text"), table.c.signature == bindparam("text")))
    .where(unindexed(table.c.org) == bindparam("org"))
    .limit(5)
)
_FILTERS = [field.name for field in fields(TransactionFilter)]
_RECIPIENT_COLUMNS = ("recipient_address", "recipient")
_COUNTED = [
    and_(table.c.status == status, table.c.type == kind)
    for status, kinds in (("confirmed", SPENT), ("blocked", REFUSED))
    for kind in kinds
]
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


def find_transactions(connection: Connection, org: str, text: str) -> list[str]:
    """Return the ids of up to 5 of the organisation's transactions with this id or signature."""
    return [tx_id for (tx_id,) in connection.execute(_FOUND, {"text": text, "org": org})]


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
    values.pop("spending", None)
    # Given a wallet, the list starts from its transactions, because a wallet has few payments compared with a label.
    joined = "x402_host" in given or ("wallet_id" not in given and not given.isdisjoint(KINDS))
    chosen = _joined(given, any_host=wanted.x402_host == ANY_HOST) if joined else _listing(given)
    return fetch_page(connection, TransactionRecord, chosen, {"org": org, **values}, limit=limit, cursor=cursor)


@cache
def _listing(given: frozenset[str]) -> Listing:
    """Return the query of transactions for a filter with these members."""
    of_wallet = "wallet_id" in given
    query = select(*_COLUMNS).where(
        (unindexed(table.c.org) if of_wallet else table.c.org) == bindparam("org"),
        *(condition for name, condition in _PERIOD.items() if name in given),
        *_labelled([kind for kind in KINDS if kind in given]),
    )
    if of_wallet:
        query = query.where(table.c.wallet_id == bindparam("wallet_id"))
    either: list[ColumnElement[bool]] = []
    if given & {"status", "type", "recipient", "spending"}:
        of_status = _each(table.c.status, STATUSES, given)
        of_type = _each(table.c.type, TYPES, given)
        recipients = _RECIPIENT if "recipient" in given else (true(),)
        kinds = product(of_status, of_type) if "spending" not in given else product(_COUNTED, _chosen(given))
        either = [and_(one, *conditions) for one, conditions in product(recipients, kinds)]
    return listing(query, time=table.c.timestamp, key=table.c.tx_id, either=either)


@cache
def _joined(given: frozenset[str], *, any_host: bool) -> Listing:
    """Return the query of payments for resources or with a label, for a filter with these members.

    The query reads the payloads or labels, which have the same ids and times as the transactions. The other
    filters are checked row by row, because most of these rows are confirmed payments.
    """
    kinds = [kind for kind in KINDS if kind in given]
    paid = "x402_host" in given
    scope = "wallet_id" if "wallet_id" in given else "org"
    time, key = (payloads.c.created_at, payloads.c.tx_id) if paid else (labels.c.timestamp, labels.c.tx_id)
    ordered = {"timestamp": time, "tx_id": key}
    columns = [ordered[one.name].label(one.name) if one.name in ordered else one for one in _COLUMNS]
    query = (
        select(*columns).join_from(key.table, table, table.c.tx_id == key).where(key.table.c[scope] == bindparam(scope))
    )
    if not paid:
        kind = kinds.pop()
        query = query.where(labels.c.kind == kind, labels.c.key == bindparam(kind))
    query = query.where(*_labelled(kinds))
    if scope == "wallet_id":
        query = query.where(unindexed(payloads.c.org) == bindparam("org"))
    if paid and not any_host:
        query = query.where(payloads.c.host == bindparam("x402_host"))
    if "status" in given and not paid:
        query = query.where(unindexed(table.c.status) == bindparam("status"))
    elif "status" in given:
        query = query.outerjoin(allowances, allowances.c.tx_id == payloads.c.tx_id)
        query = query.where(paid_status(table.c.status) == bindparam("status"))
    if "type" in given:
        query = query.where(unindexed(table.c.type) == bindparam("type"))
    if "spending" in given:
        query = query.where(or_(*_COUNTED))
    if "recipient" in given:
        query = query.where(or_(*(unindexed(table.c[name]) == bindparam("recipient") for name in _RECIPIENT_COLUMNS)))
    if "start" in given:
        query = query.where(time >= bindparam("start"))
    if "end" in given:
        query = query.where(time < bindparam("end"))
    return replace(listing(query, time=time, key=key), time=table.c.timestamp.name)


def _labelled(kinds: Sequence[str]) -> list[ColumnElement[bool]]:
    """Return one condition for each kind of label. The database checks these conditions row by row."""
    return [
        exists().where(one.c.tx_id == table.c.tx_id, one.c.kind == kind, one.c.key == bindparam(kind))
        for kind in kinds
        for one in [labels.alias()]
    ]


_FUNDED = select(func.sum(table.c.amount)).where(
    table.c.wallet_id == bindparam("wallet"),
    table.c.type == FUNDING,
    table.c.status.in_(("confirmed", "pending")),
    table.c.timestamp > bindparam("since"),
)


def _chosen(given: frozenset[str]) -> list[ColumnElement[bool]]:
    """Return the filter's conditions on status and type, combined into one condition."""
    chosen = [table.c[name] == bindparam(name) for name in ("status", "type") if name in given]
    return [and_(true(), *chosen)]


def _each(column: Column[Any], values: Sequence[str], given: frozenset[str]) -> list[ColumnElement[bool]]:
    """Return the filter's condition on a column, or one condition per possible value if the filter has none."""
    return [column == bindparam(column.name)] if column.name in given else [column == value for value in values]
