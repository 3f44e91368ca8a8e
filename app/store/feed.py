"""The feed: the events of organisations, from the chain or the service, as the API shows them."""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import cache
from itertools import product
from typing import Annotated, Any, NotRequired, TypedDict, Unpack

from sqlalchemy import (
    ColumnElement,
    Connection,
    Index,
    UniqueConstraint,
    and_,
    bindparam,
    func,
    literal_column,
    select,
    text,
    true,
)

from app.core.event_catalogue import EVENTS
from app.core.identifiers import EVENT_PREFIX, derived_id
from app.core.pages import RecordPage
from app.core.timestamps import iso_ms
from app.database.columns import SERIAL, upsert_later
from app.database.paging import Listing, fetch_page, listing, unindexed
from app.database.record_tables import table_of
from app.database.records import fetch_all

SEVERITIES = {kind.type: kind.severity for kind in EVENTS.values() if kind.type != "ping"}
"""The usual severity of each type of event. `EXCEPTIONS` has the second severity that some types have.

A list filtered by severity or type searches only these two. It misses an event stored with another severity.
"""
EXCEPTIONS = {kind.type: kind.exception.split()[0] for kind in EVENTS.values() if kind.exception}
"""Types of events that may have a second severity, and that severity."""


BETWEEN_TWO = "other_wallet_id <> wallet_id"
"""True for an event between two wallets."""
ALERTING = "severity <> 'info'"
"""True for warnings and critical events."""


@dataclass(frozen=True, slots=True)
class FeedEvent:
    """One event. `position` increases with every stored event, so that a consumer can continue after it."""

    position: Annotated[int, SERIAL]
    event_id: str
    org: str
    type: str
    timestamp: int
    wallet_id: str | None
    severity: str
    summary: str
    payload: dict[str, Any]
    signature: str | None
    """Signature of the reported transaction, if any."""
    other_wallet_id: str | None
    """The other wallet of an event between two wallets."""


table = table_of(
    "feed",
    FeedEvent,
    UniqueConstraint("event_id"),
    # Each list of events reads one of these indexes in its order, or merges several, as lists of transactions do.
    Index("feed_newest", "org", "timestamp", "position"),
    Index("feed_by_kind", "org", "type", "severity", "timestamp", "position"),
    Index("feed_by_wallet", "wallet_id", "timestamp", "position"),
    Index("feed_by_wallet_kind", "wallet_id", "type", "severity", "timestamp", "position"),
    # Most events have no other wallet.
    Index(
        *("feed_by_other", "other_wallet_id", "timestamp", "position"),
        sqlite_where=text(BETWEEN_TWO),
        postgresql_where=text(BETWEEN_TWO),
    ),
    Index(
        "feed_by_other_kind",
        *("other_wallet_id", "type", "severity", "timestamp", "position"),
        sqlite_where=text(BETWEEN_TWO),
        postgresql_where=text(BETWEEN_TWO),
    ),
    Index("feed_by_signature", "signature"),
    # Few events are alerting. The index serves the count of alerting events after a person's read position.
    Index("feed_alerting", "org", "position", sqlite_where=text(ALERTING), postgresql_where=text(ALERTING)),
    key=["position"],
    sqlite_autoincrement=True,
)


@dataclass(frozen=True, slots=True)
class FeedFilter:
    """Narrows the feed. `start` is inclusive, `end` exclusive, in Unix milliseconds."""

    types: Sequence[str] | None = None
    wallet_id: str | None = None
    severity: str | None = None
    start: int | None = None
    end: int | None = None


class NewEvent(TypedDict):
    """An event to add. Its type determines its severity unless one is given."""

    event_id: str
    org: str
    type: str
    timestamp: int
    payload: dict[str, Any]
    wallet_id: NotRequired[str | None]
    other_wallet_id: NotRequired[str | None]
    severity: NotRequired[str | None]
    summary: NotRequired[str]
    signature: NotRequired[str | None]


def append_event(connection: Connection, **event: Unpack[NewEvent]) -> None:
    """Add an event to the feed, unless an event with the same id exists."""
    upsert_later(connection, table, [feed_row(**event)], keys=["event_id"], replace=False)


def report_once(connection: Connection, kind: str, org: str, now: int, *key: str, summary: str, **payload: Any) -> None:
    """Add an event at the Unix millisecond `now`, unless one of this type with the same `key` exists."""
    append_event(
        connection,
        event_id=derived_id(EVENT_PREFIX, *key, kind),
        org=org,
        type=kind,
        timestamp=now,
        wallet_id=payload.get("wallet_id"),
        summary=summary,
        payload=payload,
    )


