"""Brings a database to the schema of this version."""

import time
from collections.abc import Callable

from sqlalchemy import BigInteger, Column, Connection, String, Table, insert, inspect, select

from app.store import read_tables, state_tables
from app.store.columns import metadata

applied_migrations = Table(
    "applied_migrations",
    metadata,
    Column("name", String, primary_key=True),
    Column("applied_at", BigInteger, nullable=False),
)

Migration = Callable[[Connection], None]

MIGRATIONS: dict[str, Migration] = {}
"""Changes since the first schema, oldest first. Each runs once, in the transaction that records it."""

TABLES = (state_tables, read_tables)
"""The modules whose tables make up the newest schema."""


def migrate(connection: Connection, migrations: dict[str, Migration] | None = None) -> list[str]:
    """Create the newest schema in an empty database, or apply to an older one what it lacks.

    Returns the names of the migrations that ran.
    """
    wanted = MIGRATIONS if migrations is None else migrations
    if not inspect(connection).has_table(applied_migrations.name):
        metadata.create_all(connection)
        _record(connection, list(wanted))
        return []
    done = set(connection.scalars(select(applied_migrations.c.name)))
    missing = [name for name in wanted if name not in done]
    for name in missing:
        wanted[name](connection)
        _record(connection, [name])
    return missing


def _record(connection: Connection, names: list[str]) -> None:
    rows = [{"name": name, "applied_at": int(time.time() * 1000)} for name in names]
    if rows:
        connection.execute(insert(applied_migrations), rows)
