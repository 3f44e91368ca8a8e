"""Counts for those who watch over the service."""

from sqlalchemy import Connection, func, select

from app.store.state_tables import attempts


def count_pending(connection: Connection) -> int:
    """Return how many attempts have no outcome yet."""
    return connection.execute(select(func.count()).where(attempts.c.status == "pending")).scalar_one()
