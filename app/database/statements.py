"""Statements that bypass SQLAlchemy's execution, for the reads and writes of every payment.

SQLAlchemy needs ten times SQLite's own time for a short statement. It still compiles these statements and converts
their values, but the driver executes them. On PostgreSQL, where each statement is a round trip, statements can be
deferred and sent as one if their results are not needed.
"""

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import lru_cache
from operator import itemgetter
from typing import Any, TypeVar

from sqlalchemy import ARRAY, JSON, BindParameter, Connection, Dialect, Executable, bindparam, column, func, select
from sqlalchemy.exc import DBAPIError, SQLAlchemyError
from sqlalchemy.sql import visitors
from sqlalchemy.sql.dml import Insert, UpdateBase

from app.core.errors import StorageUnavailableError

Row = Mapping[str, Any]
T = TypeVar("T")

SENDER = "agent_vault_sender"
"""The key of the `Sender` in a PostgreSQL connection's `info`."""


class _Compiled:
    """A statement compiled for a dialect, with its values by position."""

    def __init__(self, statement: Executable, dialect: Dialect, names: Sequence[str] | None = None) -> None:
        """`names` are the columns that a writing statement sets by its parameters."""
        self.by_sender = dialect.name == "postgresql"
        used = sender_dialect() if self.by_sender else dialect
        sent: Any = statement if self.by_sender else visitors.replacement_traverse(statement, {}, _list_as_json)  # type: ignore[call-overload]
        compiled = sent.compile(dialect=used, column_keys=names)
        self._sql = str(compiled)
        binds = [(name, compiled.binds[name]) for name in compiled.positiontup]
        self.types = {name: bind.type for name, bind in binds if bind.required or name in (names or ())}
        """Types of the parameters that get their values from each row."""
        self._convert = [(name, bind.type.dialect_impl(used).bind_processor(used)) for name, bind in binds]
        self._constants = {name: bind.value for name, bind in binds if not bind.required}
        plain = len(binds) > 1 and not self._constants and not any(convert for _, convert in self._convert)
        # `itemgetter` takes a third of the time, and suffices for most statements of a payment.
        self._values: Callable[[Row], Sequence[Any]] = itemgetter(*compiled.positiontup) if plain else self._converted

    def _converted(self, row: Row) -> Sequence[Any]:
        given = {**self._constants, **row} if self._constants else row
        return tuple([given[name] if convert is None else convert(given[name]) for name, convert in self._convert])


class CompiledQuery(_Compiled):
    """A compiled query. The names of its columns are known after its first run."""

    def __init__(self, statement: Any, dialect: Dialect) -> None:
        super().__init__(statement, dialect)
        kinds = [one.type.dialect_impl(dialect) for one in statement.selected_columns]
        found = [(place, kind.result_processor(dialect, None)) for place, kind in enumerate(kinds)]
        self._processors = [(place, one) for place, one in found if one is not None]
        self._names: tuple[str, ...] = ()

    def rows(self, connection: Connection, row: Row) -> tuple[tuple[str, ...], list[Any]]:
        """Return the names of the columns, and the rows."""
        values = self._values(row)
        if self.by_sender:
            answer = run_numbered(connection, self._sql, values)
            self._names = self._names or answer.names()
            rows: list[Any] = answer.fetchall()
        else:
            description, rows = _with_cursor(
                connection, self._sql, lambda cursor: (cursor.execute(self._sql, values).description, cursor.fetchall())
            )
            self._names = self._names or tuple([one[0] for one in description])
        if self._processors:
            rows = [self._processed(one) for one in rows]
        return self._names, rows

    def _processed(self, row: Sequence[Any]) -> list[Any]:
        values = list(row)
        for place, process in self._processors:
            values[place] = process(values[place])
        return values


