"""The state of the database guard, stored as values that all nodes read.

The guard is raised by the restore of a backup, by a database that lacks attempts committed by a node, and by an
on-chain transaction of the service without an attempt.
"""

from collections.abc import Mapping, Sequence

import structlog
from sqlalchemy import Connection, select, text

from app.core.identifiers import EVENT_PREFIX, derived_id
from app.core.timestamps import now_ms
from app.database.claims import table as claims
from app.database.columns import upsert
from app.database.leases import NODE, alive
from app.database.records import fetch_all
from app.database.signals import GUARD, signal
from app.store.feed import SEVERITIES, FeedEvent, append_event
from app.store.feed import table as feed
from app.store.idempotency import LIFETIME
from app.store.organisations import organisations
from app.store.state_tables import setting_values
from app.store.values import put_value

FORGOTTEN = "transaction.forgotten"
"""The event that reports an on-chain transaction without an attempt."""
_PREFIX = "restored_"
RESTORED_AT, CAUGHT_UP, CHECKED = f"{_PREFIX}at", f"{_PREFIX}caught_up", f"{_PREFIX}gap_checked"
"""Names of the guard's values: the time when the guard was last raised, "yes" once the service has caught up since
then, and the time when the gap was declared checked.

For a check by one organisation, a colon and the organisation's address follow `CHECKED`.
"""
SERVER = f"{_PREFIX}server"
"""Name of the value with the PostgreSQL server's system identifier and timeline.

The first server's identity is stored immediately. The identity of a later server is stored once all living nodes have
compared their commits with that server.
"""

_SERVER = text(
    "SELECT CASE WHEN NOT pg_is_in_recovery() THEN system_identifier || ' '"
    " || left(pg_walfile_name(pg_current_wal_lsn()), 8) END FROM pg_control_system()"
)

_log = structlog.get_logger(__name__)


def guard_values(connection: Connection) -> dict[str, str]:
    """Return the values of the guard by name."""
    query = select(setting_values.c.name, setting_values.c.value)
    return {row.name: row.value for row in connection.execute(query.where(setting_values.c.name.startswith(_PREFIX)))}


def raised_at(values: Mapping[str, str]) -> int:
    """Return the Unix millisecond when the guard was last raised, or 0 if never."""
    return int(values.get(RESTORED_AT, 0))


def checked_at(values: Mapping[str, str], org: str) -> int:
    """Return the Unix millisecond when the gap of an organisation was declared checked, or 0 if never."""
    found = (values.get(name, "") for name in (CHECKED, f"{CHECKED}:{org}"))
    return max([int(value) for value in found if value.isdecimal()], default=0)


def server_of(connection: Connection) -> str | None:
    """Return the PostgreSQL server's system identifier and timeline, or None on a standby.

    The timeline changes with each promotion of a standby.
    """
    found: str | None = connection.scalar(_SERVER)
    return found


def all_have_compared(connection: Connection, server: str, node: str) -> bool:
    """Record that a node has compared its commits with a server. Return True once all living nodes have."""
    kind = f"server {server}"
    upsert(connection, claims, {"kind": kind, "id": node, "node": node}, keys=["kind", "id"])
    compared = connection.scalars(select(claims.c.id).where(claims.c.kind == kind))
    return {name.removeprefix(NODE) for name in alive(connection) if name.startswith(NODE)} <= set(compared)


def mark_restored(connection: Connection, *, gap_checked: bool) -> None:
    """Raise the guard as of now, after a restore or lost commits. Earlier checks of the gap no longer count."""
    now = str(now_ms())
    put_value(connection, RESTORED_AT, now)
    put_value(connection, CAUGHT_UP, "no")
    put_value(connection, CHECKED, now if gap_checked else "no")


def mark_checked(connection: Connection, org: str = "") -> bool:
    """Record that the gap was checked, for one organisation or for all. Return False if the guard was never raised."""
    if raised_at(guard_values(connection)) == 0:
        return False
    put_value(connection, f"{CHECKED}:{org}" if org else CHECKED, str(now_ms()))
    return True


def report_lost_commits(connection: Connection, lost: Mapping[str, int]) -> None:
    """Raise the guard and report it to all organisations.

    ``lost`` maps each organisation to the Unix millisecond of its newest lost transaction. Losses older than a day, or
    older than the last time when the guard was raised or its gap checked, do not raise the guard.
    """
    now, values = now_ms(), guard_values(connection)
    known = max(now - LIFETIME, raised_at(values))
    if all(moment <= max(known, checked_at(values, org)) for org, moment in lost.items()):
        return
    _log.critical("commits_lost", organizations=list(lost))
    mark_restored(connection, gap_checked=False)
    signal(connection, GUARD)
    for one in organisations(connection):
        append_event(
            connection,
            event_id=derived_id(EVENT_PREFIX, one.org, "database.commits_lost", str(now)),
            org=one.org,
            type="database.commits_lost",
            timestamp=now,
            summary="The database has lost commits. Check the gap; until then, payments need `afterRestore`",
            payload={},
        )


def forgotten_transactions(connection: Connection, org: str) -> Sequence[FeedEvent]:
    """Return the events about an organisation's on-chain transactions without an attempt, oldest first.

    Only events since a day before the guard was last raised are returned, or all events if it was never raised.
    """
    since = raised_at(guard_values(connection)) - LIFETIME
    # The index by type also needs the severity.
    kind = (feed.c.type == FORGOTTEN, feed.c.severity == SEVERITIES[FORGOTTEN])
    mine = (feed.c.org == org, *kind, feed.c.timestamp > since)
    return fetch_all(connection, FeedEvent, select(feed).where(*mine).order_by(feed.c.timestamp))
