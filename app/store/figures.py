"""Counts for the metrics."""

from sqlalchemy import Connection, func, select

from app.store.state_tables import attempts


def count_pending(connection: Connection) -> int:
    """Return the number of attempts without an outcome."""
    return connection.execute(select(func.count()).where(attempts.c.status == "pending")).scalar_one()
