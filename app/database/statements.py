"""Statements that bypass SQLAlchemy's execution, for the reads and writes of every payment.

SQLAlchemy needs ten times SQLite's own time to execute a short statement. It still compiles these statements and
converts their values, but the driver executes them. On PostgreSQL, where each statement is a round trip, statements
without a needed result can be deferred and sent as one.
"""

import contextlib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import lru_cache
from typing import Any

from sqlalchemy import Connection, Dialect, Executable
from sqlalchemy.exc import CompileError, DBAPIError, SQLAlchemyError
from sqlalchemy.sql.dml import UpdateBase

from app.core.errors import StorageUnavailableError

Row = Mapping[str, Any]

_MARK = re.compile(r"%\((\w+)\)s(?:::\w+)?")
_NAME = re.compile(r"%\((\w+)\)s")
_BARE = re.compile(r"%\((\w+)\)s(?!::)")
_EXPANDING = re.compile(r"(NOT )?IN \(__\[POSTCOMPILE_(\w+)\]\)")
_PLACES = re.compile(r"VALUES \(([^()]*)\)")
SENDER = "agent_vault_sender"
"""The key of the `Sender` in a PostgreSQL connection's `info`."""


class _Compiled:
    """A statement compiled for a dialect."""

    def __init__(self, statement: Executable, dialect: Dialect, names: Sequence[str] | None = None) -> None:
        """`names` are the columns that a writing statement sets by its parameters."""
        compiled: Any = statement.compile(dialect=dialect, column_keys=names)  # type: ignore[attr-defined]
        self._by_position: bool = compiled.positional
        self._kind_of: Callable[[str], str] = lambda name: dialect.type_compiler_instance.process(
            compiled.binds[name].type
        )
        self._sql = str(compiled) if self._by_position else _with_arrays(str(compiled), self._kind_of)
        parameters: Sequence[str] = (
            compiled.positiontup if self._by_position else list(dict.fromkeys(_MARK.findall(self._sql)))
        )
        several = {one.key for one in compiled.post_compile_params}
        self.expands = self._by_position and bool(several)
        converters = [(name, _converter(compiled.binds[name].type, dialect)) for name in parameters]
        self._convert = [(name, _of_each(one) if name in several else one) for name, one in converters]
        self._constants = {name: compiled.binds[name].value for name in parameters if not compiled.binds[name].required}

    def _values(self, row: Row) -> Any:
        given = {**self._constants, **row} if self._constants else row
        values = [(name, given[name] if convert is None else convert(given[name])) for name, convert in self._convert]
        return tuple([value for _, value in values]) if self._by_position else dict(values)


class CompiledQuery(_Compiled):
    """A query. The names of its columns are known after its first run."""

    def __init__(self, statement: Any, dialect: Dialect) -> None:
        super().__init__(statement, dialect)
        if not self._by_position:
            self._sql = _BARE.sub(self._with_cast, self._sql)
            self._numbered, self._parameters = _numbered(self._sql)
        kinds = [one.type.dialect_impl(dialect) for one in statement.selected_columns]
        found = [(place, kind.result_processor(dialect, None)) for place, kind in enumerate(kinds)]
        self._processors = [(place, one) for place, one in found if one is not None]
        self._names: tuple[str, ...] = ()

    def rows(self, connection: Connection, row: Row) -> tuple[tuple[str, ...], list[Any]]:
        """Return the names of the columns, and the rows."""
        values = self._values(row)
        if self._by_position:
            with _cursor(connection, self._sql) as cursor:
                cursor.execute(self._sql, values)
                self._names = self._names or tuple([one[0] for one in cursor.description])
                rows: list[Any] = cursor.fetchall()
        else:
            answer = run_numbered(connection, self._numbered, [values[name] for name in self._parameters])
            self._names = self._names or answer.names()
            rows = answer.fetchall()
        if self._processors:
            rows = [self._processed(one) for one in rows]
        return self._names, rows

    def _with_cast(self, found: re.Match[str]) -> str:
        # If SQLAlchemy knows no type, the server infers one from the expression around the value.
        with contextlib.suppress(CompileError):
            return f"{found[0]}::{self._kind_of(found[1])}"
        return found[0]

    def _processed(self, row: Sequence[Any]) -> list[Any]:
        values = list(row)
        for place, process in self._processors:
            values[place] = process(values[place])
        return values


