"""The request log: requests made with API keys in the last day, and their responses."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Annotated, Any

from sqlalchemy import (
    Connection,
    Index,
    Integer,
    bindparam,
    func,
    select,
)

from app.core.pages import RecordPage
from app.database.columns import upsert_all
from app.database.paging import Listing, fetch_page, listing
from app.database.record_tables import table_of
from app.database.records import columns_of
from app.store.deletion import delete_before, delete_some
from app.store.organisations import table as organisations

KEPT_MS = 86_400_000
"""Milliseconds for which a request is kept, unless its organisation has too many newer ones."""


@dataclass(frozen=True, slots=True)
class RequestRecord:
    """A request and its response; `timestamp` is in Unix milliseconds."""

    request_id: str
    org: str
    key_id: str
    timestamp: int
    """Time of the response."""
    method: str
    path: str
    """Path of the request, without the query."""
    status: Annotated[int, Integer()]
    """HTTP status of the response; 0 if there was none."""
    code: str | None
    """Code of the error in the response; null without an error."""
    duration_ms: Annotated[int, Integer()]
    wallet_id: str | None = None
    """Wallet named by the request, or the only wallet of its key."""


request_log = table_of(
    "request_log",
    RequestRecord,
    Index("request_log_by_time", "org", "timestamp", "request_id"),
    Index("request_log_by_key", "org", "key_id", "timestamp", "request_id"),
    Index("request_log_by_wallet", "org", "wallet_id", "timestamp", "request_id"),
    key=["request_id"],
)


@dataclass(frozen=True, slots=True)
class Refusals:
    """The number of refused requests, and the Unix millisecond of the last one, or None if there was none."""

    count: int
    last_at: int | None


def insert_requests(connection: Connection, requests: Sequence[RequestRecord]) -> None:
    """Store requests, skipping those that are already stored."""
    upsert_all(connection, request_log, [columns_of(one) for one in requests], keys=["request_id"], replace=False)


def request_page(
    connection: Connection, org: str, wanted: Mapping[str, Any], *, limit: int, cursor: str | None
) -> RecordPage[RequestRecord]:
    """Return one page of an organisation's requests with the `wanted` column values, newest first.

    Raises `InvalidCursorError`.
    """
    found_by = _listing(frozenset(wanted))
    return fetch_page(connection, RequestRecord, found_by, {"org": org, **wanted}, limit=limit, cursor=cursor)


def refusals(connection: Connection, org: str, wallet_id: str, codes: Collection[str], since: int) -> Refusals:
    """Return the number and last time of a wallet's requests with one of these error codes since a Unix millisecond."""
    columns = request_log.c
    mine = (columns.org == org, columns.wallet_id == wallet_id, columns.timestamp >= since, columns.code.in_(codes))
    count, last_at = connection.execute(select(func.count(), func.max(columns.timestamp)).where(*mine)).one()
    return Refusals(count, last_at)


def forget(connection: Connection, before: int, *, most: int) -> int:
    """Delete up to `most` requests answered before a Unix millisecond and return the number deleted."""
    return delete_before(connection, request_log.c.request_id, request_log.c.timestamp, before, most=most)


def shorten(connection: Connection, kept: int, *, most: int) -> int:
    """Delete up to `most` of the requests that are older than the newest `kept` of each organisation.

    Returns the number deleted.
    """
    deleted = 0
    for org in connection.scalars(select(organisations.c.org)).all():
        mine, time = request_log.c.org == org, request_log.c.timestamp
        last = connection.scalar(select(time).where(mine).order_by(time.desc()).offset(kept).limit(1))
        if last is not None:
            old = (mine, time <= last)
            deleted += delete_some(connection, request_log.c.request_id, *old, oldest=time, most=most - deleted)
    return deleted


@cache
def _listing(given: frozenset[str]) -> Listing:
    """Return the query of requests for these members of the filter. One of the table's indexes serves the query."""
    table = request_log
    chosen = [table.c[name] == bindparam(name, type_=table.c[name].type) for name in sorted(given)]
    query = select(table).where(table.c.org == bindparam("org"), *chosen)
    return listing(query, time=table.c.timestamp, key=table.c.request_id)
