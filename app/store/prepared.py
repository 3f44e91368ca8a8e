"""Statements that bypass SQLAlchemy's execution, for the writes that every payment repeats.

SQLAlchemy takes ten times as long as SQLite to execute a short statement. It still compiles these statements and
converts their values; the driver executes them.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any

from sqlalchemy import Connection, Dialect
from sqlalchemy.exc import DBAPIError
from sqlalchemy.sql.dml import UpdateBase

Row = Mapping[str, Any]


class Prepared:
    """A writing statement, compiled for a dialect; `names` are the columns among its parameters."""

    def __init__(self, statement: UpdateBase, dialect: Dialect, names: Sequence[str]) -> None:
        compiled: Any = statement.compile(dialect=dialect, column_keys=list(names))
        self._sql = str(compiled)
        self._by_position: bool = compiled.positional
        parameters: Sequence[str] = compiled.positiontup if compiled.positional else list(compiled.binds)
        self._convert = [(name, _converter(compiled.binds[name].type, dialect)) for name in parameters]

    def execute(self, connection: Connection, rows: Sequence[Row]) -> int:
        """Run the statement once per row in the connection's transaction; returns the number of rows written.

        Raises SQLAlchemy's errors.
        """
        if not connection.in_transaction():
            connection.begin()
        cursor, driver_error = connection.connection.cursor(), connection.dialect.loaded_dbapi.Error
        try:
            if len(rows) == 1:
                cursor.execute(self._sql, self._values(rows[0]))
            else:
                cursor.executemany(self._sql, [self._values(row) for row in rows])
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

    def _values(self, row: Row) -> Any:
        values = {name: row[name] if convert is None else convert(row[name]) for name, convert in self._convert}
        return tuple(values.values()) if self._by_position else values


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
    prepared = _prepared(connection.dialect, statement, tuple(columns))
    return prepared.execute(connection, [{**columns, **others}])
