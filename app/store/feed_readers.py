"""Each person's read position in the feed, and their unread warnings and critical events."""

from collections.abc import Collection
from typing import Any

from sqlalchemy import (
    BigInteger,
    Column,
    ColumnElement,
    Connection,
    Select,
    String,
    Table,
    and_,
    func,
    literal_column,
    select,
)

from app.core.actors import Actor
from app.database.columns import ActorText, metadata, upsert
from app.database.paging import unindexed
from app.store.feed import ALERTING, last_position, table

feed_readers = Table(
    "feed_readers",
    metadata,
    Column("org", String, primary_key=True),
    Column("actor", ActorText, primary_key=True),
    Column("position", BigInteger, nullable=False, doc="position of the last event that the actor has read"),
)

MOST = 99
"""The largest number of unread events that is shown.

The count stops one above this number, which shows that there are more.
"""


def count_unread(connection: Connection, org: str, actor: Actor) -> int:
    """Return the number of warnings and critical events that an actor has not read, at most one above `MOST`."""
    some = select(table.c.position).where(_unread(org, actor)).limit(MOST + 1).subquery()
    return connection.scalar(select(func.count()).select_from(some)) or 0


def unread_among(connection: Connection, org: str, actor: Actor, event_ids: Collection[str]) -> set[str]:
    """Return the ids, out of `event_ids`, of warnings and critical events that the actor has not read."""
    query = select(table.c.event_id).where(table.c.event_id.in_(event_ids))
    query = query.where(_unread(org, actor, of=unindexed(table.c.org)))
    return set(connection.scalars(query))


def mark_read(connection: Connection, org: str, actor: Actor, position: int) -> None:
    """Store that an actor has read the feed up to a position, which never moves back or beyond the last event."""
    before = connection.scalar(_read_position(org, actor)) or 0
    reached = max(before, min(position, last_position(connection)))
    upsert(connection, feed_readers, {"org": org, "actor": actor, "position": reached}, keys=["org", "actor"])


def _unread(org: str, actor: Actor, of: ColumnElement[Any] = table.c.org) -> ColumnElement[bool]:
    read = func.coalesce(_read_position(org, actor).scalar_subquery(), 0)
    return and_(of == org, table.c.position > read, literal_column(ALERTING))


def _read_position(org: str, actor: Actor) -> Select[Any]:
    return select(feed_readers.c.position).where(feed_readers.c.org == org, feed_readers.c.actor == actor)