class Prepared(_Compiled):
    """A writing statement, compiled for a dialect; `names` are the columns among its parameters."""

    def __init__(self, statement: UpdateBase, dialect: Dialect, names: Sequence[str]) -> None:
        super().__init__(statement, dialect, list(names))
        self.table = statement.table
        types = {name: self._kind_of(name) for name, _ in self._convert}
        self._of_many = _about_many(self._sql, types) if dialect.name == "postgresql" else None

    def execute(self, connection: Connection, rows: Sequence[Row]) -> int:
        """Run the statement for each row in the connection's transaction. Return the number of rows written.

        On PostgreSQL, one statement covers all rows, so their keys must differ. Raises SQLAlchemy's errors.
        """
        if self._by_position:
            with _cursor(connection, self._sql) as cursor:
                if len(rows) == 1:
                    cursor.execute(self._sql, self._values(rows[0]))
                else:
                    cursor.executemany(self._sql, [self._values(row) for row in rows])
                written: int = cursor.rowcount
                return written
        sql, values = self.bound(rows)
        numbered, names = _numbered(sql)
        counted: int = run_numbered(connection, numbered, [values[name] for name in names]).rowcount
        return counted

    def bound(self, rows: Sequence[Row]) -> tuple[str, Any]:
        """Return the single statement for these rows, and its values."""
        if len(rows) == 1:
            return self._sql, self._values(rows[0])
        assert self._of_many is not None
        values = [self._values(row) for row in rows]
        return self._of_many, {name: [one[name] for one in values] for name, _ in self._convert}


class _Together(Prepared):
    """Several PostgreSQL statements as one, with the values of all. Each sees the state before all of them."""

    def __init__(self, statements: Sequence[str]) -> None:
        *first, last = [_NAME.sub(rf"%(p{number}_\1)s", sql) for number, sql in enumerate(statements)]
        self._sql = f"WITH {', '.join(f'w{number} AS ({sql})' for number, sql in enumerate(first))} {last}"
        self._convert = [(name, None) for name in _NAME.findall(self._sql)]
        self._by_position, self._constants, self._of_many = False, {}, None


_together = lru_cache(maxsize=256)(_Together)
_deferred: dict[Connection, list[tuple[Prepared, Sequence[Row]]]] = {}


@contextmanager
def deferring(connection: Connection) -> Iterator[None]:
    """Defer statements in this context. They are sent before any other statement, or at the end of the context.

    If it ends with an exception, statements deferred here or until the commit are dropped: the work will be undone.
    """
    _deferred[connection] = []
    until_commit = _sender(connection).at_commit
    before = dict(until_commit)
    try:
        yield
        send_deferred(connection)
    except BaseException:
        until_commit.clear()
        until_commit.update(before)
        raise
    finally:
        del _deferred[connection]


def defer(connection: Connection, prepared: Prepared, rows: Sequence[Row]) -> None:
    """Run a statement whose result is not needed: combined with others if possible, otherwise immediately."""
    waiting = _deferred.get(connection)
    if waiting is None:
        prepared.execute(connection, rows)
        return
    # Two parts of one statement that write the same row would not see each other's changes.
    if any(one.table is prepared.table for one, _ in waiting):
        send_deferred(connection)
    _deferred[connection].append((prepared, rows))


def send_deferred(connection: Connection) -> None:
    """Send the deferred statements as one statement."""
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
    """Return the INSERT or UPDATE as a PostgreSQL statement that takes an array for each parameter.

    The driver would send a statement with many rows once per row. If its text contained the values of all rows, each
    number of rows would be a different statement to the server.
    """
    arrays = ", ".join(f"%({name})s::{kind}[]" for name, kind in types.items())
    names = ", ".join(f'"{name}"' for name in types)
    given = f"FROM unnest({arrays}) AS given ({names})"
    named = _MARK.sub(r'given."\1"', sql)
    if named.startswith("INSERT"):
        return _PLACES.sub(rf"SELECT \1 {given}", named, count=1)
    return named.replace(" WHERE ", f" {given} WHERE ", 1)


@contextmanager
def _cursor(connection: Connection, sql: str) -> Iterator[Any]:
    """Yield a cursor of the driver in the connection's transaction. Raises SQLAlchemy's errors."""
    if not connection.in_transaction():
        connection.begin()
    cursor = connection.connection.cursor()
    try:
        yield cursor
    except connection.dialect.loaded_dbapi.Error as error:
        raise _failure(connection, sql, error) from error
    finally:
        cursor.close()


def run_numbered(connection: Connection, sql: str, values: Sequence[Any]) -> Any:
    """Run a PostgreSQL statement, with `$1` for its first value, in the connection's transaction.

    Returns a `StatementResult`. Raises SQLAlchemy's errors.
    """
    send_deferred(connection)
    sender = _sender(connection)
    if not sender.autocommit and not connection.in_transaction():
        connection.begin()
    try:
        return sender.run(sql, values)
    except connection.dialect.loaded_dbapi.Error as error:
        raise _failure(connection, sql, error) from error


