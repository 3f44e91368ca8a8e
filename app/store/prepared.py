"""Statements that bypass SQLAlchemy's execution, for the writes that every payment repeats.

SQLAlchemy takes ten times as long as SQLite to execute a short statement. It still compiles these statements and
converts their values; the driver executes them. On PostgreSQL, where each statement is a round trip, those whose result
nobody needs can be deferred and sent as one.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import lru_cache
from typing import Any, cast

from sqlalchemy import Connection, Dialect
from sqlalchemy.exc import DBAPIError
from sqlalchemy.sql.dml import UpdateBase

Row = Mapping[str, Any]

_MARK = re.compile(r"%\((\w+)\)s(?:::\w+)?")
_NAME = re.compile(r"%\((\w+)\)s")
_PLACES = re.compile(r"VALUES \(([^()]*)\)")


class Prepared:
    """A writing statement, compiled for a dialect; `names` are the columns among its parameters."""

    def __init__(self, statement: UpdateBase, dialect: Dialect, names: Sequence[str]) -> None:
        self.table = statement.table
        compiled: Any = statement.compile(dialect=dialect, column_keys=list(names))
        self._sql = str(compiled)
        self._by_position: bool = compiled.positional
        parameters: Sequence[str] = (
            compiled.positiontup if compiled.positional else list(dict.fromkeys(_MARK.findall(self._sql)))
        )
        self._convert = [(name, _converter(compiled.binds[name].type, dialect)) for name in parameters]
        self._constants = {name: compiled.binds[name].value for name in parameters if not compiled.binds[name].required}
        types = {name: dialect.type_compiler_instance.process(compiled.binds[name].type) for name in parameters}
        self._of_many = _about_many(self._sql, types) if dialect.name == "postgresql" else None

    def execute(self, connection: Connection, rows: Sequence[Row]) -> int:
        """Run the statement for each row in the connection's transaction; returns the number of rows written.

        On PostgreSQL it is one statement for all rows, which must have different keys then. Raises SQLAlchemy's errors.
        """
        send_deferred(connection)
        if not connection.in_transaction():
            connection.begin()
        driver_error = connection.dialect.loaded_dbapi.Error
        cursor = connection.connection.cursor() if self._by_position else _numbering_cursor(connection)
        try:
            if not self._by_position:
                sql, values = self.bound(rows)
                numbered, names = _numbered(sql)
                cursor.execute(numbered, [values[name] for name in names])
            elif len(rows) > 1:
                cursor.executemany(self._sql, [self._values(row) for row in rows])
            else:
                cursor.execute(*self.bound(rows))
            written: int = cursor.rowcount
        except driver_error as error:
            lost = connection.dialect.is_disconnect(error, connection.connection.dbapi_connection, cursor)
            raise DBAPIError.instance(
                self._sql, None, error, driver_error, hide_parameters=True, connection_invalidated=lost
            ) from error
        else:
            return written
        finally:
            cursor.close()

    def bound(self, rows: Sequence[Row]) -> tuple[str, Any]:
        """Return the one statement for these rows, with its values."""
        if len(rows) == 1:
            return self._sql, self._values(rows[0])
        assert self._of_many is not None
        values = [self._values(row) for row in rows]
        return self._of_many, {name: [one[name] for one in values] for name, _ in self._convert}

    def _values(self, row: Row) -> Any:
        given = {**self._constants, **row} if self._constants else row
        values = {name: given[name] if convert is None else convert(given[name]) for name, convert in self._convert}
        return tuple(values.values()) if self._by_position else values


class _Together(Prepared):
    """Several statements of PostgreSQL's as one, whose row has all their values: all see the state before."""

    def __init__(self, statements: Sequence[str]) -> None:
        *first, last = [_NAME.sub(rf"%(p{number}_\1)s", sql) for number, sql in enumerate(statements)]
        self._sql = f"WITH {', '.join(f'w{number} AS ({sql})' for number, sql in enumerate(first))} {last}"
        self._convert = [(name, None) for name in _NAME.findall(self._sql)]
        self._by_position, self._constants, self._of_many = False, {}, None


