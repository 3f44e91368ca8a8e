"""The feed: the events of organisations, from the chain or the service, as the API shows them."""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import cache
from itertools import product
from typing import Any, NotRequired, TypedDict, Unpack

from sqlalchemy import ColumnElement, Connection, and_, bindparam, func, literal_column, select, true

from app.core.pages import RecordPage
from app.database.columns import upsert_later
from app.database.paging import Listing, fetch_page, listing, unindexed
from app.database.records import fetch_all
from app.store.read_tables import BETWEEN_TWO
from app.store.read_tables import feed as table

SEVERITIES = {
    **dict.fromkeys(
        (
            *("transaction.pending", "transaction.completed", "wallet.created", "wallet.funded", "wallet.unfrozen"),
            *("budget.created", "budget.updated", "budget.deleted", "wallet.budget_set"),
            *("policy.updated", "escrow.created", "escrow.completed", "escrow.released", "escrow.refunded"),
            *("escrow.dispute_withdrawn", "allowance.granted", "allowance.settled"),
            *("org.deposit_confirmed", "export.ready", "reconciliation.cleared", "audit.head"),
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
    "alert.sol_limit": "warning",
    "x402.paid_without_resource": "warning",
    "wallet.frozen": "critical",
    "alert.brake_repeated": "critical",
    "reconciliation.difference": "critical",
    "index.incomplete": "critical",
    "allowance.discrepancy": "critical",
    "allowance.overdue": "critical",
    "database.commits_lost": "critical",
    "transaction.forgotten": "critical",
    "key.issued": "warning",
    "person.joined": "warning",
    "person.removed": "info",
    "key.revoked": "info",
    "key.expiring": "warning",
    "key.used_outside": "critical",
}
"""The usual severity of each type of event. `EXCEPTIONS` has the second severity that some types have.

A list filtered by severity or type misses an event with any other severity.
"""
EXCEPTIONS = {"escrow.refunded": "critical"}
"""Types of events that may have a second severity, and that severity."""


@dataclass(frozen=True, slots=True)
class FeedEvent:
    """One event. `position` increases with every stored event, so that a consumer can continue after it.

    `other_wallet_id` is the second wallet of an event between two wallets.
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


def feed_row(**event: Unpack[NewEvent]) -> dict[str, Any]:
    """Return the row of an event for the feed, with defaults for the missing columns."""
    severity = event.get("severity") or SEVERITIES.get(event["type"], "info")
    return {"wallet_id": None, "other_wallet_id": None, "summary": "", "signature": None, **event, "severity": severity}


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


@cache
def _listing(given: frozenset[str], kinds: int) -> Listing:
    """Return the list for these filters and this number of pairs of type and severity."""
    query = select(table).where(
        (unindexed(table.c.org) if "wallet_id" in given else table.c.org) == bindparam("org"),
        *(condition for name, condition in _PERIOD.items() if name in given),
    )
    wallets = _WALLETS if "wallet_id" in given else (true(),)
    pairs = [_of_kind(number) for number in range(kinds)] or [true()]
    either = [and_(*conditions) for conditions in product(wallets, pairs)]
    return listing(query, time=table.c.timestamp, key=table.c.position, either=either)


def _of_kind(number: int) -> ColumnElement[bool]:
    return and_(table.c.type == bindparam(f"type_{number}"), table.c.severity == bindparam(f"severity_{number}"))