class Prepared(_Compiled):
    """A statement compiled for a dialect, for one or many rows of values. `names` are the columns that it sets."""

    def __init__(self, statement: Any, dialect: Dialect, names: Sequence[str] = ()) -> None:
        super().__init__(statement, dialect, names)
        self.statement, self.dialect = statement, dialect
        self._names = [one for one in names if one in self.types]

    def execute(self, connection: Connection, rows: Sequence[Row]) -> int:
        """Run the statement for each row in the connection's transaction. Return the number of rows written.

        On PostgreSQL, one statement covers all rows, so their keys must differ. Raises SQLAlchemy's errors.
        """
        counted: int
        if self.by_sender:
            counted = self.send(connection, rows).rowcount
        else:
            values = [self._values(row) for row in rows]
            counted = _with_cursor(connection, self._sql, lambda cursor: cursor.executemany(self._sql, values).rowcount)
        return counted

    def returned(self, connection: Connection, rows: Sequence[Row]) -> list[Any]:
        """Run the statement as `execute` does. Return the rows that it returns, as the driver represents them."""
        if self.by_sender:
            found: list[Any] = self.send(connection, rows).fetchall()
            return found

        def run(cursor: Any) -> list[Any]:
            return [one for row in rows for one in cursor.execute(self._sql, self._values(row))]

        return _with_cursor(connection, self._sql, run)

    def send(self, connection: Connection, rows: Sequence[Row]) -> Any:
        """Send one PostgreSQL statement for all rows. Return its `StatementResult`."""
        if len(rows) > 1:
            return _together((self,), (True,)).send(connection, [_numbered([(self, rows)])])
        return run_numbered(connection, self._sql, self._values(rows[0]))

    def spelled_out(self, number: int, *, many: bool) -> Any:
        """Return the statement with `number` in the names of its parameters, so that statements can be combined.

        With `many`, each parameter is an array with the values of all rows. One round trip then suffices for all rows,
        and the statement's text does not depend on the number of rows.
        """
        value: Callable[[str], Any]
        if many:
            arrays = [
                bindparam(_name(number, one), type_=ARRAY(kind, dimensions=1)) for one, kind in self.types.items()
            ]
            columns = [column(one, kind) for one, kind in self.types.items()]
            value = func.unnest(*arrays).table_valued(*columns).render_derived().c.__getitem__
        else:
            value = lambda one: bindparam(_name(number, one), type_=self.types[one])  # noqa: E731

        def replaced(one: Any, **_: Any) -> Any:
            return value(one.key) if isinstance(one, BindParameter) and one.required else None

        statement: Any = visitors.replacement_traverse(self.statement, {}, replaced)  # type: ignore[call-overload]
        if many and isinstance(statement, Insert):
            return statement.from_select(list(self._names), select(*map(value, self._names)))
        return statement.values({one: value(one) for one in self._names}) if self._names else statement


def _list_as_json(one: Any, **_: Any) -> Any:
    """Replace a list of texts or integers by one value, so that SQLite's SQL does not depend on its length."""
    if not (isinstance(one, BindParameter) and one.expanding):
        return None
    values = func.json_each(bindparam(one.key, one.value, type_=JSON, required=one.required)).table_valued("value")
    return select(values.c.value).scalar_subquery()


def _name(number: int, parameter: str) -> str:
    return f"p{number}_{parameter}"


def _numbered(pieces: Sequence[tuple[Prepared, Sequence[Row]]]) -> dict[str, Any]:
    """Return the values of statements that are sent as one."""
    return {
        _name(number, one): rows[0][one] if len(rows) == 1 else [row[one] for row in rows]
        for number, (prepared, rows) in enumerate(pieces)
        for one in prepared.types
    }


@lru_cache(maxsize=512)
def _together(pieces: tuple[Prepared, ...], many: tuple[bool, ...]) -> Prepared:
    """Return several PostgreSQL statements as one. Each part sees the state before the combined statement."""
    *first, last = [
        one.spelled_out(number, many=several) for number, (one, several) in enumerate(zip(pieces, many, strict=True))
    ]
    together = last.add_cte(*[one.cte(f"w{number}") for number, one in enumerate(first)]) if first else last
    return Prepared(together, pieces[0].dialect)


@contextmanager
def deferring(connection: Connection) -> Iterator[None]:
    """Defer the PostgreSQL statements that are passed to `defer` in this context.

    They are sent before any other statement, or at the end of the context. If the context ends with an exception, its
    work will be undone. The deferred statements, and those added for the commit, are then dropped.
    """
    sender = _sender(connection)
    sender.deferred = []
    before = dict(sender.at_commit)
    try:
        yield
        send_deferred(connection)
    except BaseException:
        sender.at_commit = before
        raise
    finally:
        sender.deferred = None


def defer(connection: Connection, prepared: Prepared, rows: Sequence[Row]) -> None:
    """Run a statement whose result is not needed: combined with others if possible, otherwise immediately."""
    sender = _sender(connection) if prepared.by_sender else None
    if sender is None or sender.deferred is None:
        prepared.execute(connection, rows)
        return
    # Two parts of one statement that write the same row would not see each other's changes.
    if any(one.statement.table is prepared.statement.table for one, _ in sender.deferred):
        send_deferred(connection)
    sender.deferred.append((prepared, rows))


def send_deferred(connection: Connection) -> Any:
    """Send the deferred statements as one statement. Return the connection's `Sender`."""
    sender = _sender(connection)
    if sender.deferred:
        waiting, sender.deferred = sender.deferred, []
        if len(waiting) == 1:
            [(prepared, rows)] = waiting
            prepared.execute(connection, rows)
        else:
            pieces, rows_of = zip(*waiting, strict=True)
            _together(pieces, tuple([len(rows) > 1 for rows in rows_of])).execute(connection, [_numbered(waiting)])
    return sender