_together = lru_cache(maxsize=256)(_Together)
_deferred: dict[Connection, list[tuple[Prepared, Sequence[Row]]]] = {}


@contextmanager
def deferring(connection: Connection) -> Iterator[None]:
    """Let statements in this context be deferred: they are sent before any other statement, at the latest at its end.

    If it ends by an exception, what is deferred is dropped: the work is to be undone.
    """
    _deferred[connection] = []
    try:
        yield
        send_deferred(connection)
    finally:
        del _deferred[connection]


def defer(connection: Connection, prepared: Prepared, rows: Sequence[Row]) -> None:
    """Run a statement whose result nobody needs: with others in one if that is possible, otherwise at once."""
    waiting = _deferred.get(connection)
    if waiting is None:
        prepared.execute(connection, rows)
        return
    # Two parts of one statement that write the same row would not see each other.
    if any(one.table is prepared.table for one, _ in waiting):
        send_deferred(connection)
    _deferred[connection].append((prepared, rows))


def send_deferred(connection: Connection) -> None:
    """Send what is deferred as one statement."""
    waiting = _deferred.get(connection)
    if not waiting:
        return
    _deferred[connection] = []
    if len(waiting) == 1:
        prepared, rows = waiting[0]
        prepared.execute(connection, rows)
        return
    bound = [prepared.bound(rows) for prepared, rows in waiting]
    row = {f"p{number}_{name}": value for number, (_, one) in enumerate(bound) for name, value in one.items()}
    _together(tuple(sql for sql, _ in bound)).execute(connection, [row])


def _about_many(sql: str, types: Mapping[str, str]) -> str:
    """Return the INSERT or UPDATE as one of PostgreSQL's that takes an array for each parameter.

    The driver would send a statement with many rows once for each of them; with as many values in its text as there are
    rows, each number of rows would be another statement to the server.
    """
    arrays = ", ".join(f"%({name})s::{kind}[]" for name, kind in types.items())
    names = ", ".join(f'"{name}"' for name in types)
    given = f"FROM unnest({arrays}) AS given ({names})"
    named = _MARK.sub(r'given."\1"', sql)
    if named.startswith("INSERT"):
        return _PLACES.sub(rf"SELECT \1 {given}", named, count=1)
    return named.replace(" WHERE ", f" {given} WHERE ", 1)


def _numbering_cursor(connection: Connection) -> Any:
    """Return a cursor that takes `$1` for values, as the server does.

    The usual one looks for names in the text each time if that is long.
    """
    from psycopg import RawCursor  # noqa: PLC0415 - optional

    return RawCursor(cast("Any", connection.connection.driver_connection))


@lru_cache(maxsize=512)
def _numbered(sql: str) -> tuple[str, tuple[str, ...]]:
    """Return the statement with numbers for the names of its values, and the names in their order."""
    names = tuple(dict.fromkeys(_NAME.findall(sql)))
    numbers = {name: f"${number}" for number, name in enumerate(names, 1)}
    return _NAME.sub(lambda found: numbers[found[1]], sql).replace("%%", "%"), names


def _converter(kind: Any, dialect: Dialect) -> Callable[[Any], Any] | None:
    converter: Callable[[Any], Any] | None = kind.dialect_impl(dialect).bind_processor(dialect)
    return converter


@lru_cache(maxsize=64)
def _prepared(dialect: Dialect, statement: UpdateBase, names: tuple[str, ...]) -> Prepared:
    return Prepared(statement, dialect, names)


def execute(connection: Connection, statement: UpdateBase, columns: Row, **others: Any) -> int:
    """Run a statement that sets `columns` and has the further parameters `others`; returns the number of rows written.

    The statement must be built once and kept: the compiled form is cached with it.
    """
    return _prepared(connection.dialect, statement, tuple(columns)).execute(connection, [{**columns, **others}])


def execute_later(
    connection: Connection, statement: UpdateBase, rows: Sequence[Row], columns: Sequence[str] = ()
) -> None:
    """Run a statement, built once and kept, that sets `columns` with the parameters of each row; see `defer`."""
    if rows:
        defer(connection, _prepared(connection.dialect, statement, tuple(columns)), rows)
