"""Copies the tables of SQLite files into a new PostgreSQL database, and compares the copy with its source."""

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, cast

from sqlalchemy import Boolean, Connection, Integer, func, inspect, select, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.types import TypeEngine

from app.core.paths import ConfigurationError
from app.database.leases import count_live_nodes
from app.database.migrations import require_current
from app.database.postgres.engine import database_name, engine_of
from app.database.postgres.transactions import WRITER_LOCK
from app.store.read_tables import transactions, wallets

_OF_THE_SCHEMA = frozenset({"alembic_version", "schema_versions"})
_BATCH = 1_000


class CommitDoubtError(Exception):
    """The connection was lost during the commit, so the outcome of the commit is unknown."""


@dataclass(frozen=True, slots=True)
class CopyReport:
    """The totals of a copy that was compared with its source; amounts are micro-USDC as found in the target.

    ``sums`` is the number of integer columns, including all columns of money, with equal sums on both sides.
    """

    tables: int
    rows: int
    sums: int
    balances: int
    confirmed: int


@dataclass(frozen=True, slots=True)
class Source:
    """An open SQLite file, read in one snapshot."""

    connection: sqlite3.Connection

    def tables(self) -> set[str]:
        """Return the names of the tables with the service's data."""
        found = self.connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
        return {name for (name,) in found if not name.startswith("sqlite_")} - _OF_THE_SCHEMA

    def last_id(self, table: str, column: str) -> int:
        """Return the highest id ever assigned in a column, even if its row is deleted, because a cursor may name it."""
        counted = self.connection.execute("SELECT max(seq) FROM sqlite_sequence WHERE name = ?", [table]).fetchone()[0]
        highest = self.connection.execute(f"SELECT max({_quoted(column)}) FROM {_quoted(table)}").fetchone()[0]  # noqa: S608 - names of the schema
        return max(counted or 0, highest or 0)


@contextmanager
def receiving(url: str) -> Iterator[tuple[str, Connection]]:
    """Yield a database's name and a connection to it, in a transaction that holds the writers' lock.

    Raises ConfigurationError if the database cannot be used.
    """
    name, engine = database_name(url), engine_of(url)
    try:
        require_current(engine, name)
        with engine.connect() as target:
            target.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": WRITER_LOCK})
            target.execute(text("SET LOCAL synchronous_commit = on"))
            yield name, target
    except DBAPIError as error:
        raise ConfigurationError(f"the {name} cannot be written to: {str(error.orig).partition(chr(10))[0]}") from None
    finally:
        engine.dispose()


def commit(target: Connection) -> None:
    """Commit. Raises `CommitDoubtError` if the connection is lost."""
    try:
        target.commit()
    except DBAPIError as error:
        if error.connection_invalidated:
            raise CommitDoubtError from None
        raise


def require_empty(target: Connection, name: str) -> None:
    """Raise ConfigurationError if nodes serve on a database or it holds anything besides its schema."""
    if nodes := count_live_nodes(target):
        raise ConfigurationError(f"{nodes} nodes serve on the {name}; stop them and copy into a new database")
    for table in inspect(target).get_table_names():
        if table not in _OF_THE_SCHEMA and target.scalar(text(f"SELECT EXISTS (SELECT FROM {_quoted(table)})")):  # noqa: S608 - as above
            raise ConfigurationError(f"the {name} already has data in its table {table}; name a new database")


def copy(sources: Sequence[Source], target: Connection, name: str) -> CopyReport:
    """Copy all rows within the target's transaction.

    Raises ConfigurationError if the two sides have different tables, if a table cannot be copied, or if counts or sums
    differ afterwards.
    """
    own = {table: source for source in sources for table in source.tables()}
    # Rows are copied after the rows that they refer to.
    in_order = [one for one, _keys in inspect(target).get_sorted_table_and_fkc_names() if one is not None]
    there = [one for one in in_order if one not in _OF_THE_SCHEMA]
    if own.keys() != set(there):
        names = ", ".join(sorted(own.keys() ^ set(there)))
        raise ConfigurationError(f"the {name} and the data folder have different tables: {names}")
    rows = sums = 0
    for table in there:
        source = own[table]
        columns = {one["name"]: one for one in inspect(target).get_columns(table)}
        types: dict[str, TypeEngine[Any]] = {one: column["type"] for one, column in columns.items()}
        _copy_table(source, target, table, types)
        for column, described in columns.items():
            if (described["default"] or "").startswith("nextval"):
                _count_on(target, table, column, source.last_id(table, column))
        whole = [one for one, kind in types.items() if isinstance(kind, Integer)]
        comparison = _comparison(table, whole)
        figures = _figures(source.connection.execute(comparison).fetchone())
        if figures != _figures(target.execute(text(comparison)).one()):
            raise ConfigurationError(f"the copy of the table {table} differs from the data folder; nothing was kept")
        rows, sums = rows + figures[0], sums + len(whole)
    confirmed = select(func.sum(transactions.c.amount)).where(transactions.c.status == "confirmed")
    balances, paid = (int(target.scalar(one) or 0) for one in (select(func.sum(wallets.c.balance)), confirmed))
    return CopyReport(len(there), rows, sums, balances, paid)


def _copy_table(source: Source, target: Connection, table: str, types: dict[str, TypeEngine[Any]]) -> None:
    names = ", ".join(map(_quoted, types))
    found = source.connection.execute(f"SELECT {names} FROM {_quoted(table)}")  # noqa: S608 - as above
    import psycopg  # noqa: PLC0415 - optional

    # The driver's own connection, because SQLAlchemy has no `COPY`, which takes a tenth of the time of `INSERT`.
    driver: Any = target.connection.dbapi_connection
    try:
        with driver.cursor() as cursor, cursor.copy(f"COPY {_quoted(table)} ({names}) FROM STDIN") as rows:
            for row in _converted(found, list(types.values())):
                rows.write_row(row)
    except sqlite3.Error as error:
        raise ConfigurationError(f"the table {table} cannot be read: {error}") from None
    except psycopg.Error as error:
        # The first line only, because further lines quote rows.
        raise ConfigurationError(f"the table {table} cannot be copied: {str(error).partition(chr(10))[0]}") from None


def _converted(found: sqlite3.Cursor, types: Sequence[TypeEngine[Any]]) -> Iterator[list[Any]]:
    """Yield the rows with SQLite's numeric flags as booleans. Texts of JSON stay as they are, byte for byte."""
    flags = [number for number, kind in enumerate(types) if isinstance(kind, Boolean)]
    while batch := found.fetchmany(_BATCH):
        for values in batch:
            row = list(values)
            for one in flags:
                row[one] = None if row[one] is None else bool(row[one])
            yield row


def _count_on(target: Connection, table: str, column: str, last: int) -> None:
    if last:
        target.execute(
            text("SELECT setval(pg_get_serial_sequence(:table, :column), :last)"),
            {"table": table, "column": column, "last": last},
        )


def _comparison(table: str, columns: Sequence[str]) -> str:
    """Return the query for the row count and the sums, in SQL common to both databases.

    The two 32-bit halves of each value are summed separately, so that the sums fit into 64 bits.
    """
    wide = [f"CAST({_quoted(one)} AS BIGINT)" for one in columns]
    halves = [f"sum({one} >> 32), sum({one} & 4294967295)" for one in wide]
    return f"SELECT {', '.join(['count(*)', *halves])} FROM {_quoted(table)}"  # noqa: S608 - as above


def _figures(row: Any) -> list[int]:
    return [int(one or 0) for one in cast(Sequence[Any], row)]


def _quoted(name: str) -> str:
    return f'"{name}"'
