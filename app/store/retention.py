"""Deletes what is kept for a time only."""

from sqlalchemy import Connection, delete, select

from app.store.read_tables import feed
from app.store.state_tables import organisations


def delete_events(connection: Connection, before: int, *, most: int) -> int:
    """Delete the oldest events of before that Unix millisecond, at most so many; returns how many there were."""
    deleted = 0
    for org in connection.scalars(select(organisations.c.org)).all():
        # The index by time begins with the organisation.
        old = select(feed.c.position).where(feed.c.org == org, feed.c.timestamp < before)
        chosen = old.order_by(feed.c.timestamp).limit(most - deleted)
        deleted += connection.execute(delete(feed).where(feed.c.position.in_(chosen))).rowcount
    return deleted
