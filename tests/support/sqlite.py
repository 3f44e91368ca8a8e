"""Access to the internals of a database in a file, for tests."""

from typing import Any

from sqlalchemy import Engine

from app.database import Database, SqliteDatabase


def sqlite_writer(db: Database) -> Any:
    """Return the driver's connection that writes."""
    assert isinstance(db, SqliteDatabase)
    return db._connection.connection.dbapi_connection


def sqlite_readers(db: Database) -> Engine:
    """Return the engine of the connections that read."""
    assert isinstance(db, SqliteDatabase)
    return db._readers
