"""Deletion of old events and requests."""

from sqlalchemy import Connection, delete, exists, select

from app.store.approval_requests import approval_requests
from app.store.read_tables import approvals, feed
from app.store.state_tables import organisations


def delete_events(connection: Connection, before: int, *, most: int) -> int:
    """Delete up to `most` of the oldest events before a Unix millisecond and return the number deleted."""
    deleted = 0
    for org in connection.scalars(select(organisations.c.org)).all():
        # The index by time begins with the organisation.
        old = select(feed.c.position).where(feed.c.org == org, feed.c.timestamp < before)
        chosen = old.order_by(feed.c.timestamp).limit(most - deleted)
        deleted += connection.execute(delete(feed).where(feed.c.position.in_(chosen))).rowcount
    return deleted


def delete_undecided_requests(connection: Connection, before: int, *, most: int) -> int:
    """Delete up to `most` of the oldest undecided approval requests created before a Unix millisecond.

    Requests that were approved outside this service are kept. Returns the number deleted.
    """
    table = approval_requests
    # A request that is undecided here may have been approved outside this service.
    given = exists().where(approvals.c.address == table.c.address)
    old = select(table.c.approval_id).where(table.c.decided_at.is_(None), table.c.created_at < before, ~given)
    chosen = old.order_by(table.c.created_at).limit(most)
    return connection.execute(delete(table).where(table.c.approval_id.in_(chosen))).rowcount