def feed_row(**event: Unpack[NewEvent]) -> dict[str, Any]:
    """Return the row of an event for the feed, with defaults for the missing columns.

    The payload gets the event's time as its last field, `timestamp`, unless it already has this field.
    """
    defaults = {"wallet_id": None, "other_wallet_id": None, "summary": "", "signature": None}
    severity = event.get("severity") or SEVERITIES.get(event["type"], "info")
    payload = {**event["payload"], "timestamp": event["payload"].get("timestamp", iso_ms(event["timestamp"]))}
    return {**defaults, **event, "severity": severity, "payload": payload}


def feed(
    connection: Connection,
    org: str,
    narrowed: FeedFilter | None = None,
    *,
    limit: int = 20,
    cursor: str | None = None,
) -> RecordPage[FeedEvent]:
    """Return the organisation's events, newest first. Raises `InvalidCursorError`."""
    wanted = narrowed or FeedFilter()
    values = {name: value for name in _FILTERS if (value := getattr(wanted, name)) is not None}
    kinds = _kinds(values.pop("types", None), values.pop("severity", None))
    for number, (kind, severity) in enumerate(kinds):
        values |= {f"type_{number}": kind, f"severity_{number}": severity}
    chosen = _listing(frozenset(values) & _OPEN, _rounded_up(len(kinds)))
    return fetch_page(connection, FeedEvent, chosen, {"org": org, **values}, limit=limit, cursor=cursor)


def feed_after(connection: Connection, position: int, limit: int) -> list[FeedEvent]:
    """Return up to `limit` events of all organisations stored after `position`, in the order of storage."""
    query = select(table).where(table.c.position > position).order_by(table.c.position).limit(limit)
    return fetch_all(connection, FeedEvent, query)


def last_position(connection: Connection) -> int:
    """Return the position of the last event, 0 if there is none."""
    return connection.scalar(_LAST) or 0


_LAST = select(func.max(table.c.position))

_FILTERS = [field.name for field in fields(FeedFilter)]
_OPEN = frozenset({"wallet_id", "start", "end"})
_PERIOD = {
    "start": table.c.timestamp >= bindparam("start"),
    "end": table.c.timestamp < bindparam("end"),
}
# Matches the other wallet only if the two differ, so that each event is found once.
_WALLETS = (
    table.c.wallet_id == bindparam("wallet_id"),
    and_(table.c.other_wallet_id == bindparam("wallet_id"), literal_column(BETWEEN_TWO)),
)


def _kinds(types: Sequence[str] | None, severity: str | None) -> list[tuple[str, str]]:
    """Return the pairs of type and severity that a filter selects, or an empty list if it selects all events.

    The pairs are sorted, because cursors depend on their order, and the order of a set differs between processes.
    """
    if severity is not None:
        chosen = types or [kind for kind in SEVERITIES if severity in _severities(kind)]
        return sorted((kind, severity) for kind in set(chosen))
    return sorted((kind, one) for kind in set(types or ()) for one in _severities(kind))


def _severities(kind: str) -> set[str]:
    """Return the severities that events of a type may have."""
    usual = SEVERITIES.get(kind, "info")
    return {usual, EXCEPTIONS.get(kind, usual)}


def _rounded_up(kinds: int) -> int:
    """Round a number of pairs up to a power of two.

    One large statement is cached for each number of pairs; without rounding, these statements would take hundreds of
    megabytes. The surplus conditions match nothing, because their parameters have an empty default.
    """
    return 1 << (kinds - 1).bit_length() if kinds else 0


@cache
def _listing(given: frozenset[str], kinds: int) -> Listing:
    """Return the query of events for these members of the filter and this number of pairs of type and severity."""
    query = select(table).where(
        (unindexed(table.c.org) if "wallet_id" in given else table.c.org) == bindparam("org"),
        *(condition for name, condition in _PERIOD.items() if name in given),
    )
    wallets = _WALLETS if "wallet_id" in given else (true(),)
    pairs = [_of_kind(number) for number in range(kinds)] or [true()]
    either = [and_(*conditions) for conditions in product(wallets, pairs)]
    return listing(query, time=table.c.timestamp, key=table.c.position, either=either)


def _of_kind(number: int) -> ColumnElement[bool]:
    return and_(*(table.c[name] == bindparam(f"{name}_{number}", "") for name in ("type", "severity")))
