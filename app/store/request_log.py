"""The request log: requests made with API keys in the last day, and their responses."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, fields
from functools import cache

from sqlalchemy import (
    BigInteger,
    Column,
    Connection,
    Index,
    Integer,
    String,
    Table,
    bindparam,
    delete,
    func,
    select,
)

from app.core.pages import RecordPage
from app.database.columns import metadata, upsert_all
from app.database.paging import Listing, fetch_page, listing
from app.database.records import columns_of
from app.store.state_tables import organisations

KEPT_MS = 86_400_000
"""Milliseconds for which a request is kept, unless its organisation has too many newer ones."""

request_log = Table(
    "request_log",
    metadata,
    Column("request_id", String, primary_key=True),
    Column("org", String, nullable=False),
    Column("key_id", String, nullable=False),
    Column("timestamp", BigInteger, nullable=False, doc="time of the response"),
    Column("method", String, nullable=False),
    Column("path", String, nullable=False, doc="without the query"),
    Column("status", Integer, nullable=False, doc="HTTP status of the response; 0 if there was none"),
    Column("code", String, doc="code of the error in the response"),
    Column("duration_ms", Integer, nullable=False),
    Column("wallet_id", String, doc="wallet named by the request, or the only wallet of its key"),
    Index("request_log_by_time", "org", "timestamp", "request_id"),
    Index("request_log_by_key", "org", "key_id", "timestamp", "request_id"),
    Index("request_log_by_wallet", "org", "wallet_id", "timestamp", "request_id"),
)


@dataclass(frozen=True, slots=True)
class RequestRecord:
    """A request and its response; `timestamp` is in Unix milliseconds."""

    request_id: str
    org: str
    key_id: str
    timestamp: int
    method: str
    path: str
    status: int
    code: str | None
    duration_ms: int
    wallet_id: str | None = None


@dataclass(frozen=True, slots=True)
class RequestFilter:
    """Narrows the log; all given members must match."""

    key_id: str | None = None
    status: int | None = None
    code: str | None = None
    wallet_id: str | None = None


@dataclass(frozen=True, slots=True)
class Refusals:
    """The number of refused requests and the Unix millisecond of the last one, or None if there is none."""

    count: int
    last_at: int | None


def insert_requests(connection: Connection, requests: Sequence[RequestRecord]) -> None:
    """Store requests, skipping those that are already stored."""
    upsert_all(connection, request_log, [columns_of(one) for one in requests], keys=["request_id"], replace=False)


def request_page(
    connection: Connection, org: str, wanted: RequestFilter, *, limit: int, cursor: str | None
) -> RecordPage[RequestRecord]:
    """Return one page of an organisation's requests, newest first. Raises `InvalidCursorError`."""
    values = {one.name: value for one in fields(wanted) if (value := getattr(wanted, one.name)) is not None}
    found_by = _listing(frozenset(values))
    return fetch_page(connection, RequestRecord, found_by, {"org": org, **values}, limit=limit, cursor=cursor)


def refusals(connection: Connection, org: str, wallet_id: str, codes: Collection[str], since: int) -> Refusals:
    """Return the number and last time of a wallet's requests with one of these error codes since a Unix millisecond."""
    columns = request_log.c
    mine = (columns.org == org, columns.wallet_id == wallet_id, columns.timestamp >= since, columns.code.in_(codes))
    count, last_at = connection.execute(select(func.count(), func.max(columns.timestamp)).where(*mine)).one()
    return Refusals(count, last_at)


def forget(connection: Connection, before: int, *, most: int) -> int:
    """Delete up to `most` requests answered before a Unix millisecond and return the number deleted."""
    deleted = 0
    for org in connection.scalars(select(organisations.c.org)).all():
        deleted += _delete(connection, org, before, most=most - deleted)
    return deleted


def shorten(connection: Connection, kept: int, *, most: int) -> int:
    """Delete up to `most` of the requests that are older than the newest `kept` of each organisation.

    Returns the number deleted.
    """
    deleted = 0
    for org in connection.scalars(select(organisations.c.org)).all():
        newest = select(request_log.c.timestamp).where(request_log.c.org == org)
        first = connection.scalar(newest.order_by(request_log.c.timestamp.desc()).offset(kept).limit(1))
        if first is not None:
            deleted += _delete(connection, org, first + 1, most=most - deleted)
    return deleted


def _delete(connection: Connection, org: str, before: int, *, most: int) -> int:
    # The index by time begins with the organisation.
    old = select(request_log.c.request_id).where(request_log.c.org == org, request_log.c.timestamp < before)
    chosen = old.order_by(request_log.c.timestamp).limit(most)
    return connection.execute(delete(request_log).where(request_log.c.request_id.in_(chosen))).rowcount


@cache
def _listing(given: frozenset[str]) -> Listing:
    """Return the list for these members of the filter; one of the indexes serves it."""
    table = request_log
    chosen = [table.c[name] == bindparam(name, type_=table.c[name].type) for name in sorted(given)]
    query = select(table).where(table.c.org == bindparam("org"), *chosen)
    return listing(query, time=table.c.timestamp, key=table.c.request_id)
