"""Tests whether the database has room for many payments. Nothing of it stays in the database."""

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
    """Write 256 kB, many times what a payment writes, and raise `UndoError`; for SQLite."""
    put_value(connection, "room", "0" * _BYTES)
    raise UndoError


def spill(connection: Connection) -> None:
    """Write a temporary file of 8 MB, which the server removes at once; for PostgreSQL.

    Rows that are written and rolled back would stay in the files of the database.
    """
    connection.exec_driver_sql("SET LOCAL work_mem = '64kB'")
    connection.exec_driver_sql(_SPILL)
