"""Deletion of rows in batches."""

from typing import Any

from sqlalchemy import Column, ColumnElement, Connection, delete, select

from app.store.organisations import table as organisations


def delete_some(
    connection: Connection, key: Column[Any], *where: ColumnElement[bool], oldest: Column[Any] | None = None, most: int
) -> int:
    """Delete up to `most` rows that match, in the order of the column `oldest` if given. Return the number deleted."""
    chosen = select(key).where(*where).order_by(oldest).limit(most)
    return connection.execute(delete(key.table).where(key.in_(chosen))).rowcount


def delete_before(connection: Connection, key: Column[Any], time: Column[Any], before: int, *, most: int) -> int:
    """Delete up to `most` of the oldest rows before a Unix millisecond, and return the number deleted.

    The rows are deleted organisation by organisation, because the table's index by time begins with the organisation.
    """
    deleted = 0
    for org in connection.scalars(select(organisations.c.org)).all():
        mine = (key.table.c.org == org, time < before)
        deleted += delete_some(connection, key, *mine, oldest=time, most=most - deleted)
    return deleted
