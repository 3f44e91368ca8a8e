"""Deletion of old events and requests."""

from sqlalchemy import Connection, exists

from app.store.approval_requests import approval_requests
from app.store.deletion import delete_before, delete_some
from app.store.feed import table as feed
from app.store.read_tables import approvals


def delete_events(connection: Connection, before: int, *, most: int) -> int:
    """Delete up to `most` of the oldest events before a Unix millisecond and return the number deleted."""
    return delete_before(connection, feed.c.position, feed.c.timestamp, before, most=most)


def delete_undecided_requests(connection: Connection, before: int, *, most: int) -> int:
    """Delete up to `most` of the oldest undecided approval requests created before a Unix millisecond.

    Requests that were approved outside this service are kept. Returns the number deleted.
    """
    table = approval_requests
    # A request that is undecided here may have been approved outside this service.
    given = exists().where(approvals.c.address == table.c.address)
    old = (table.c.decided_at.is_(None), table.c.created_at < before, ~given)
    return delete_some(connection, table.c.approval_id, *old, oldest=table.c.created_at, most=most)
