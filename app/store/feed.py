"""The feed: every event of an organisation, from the chain and from the service, in the API's form."""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import cache
from typing import Any

from sqlalchemy import Connection, Row, bindparam, select

from app.store.columns import upsert
from app.store.paging import Listing, Page, fetch_page, listing, sought
from app.store.read_tables import feed as table

SEVERITIES = {
    "balance.low": "warning",
    "transaction.blocked": "warning",
    "escrow.disputed": "warning",
    "policy.expired": "warning",
    "alert.inactivity": "warning",
    "alert.velocity_spike": "warning",
    "alert.large_transaction": "warning",
    "wallet.frozen": "critical",
}
"""Severity of each type of event that is not `info`."""
#: What most events are is no help in finding the others.
_USUAL = frozenset({"transaction.pending", "transaction.completed"})


@dataclass(frozen=True, slots=True)
class FeedEvent:
    """One event. `position` rises with every event that is stored, so that a consumer can continue after one.

    `other_wallet_id` is the wallet on the other side of what happened between two.
    """

    position: int
    event_id: str
    org: str
    type: str
    timestamp: int
    wallet_id: str | None
    severity: str
    summary: str
    payload: dict[str, Any]
    signature: str | None
    other_wallet_id: str | None


@dataclass(frozen=True, slots=True)
class FeedFilter:
    """What the feed is narrowed to. `start` is inclusive, `end` exclusive, in Unix milliseconds."""

    types: Sequence[str] | None = None
    wallet_id: str | None = None
    severity: str | None = None
    start: int | None = None
    end: int | None = None


def append_event(
    connection: Connection,
    *,
    event_id: str,
    org: str,
    type: str,  # noqa: A002 - the name of the column
    timestamp: int,
    payload: dict[str, Any],
    wallet_id: str | None = None,
    other_wallet_id: str | None = None,
    severity: str | None = None,
    summary: str = "",
    signature: str | None = None,
) -> None:
    """Add an event to the feed; a second one with the same id is ignored."""
    values = feed_row(
        event_id=event_id,
        org=org,
        type=type,
        timestamp=timestamp,
        payload=payload,
        wallet_id=wallet_id,
        other_wallet_id=other_wallet_id,
        severity=severity,
        summary=summary,
        signature=signature,
    )
    upsert(connection, table, values, keys=["event_id"], replace=False)


def feed_row(
    *,
    event_id: str,
    org: str,
    type: str,  # noqa: A002 - the name of the column
    timestamp: int,
    payload: dict[str, Any],
    wallet_id: str | None = None,
    other_wallet_id: str | None = None,
    severity: str | None = None,
    summary: str = "",
    signature: str | None = None,
) -> dict[str, Any]:
    """Return the columns of an event; its type decides its severity, unless given."""
    return {
        "event_id": event_id,
        "org": org,
        "type": type,
        "timestamp": timestamp,
        "wallet_id": wallet_id,
        "other_wallet_id": other_wallet_id,
        "severity": severity or SEVERITIES.get(type, "info"),
        "summary": summary,
        "payload": payload,
        "signature": signature,
    }


def feed(
    connection: Connection,
    org: str,
    narrowed: FeedFilter | None = None,
    *,
    limit: int = 20,
    cursor: str | None = None,
) -> Page[FeedEvent]:
    """Return the organisation's events, newest first. Raises `InvalidCursorError`."""
    wanted = narrowed or FeedFilter()
    values = {name: value for name in _FILTERS if (value := getattr(wanted, name)) is not None}
    rare = []
    if wanted.types and not set(wanted.types) & _USUAL:
        rare.append("types")
    if wanted.severity not in {None, "info"}:
        rare.append("severity")
    chosen = _listing(frozenset(values), frozenset(rare))
    rows, more, following = fetch_page(connection, chosen, {"org": org, **values}, limit=limit, cursor=cursor)
    return Page([_record(row) for row in rows], more, following)


def feed_after(connection: Connection, position: int, limit: int) -> list[FeedEvent]:
    """Return the events of all organisations stored after `position`, in the order in which they were stored."""
    query = select(table).where(table.c.position > position).order_by(table.c.position).limit(limit)
    return [_record(row) for row in connection.execute(query)]


_FILTERS = [field.name for field in fields(FeedFilter)]
_PERIOD = {
    "start": table.c.timestamp >= bindparam("start"),
    "end": table.c.timestamp < bindparam("end"),
}
_WALLETS = [table.c[name] == bindparam("wallet_id") for name in ("wallet_id", "other_wallet_id")]


@cache
def _listing(given: frozenset[str], rare: frozenset[str]) -> Listing:
    """Return the list for the members of the filter that are given; those in `rare` have values that few rows have."""
    query = select(table).where(
        sought(table.c.org, there="wallet_id" not in given or bool(rare)) == bindparam("org"),
        *(condition for name, condition in _PERIOD.items() if name in given),
    )
    if "types" in given:
        query = query.where(sought(table.c.type, there="types" in rare).in_(bindparam("types", expanding=True)))
    if "severity" in given:
        query = query.where(sought(table.c.severity, there="severity" in rare) == bindparam("severity"))
    either = _WALLETS if "wallet_id" in given else ()
    return listing(query, time=table.c.timestamp, key=table.c.position, either=either)


def _record(row: Row[Any]) -> FeedEvent:
    return FeedEvent(**row._mapping)  # noqa: SLF001
