"""Copies the tables of SQLite files into a new PostgreSQL database, and compares the copy with its source."""

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Connection,
    Integer,
    MetaData,
    Select,
    Table,
    cast,
    exists,
    func,
    literal,
    select,
    text,
)
from sqlalchemy.dialects import sqlite
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
_HALF = literal(32, Integer)


class CommitDoubtError(Exception):
    """The connection was lost during the commit, so the outcome of the commit is unknown."""


@dataclass(frozen=True, slots=True)
class CopyReport:
    """The totals of a copy that was compared with its source; amounts are micro-USDC as found in the target.

    ``sums`` is the number of compared integer columns, which include all columns of money. Their sums are equal.
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

    def last_id(self, column: Column[Any]) -> int:
        """Return the highest id in a column.

        With AUTOINCREMENT, ids of deleted rows count too, because a cursor may contain them.
        """
        own = [column.table.name]
        counted = self.connection.execute("SELECT max(seq) FROM sqlite_sequence WHERE name = ?", own).fetchone()[0]
        highest = self.run(select(func.max(column))).fetchone()[0]
        return max(counted or 0, highest or 0)

    def run(self, query: Select[Any]) -> sqlite3.Cursor:
        """Run a query that was built for the target's tables. The source's tables have the same names and columns."""
        text_of = query.compile(dialect=sqlite.dialect(), compile_kwargs={"literal_binds": True})
        return self.connection.execute(str(text_of))


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
        raise ConfigurationError(f"{nodes} nodes are running on the {name}; stop them and copy into a new database")
    for table in _tables(target):
        if target.scalar(select(exists().select_from(table))):
            raise ConfigurationError(f"the {name} already has data in its table {table.name}; choose a new database")


def copy(sources: Sequence[Source], target: Connection, name: str) -> CopyReport:
    """Copy all rows within the target's transaction.

    Raises ConfigurationError if the two sides have different tables, if a table cannot be copied, or if counts or sums
    differ afterwards.
    """
    own = {table: source for source in sources for table in source.tables()}
    there = _tables(target)
    if own.keys() != {table.name for table in there}:
        names = ", ".join(sorted(own.keys() ^ {table.name for table in there}))
        raise ConfigurationError(f"the {name} and the data folder have different tables: {names}")
    rows = sums = 0
    for table in there:
        source = own[table.name]
        _copy_table(source, target, table)
        for column in table.columns:
            if column.autoincrement is True:
                _count_on(target, column, source.last_id(column))
        comparison, compared = _comparison(table)
        figures = _figures(source.run(comparison).fetchone())
        if figures != _figures(target.execute(comparison).one()):
            different = f"the copy of the table {table.name} differs from the data folder"
            raise ConfigurationError(f"{different}; nothing was kept")
        rows, sums = rows + figures[0], sums + compared
    confirmed = select(func.sum(transactions.c.amount)).where(transactions.c.status == "confirmed")
    balances, paid = (int(target.scalar(one) or 0) for one in (select(func.sum(wallets.c.balance)), confirmed))
    return CopyReport(len(there), rows, sums, balances, paid)


def _tables(target: Connection) -> list[Table]:
    """Return the tables of the target, each after the tables that its rows refer to."""
    found = MetaData()
    found.reflect(target)
    return [table for table in found.sorted_tables if table.name not in _OF_THE_SCHEMA]


def _copy_table(source: Source, target: Connection, table: Table) -> None:
    found = source.run(select(table))
    import psycopg  # noqa: PLC0415 - optional
    from psycopg.sql import SQL, Identifier  # noqa: PLC0415

    names = SQL(", ").join(Identifier(one.name) for one in table.columns)
    copying = SQL("COPY {} ({}) FROM STDIN").format(Identifier(table.name), names)

    # Use the driver's own connection, because SQLAlchemy does not support `COPY`. A `COPY` takes a tenth of the time of
    # inserts.
    driver: Any = target.connection.dbapi_connection
    try:
        with driver.cursor() as cursor, cursor.copy(copying) as rows:
            for row in _converted(found, [one.type for one in table.columns]):
                rows.write_row(row)
    except sqlite3.Error as error:
        raise ConfigurationError(f"the table {table.name} cannot be read: {error}") from None
    except psycopg.Error as error:
        # The first line only, because further lines quote rows.
        raise ConfigurationError(
            f"the table {table.name} cannot be copied: {str(error).partition(chr(10))[0]}"
        ) from None


def _converted(found: sqlite3.Cursor, types: Sequence[TypeEngine[Any]]) -> Iterator[list[Any]]:
    """Yield the rows with SQLite's numeric flags converted to booleans. JSON texts are copied byte for byte."""
    flags = [number for number, kind in enumerate(types) if isinstance(kind, Boolean)]
    while batch := found.fetchmany(_BATCH):
        for values in batch:
            row = list(values)
            for one in flags:
                row[one] = None if row[one] is None else bool(row[one])
            yield row


def _count_on(target: Connection, column: Column[Any], last: int) -> None:
    if last:
        sequence = func.pg_get_serial_sequence(column.table.name, column.name)
        target.execute(select(func.setval(sequence, last)))


def _comparison(table: Table) -> tuple[Any, int]:
    """Return the query for the row count and the sums, and the number of summed columns.

    The two 32-bit halves of each value are summed separately, so that the sums fit into 64 bits.
    """
    wide = [cast(one, BigInteger) for one in table.columns if isinstance(one.type, Integer)]
    halves = [func.sum(half) for one in wide for half in (one.bitwise_rshift(_HALF), one.bitwise_and(0xFFFF_FFFF))]
    return select(func.count(), *halves).select_from(table), len(wide)


def _figures(row: Any) -> list[int]:
    return [int(one or 0) for one in row]
