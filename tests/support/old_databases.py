"""Databases of earlier versions: the frozen first schema, its upgrades, and rows for all tables."""

from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import JSON, Boolean, Column, Connection, LargeBinary, MetaData, String, create_engine, insert, select

from app.database import migrations
from app.store.schema import create_tables

FIRST = "0001"
TEXT = 'it\'s a "text" of WHERE :name, %% and $1'
"""The text in all rows."""
_VALUES: dict[type[Any], Any] = {String: TEXT, Boolean: True, LargeBinary: b"\0\xff", JSON: {"text": TEXT}}
OF_THE_SCHEMA = frozenset({"alembic_version", "schema_versions"})

Rows = dict[str, list[dict[str, Any]]]
"""The rows of each table."""


def create_old(connection: Connection, revision: str = FIRST) -> None:
    """Create the tables of a revision in an empty database."""
    schema = Path(__file__).parent / "first_schema" / f"{connection.dialect.name}.sql"
    for statement in filter(str.strip, schema.read_text(encoding="utf-8").split(";")):
        connection.exec_driver_sql(statement)
    index = migrations.REVISIONS.index(revision)
    with pytest.MonkeyPatch.context() as old_code:
        old_code.setattr(migrations, "REVISIONS", migrations.REVISIONS[: index + 1])
        migrations.migrate(connection, create_tables)


def create_old_file(path: Path, revision: str) -> None:
    """Create a SQLite file with the tables of a revision."""
    engine = create_engine(f"sqlite:///{path}")
    with engine.begin() as connection:
        create_old(connection, revision)
    engine.dispose()


def fill(connection: Connection) -> None:
    """Add a row to every table except the schema's own."""
    for table in _tables(connection).sorted_tables:
        if table.name not in OF_THE_SCHEMA:
            connection.execute(insert(table), {one.name: _value(one) for one in table.columns})


def rows_of(connection: Connection) -> Rows:
    """Return all rows of all tables."""
    return {
        table.name: [dict(one) for one in connection.execute(select(table)).mappings()]
        for table in _tables(connection).sorted_tables
    }


def _tables(connection: Connection) -> MetaData:
    found = MetaData()
    found.reflect(connection)
    return found


def _value(column: Column[Any]) -> Any:
    return next((value for kind, value in _VALUES.items() if isinstance(column.type, kind)), 7)
