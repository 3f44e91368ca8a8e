"""The feed: every event of an organisation, from the chain and from the service, in the API's form."""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import cache
from itertools import product
from typing import Any

from sqlalchemy import ColumnElement, Connection, Row, and_, bindparam, literal_column, select, true

from app.store.columns import upsert
from app.store.paging import Listing, RecordPage, fetch_page, listing, sought
from app.store.read_tables import BETWEEN_TWO
from app.store.read_tables import feed as table

SEVERITIES = {
    **dict.fromkeys(
        (
            *("transaction.pending", "transaction.completed", "wallet.created", "wallet.funded", "wallet.unfrozen"),
            *("policy.updated", "escrow.created", "escrow.completed", "escrow.released", "escrow.refunded"),
            *("org.deposit_confirmed", "export.ready"),
        ),
        "info",
    ),
    "balance.low": "warning",
    "transaction.blocked": "warning",
    "escrow.disputed": "warning",
    "policy.expired": "warning",
    "alert.inactivity": "warning",
    "alert.velocity_spike": "warning",
    "alert.large_transaction": "warning",
    "wallet.frozen": "critical",
}
"""Severity of each type of event, but for `EXCEPTIONS`: an event with another would be missing from lists."""
EXCEPTIONS = {"escrow.refunded": "critical"}
"""The other severity that events of a type may have."""


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
) -> RecordPage[FeedEvent]:
    """Return the organisation's events, newest first. Raises `InvalidCursorError`."""
    wanted = narrowed or FeedFilter()
    values = {name: value for name in _FILTERS if (value := getattr(wanted, name)) is not None}
    kinds = _kinds(values.pop("types", None), values.pop("severity", None))
    for number, (kind, severity) in enumerate(kinds):
        values |= {f"type_{number}": kind, f"severity_{number}": severity}
    chosen = _listing(frozenset(values) & _OPEN, len(kinds))
    rows, more, following = fetch_page(connection, chosen, {"org": org, **values}, limit=limit, cursor=cursor)
    return RecordPage([_record(row) for row in rows], more, following)


def feed_after(connection: Connection, position: int, limit: int) -> list[FeedEvent]:
    """Return the events of all organisations stored after `position`, in the order in which they were stored."""
    query = select(table).where(table.c.position > position).order_by(table.c.position).limit(limit)
    return [_record(row) for row in connection.execute(query)]


_FILTERS = [field.name for field in fields(FeedFilter)]
_OPEN = frozenset({"wallet_id", "start", "end"})
_PERIOD = {
    "start": table.c.timestamp >= bindparam("start"),
    "end": table.c.timestamp < bindparam("end"),
}
# An event is found by its other wallet only where that is another: so it is found once.
_WALLETS = (
    table.c.wallet_id == bindparam("wallet_id"),
    and_(table.c.other_wallet_id == bindparam("wallet_id"), literal_column(BETWEEN_TWO)),
)


def _kinds(types: Sequence[str] | None, severity: str | None) -> list[tuple[str, str]]:
    """Return the types with the severities that a filter lets through; none when it lets all through."""
    if severity is not None:
        chosen = types or [kind for kind in SEVERITIES if severity in _severities(kind)]
        return [(kind, severity) for kind in dict.fromkeys(chosen)]
    return [(kind, one) for kind in dict.fromkeys(types or ()) for one in _severities(kind)]


def _severities(kind: str) -> set[str]:
    """Return the severities that events of a type may have."""
    usual = SEVERITIES.get(kind, "info")
    return {usual, EXCEPTIONS.get(kind, usual)}


@cache
def _listing(given: frozenset[str], kinds: int) -> Listing:
    """Return the list for the members of the filter that are given, narrowed to so many pairs of type and severity."""
    query = select(table).where(
        sought(table.c.org, there="wallet_id" not in given) == bindparam("org"),
        *(condition for name, condition in _PERIOD.items() if name in given),
    )
    wallets = _WALLETS if "wallet_id" in given else (true(),)
    pairs = [_of_kind(number) for number in range(kinds)] or [true()]
    either = [and_(*conditions) for conditions in product(wallets, pairs)]
    return listing(query, time=table.c.timestamp, key=table.c.position, either=either)


def _of_kind(number: int) -> ColumnElement[bool]:
    return and_(table.c.type == bindparam(f"type_{number}"), table.c.severity == bindparam(f"severity_{number}"))


def _record(row: Row[Any]) -> FeedEvent:
    return FeedEvent(**row._mapping)  # noqa: SLF001