def run_script(connection: Connection, script: str) -> Any:
    """Run PostgreSQL statements without values, unchanged. They may begin or end a transaction.

    Returns the `StatementResult` of the last one. Raises SQLAlchemy's errors.
    """
    send_deferred(connection)
    sender = _sender(connection)
    try:
        return sender.run_all(script)
    except connection.dialect.loaded_dbapi.Error as error:
        raise _failure(connection, script, error) from error


def _sender(connection: Connection) -> Any:
    if connection.invalidated:
        # The work continued although its connection was lost.
        raise StorageUnavailableError
    return connection.info[SENDER]


def at_commit(connection: Connection, statement: str) -> None:
    """Send a statement without values together with the commit of a transaction that a script began."""
    _sender(connection).at_commit[statement] = None


def is_idle(connection: Connection) -> bool:
    """Return True if a PostgreSQL connection is intact and in no transaction."""
    return not connection.invalidated and bool(connection.info[SENDER].idle)


def _failure(connection: Connection, sql: str, error: Any) -> DBAPIError:
    """Return an error of the driver as an error of SQLAlchemy."""
    driver_error = connection.dialect.loaded_dbapi.Error
    lost = connection.dialect.is_disconnect(error, connection.connection.dbapi_connection, None)
    if lost:
        # This fails too, which tells SQLAlchemy of the loss: it then checks its other connections before reusing them.
        with contextlib.suppress(SQLAlchemyError):
            connection.exec_driver_sql("SELECT 1")
    failure = DBAPIError.instance(sql, None, error, driver_error, hide_parameters=True, connection_invalidated=lost)
    assert isinstance(failure, DBAPIError)
    return failure


@lru_cache(maxsize=512)
def _numbered(sql: str) -> tuple[str, tuple[str, ...]]:
    """Return the statement with numbers instead of the names of its values, and the names in that order."""
    names = tuple(dict.fromkeys(_NAME.findall(sql)))
    numbers = {name: f"${number}" for number, name in enumerate(names, 1)}
    return _NAME.sub(lambda found: numbers[found[1]], sql).replace("%%", "%"), names


def _with_arrays(sql: str, kind_of: Callable[[str], str]) -> str:
    """Return the statement with one array for each list of values, so that its text is always the same."""

    def array(found: re.Match[str]) -> str:
        return f"{'<> ALL' if found[1] else '= ANY'}(%({found[2]})s::{kind_of(found[2])}[])"

    return _EXPANDING.sub(array, sql)


def _of_each(convert: Callable[[Any], Any] | None) -> Callable[[Iterable[Any]], list[Any]]:
    return list if convert is None else lambda values: [convert(one) for one in values]


def _converter(kind: Any, dialect: Dialect) -> Callable[[Any], Any] | None:
    return kind.dialect_impl(dialect).bind_processor(dialect)  # type: ignore[no-any-return]


@lru_cache(maxsize=64)
def _prepared(dialect: Dialect, statement: UpdateBase, names: tuple[str, ...]) -> Prepared:
    return Prepared(statement, dialect, names)


@lru_cache(maxsize=512)
def _query(dialect: Dialect, statement: Executable) -> CompiledQuery:
    return CompiledQuery(statement, dialect)


def rows(connection: Connection, statement: Executable, values: Row) -> tuple[tuple[str, ...], Sequence[Sequence[Any]]]:
    """Return a query's column names and its rows. Build the query once and keep it: its compiled form is cached.

    On SQLite, SQLAlchemy runs queries with lists, because their text depends on the length of the list.
    """
    query = _query(connection.dialect, statement)
    if query.expands:
        found = connection.execute(statement, values)
        return tuple(found.keys()), found.all()
    return query.rows(connection, values)


def scalar(connection: Connection, statement: Executable, values: Row) -> Any:
    """Return the first value of a query's first row, or None; for the query see `rows`."""
    _, found = rows(connection, statement, values)
    return found[0][0] if found else None


def execute(connection: Connection, statement: UpdateBase, columns: Row, **others: Any) -> int:
    """Run a statement that sets `columns` and has further parameters `others`. Return the number of rows written.

    Build the statement once and keep it, because its compiled form is cached with it.
    """
    return _prepared(connection.dialect, statement, tuple(columns)).execute(connection, [{**columns, **others}])


def execute_later(
    connection: Connection, statement: UpdateBase, rows: Sequence[Row], columns: Sequence[str] = ()
) -> None:
    """Run a statement, built once and kept, that sets `columns` with the parameters of each row. See `defer`."""
    if rows:
        defer(connection, _prepared(connection.dialect, statement, tuple(columns)), rows)
