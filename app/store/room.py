"""Checks that the database has room for many payments, by writing test data that do not stay in it."""

from sqlalchemy import Connection

from app.store.values import put_value

_BYTES = 256 * 1024
_SPILL = (
    "WITH room AS MATERIALIZED (SELECT repeat('x', 8000) AS part FROM generate_series(1, 1000))"
    " SELECT count(*) FROM room"
)


class UndoError(Exception):
    """Undoes a write that has succeeded."""


def fill(connection: Connection) -> None:
    """Write 256 kB to SQLite, many times the size of a payment, and raise `UndoError` to undo the write."""
    put_value(connection, "room", "0" * _BYTES)
    raise UndoError


def spill(connection: Connection) -> None:
    """Make PostgreSQL write a temporary file of 8 MB, which the server removes immediately.

    Rows that are written and rolled back would instead stay in the files of the database.
    """
    connection.exec_driver_sql("SET LOCAL work_mem = '64kB'")
    connection.exec_driver_sql(_SPILL)