def _with_cursor(connection: Connection, sql: str, work: Callable[[Any], T]) -> T:
    """Run work on a cursor of the driver in the connection's transaction. Raises SQLAlchemy's errors."""
    if not connection.in_transaction():
        connection.begin()
    cursor = connection.connection.cursor()
    try:
        return work(cursor)
    except connection.dialect.loaded_dbapi.Error as error:
        raise _failure(connection, sql, error) from error
    finally:
        cursor.close()


def run_numbered(connection: Connection, sql: str, values: Sequence[Any]) -> Any:
    """Run a PostgreSQL statement, with `$1` for its first value, in the connection's transaction.

    Returns a `StatementResult`. Raises SQLAlchemy's errors.
    """
    sender = send_deferred(connection)
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
    sender = send_deferred(connection)
    try:
        return sender.run_all(script)
    except connection.dialect.loaded_dbapi.Error as error:
        raise _failure(connection, script, error) from error


def _sender(connection: Connection) -> Any:
    if connection.invalidated:
        # Work must not continue after its connection was lost.
        raise StorageUnavailableError
    return connection.info[SENDER]


def at_commit(connection: Connection, statement: str) -> None:
    """Send a statement without values together with the commit. Only for transactions that a script has begun."""
    _sender(connection).at_commit[statement] = None


def is_idle(connection: Connection) -> bool:
    """Return True if a PostgreSQL connection is intact and has no open transaction."""
    return not connection.invalidated and bool(connection.info[SENDER].idle)


def _failure(connection: Connection, sql: str, error: Any) -> DBAPIError:
    """Return an error of the driver as an error of SQLAlchemy."""
    driver_error = connection.dialect.loaded_dbapi.Error
    lost = connection.dialect.is_disconnect(error, connection.connection.dbapi_connection, None)
    if lost:
        # The query fails too, so SQLAlchemy notes the loss and checks its other connections before reusing them.
        with contextlib.suppress(SQLAlchemyError):
            connection.exec_driver_sql("SELECT 1")
    failure = DBAPIError.instance(sql, None, error, driver_error, hide_parameters=True, connection_invalidated=lost)
    assert isinstance(failure, DBAPIError)
    return failure


@lru_cache(maxsize=1)
def sender_dialect() -> Dialect:
    """Return the dialect of a `Sender`'s PostgreSQL statements: numbered values, and an array for each list."""
    from app.database.postgres._dialect import SenderDialect  # noqa: PLC0415 - psycopg is optional

    return SenderDialect()


@lru_cache(maxsize=512)
def _prepared(dialect: Dialect, statement: Executable, names: tuple[str, ...]) -> Prepared:
    return Prepared(statement, dialect, names)


@lru_cache(maxsize=512)
def _query(dialect: Dialect, statement: Executable) -> CompiledQuery:
    return CompiledQuery(statement, dialect)


def rows(connection: Connection, statement: Executable, values: Row) -> tuple[tuple[str, ...], Sequence[Sequence[Any]]]:
    """Return a query's column names and rows. Build a query once and keep it, because its compiled form is cached."""
    return _query(connection.dialect, statement).rows(connection, values)


def scalar(connection: Connection, statement: Executable, values: Row) -> Any:
    """Return the first value of a query's first row, or None without a row. See `rows` for the query."""
    _, found = rows(connection, statement, values)
    return found[0][0] if found else None


def execute(connection: Connection, statement: UpdateBase, columns: Row, **others: Any) -> int:
    """Run a statement that sets `columns`, with further parameters `others`. Return the number of rows written.

    Build the statement once and keep it, because its compiled form is cached with it.
    """
    return _prepared(connection.dialect, statement, tuple(columns)).execute(connection, [{**columns, **others}])


def execute_all(
    connection: Connection, statement: Executable, rows: Sequence[Row], columns: Sequence[str] | None = None
) -> list[Any]:
    """Run a statement for each row of values. An INSERT sets all values as columns, or only `columns` if given.

    Returns the rows that the statement returns.

    On PostgreSQL, one statement covers all rows. The returned values are not converted. Build the statement once.
    """
    names = tuple(rows[0]) if columns is None and rows and isinstance(statement, Insert) else tuple(columns or ())
    return _prepared(connection.dialect, statement, names).returned(connection, rows) if rows else []


def execute_later(
    connection: Connection, statement: UpdateBase, rows: Sequence[Row], columns: Sequence[str] = ()
) -> None:
    """Run a statement that sets `columns` for each row, as `defer` does. Build the statement once and keep it."""
    if rows:
        defer(connection, _prepared(connection.dialect, statement, tuple(columns)), rows)
