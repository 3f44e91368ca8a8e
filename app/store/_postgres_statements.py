"""Statements sent by libpq itself, without psycopg's cursors.

psycopg still connects, converts values and rows, and names the errors. Its cursors look at the text and at the types of
all values for each execution, which takes three times as long as everything else; a payment is a dozen statements.
"""

from collections.abc import Iterator, Sequence
from typing import Any

from psycopg import Connection, OperationalError, abc
from psycopg.adapt import PyFormat, Transformer
from psycopg.errors import error_from_result
from psycopg.pq import ExecStatus, TransactionStatus
from psycopg.pq.abc import PGresult

KEPT = 200
"""Prepared statements of a connection, and as many texts whose use is counted."""
_GOOD = (ExecStatus.TUPLES_OK, ExecStatus.COMMAND_OK)


class StatementResult:
    """What a statement answered, like a cursor of SQLite's."""

    def __init__(self, result: PGresult, values: abc.Transformer) -> None:
        self._result, self._values = result, values

    def names(self) -> tuple[str, ...]:
        """Return the names of the columns."""
        return tuple((self._result.fname(place) or b"").decode() for place in range(self._result.nfields))

    @property
    def tag(self) -> str:
        """The server's word for what it did, such as `COMMIT`."""
        return (self._result.command_status or b"").decode()

    @property
    def rowcount(self) -> int:
        """How many rows it wrote."""
        return self._result.command_tuples or 0

    def fetchall(self) -> list[Any]:
        """Return all rows."""
        self._values.set_pgresult(self._result)
        return self._values.load_rows(0, self._result.ntuples, tuple)

    def fetchone(self) -> tuple[Any, ...] | None:
        """Return the first row, if there is one."""
        rows = self.fetchall()
        return rows[0] if rows else None

    def __iter__(self) -> Iterator[tuple[Any, ...]]:
        """Go through all rows."""
        return iter(self.fetchall())


class Sender:
    """Sends statements over a connection of psycopg's, and lets the server prepare those that come again.

    The server infers the types of values from where they stand, not from what Python gives; where that says nothing,
    the text needs a cast.
    """

    def __init__(self, connection: Connection[Any], prepare_threshold: int) -> None:
        """``prepare_threshold`` is the use of a statement from which on it is prepared; 0 for never."""
        self._connection = connection
        self._threshold = prepare_threshold
        self._libpq = connection.pgconn
        self._values = Transformer.from_context(connection)
        self._used: dict[str, int] = {}
        self._prepared: dict[str, bytes] = {}
        self._number = 0
        self.at_commit: dict[str, None] = {}
        """Statements to be sent with the commit of the running transaction."""

    @property
    def idle(self) -> bool:
        """Whether the connection is in no transaction."""
        return self._libpq.transaction_status == TransactionStatus.IDLE

    @property
    def autocommit(self) -> bool:
        """Whether each statement is a transaction."""
        return self._connection.autocommit

    def run(self, sql: str, values: Sequence[Any] = ()) -> StatementResult:
        """Run a statement with `$1` for its first value, in the connection's transaction. Raises psycopg's errors."""
        if self.idle and not self.autocommit:
            self.run_all("BEGIN")
        given: Any = self._values.dump_sequence(values, [PyFormat.TEXT] * len(values)) if values else None
        name = self._prepared.get(sql) or self._prepare(sql)
        if name is None:
            result = self._libpq.exec_params(sql.encode(), given)
        else:
            result = self._libpq.exec_prepared(name, given)
        return StatementResult(self._good(result), self._values)

    def run_all(self, script: str) -> StatementResult:
        """Run statements without values in one round trip; returns the last one's result. Raises psycopg's errors."""
        return StatementResult(self._good(self._libpq.exec_(script.encode())), self._values)

    def _prepare(self, sql: str) -> bytes | None:
        """Return the name of a statement that has come often enough; None for another."""
        if self._threshold == 0:
            return None
        used = self._used.pop(sql, 0) + 1
        if used < self._threshold:
            if len(self._used) >= KEPT:
                del self._used[next(iter(self._used))]
            self._used[sql] = used
            return None
        if len(self._prepared) >= KEPT:
            oldest = next(iter(self._prepared))
            self.run_all(f"DEALLOCATE {self._prepared.pop(oldest).decode()}")
        self._number += 1
        name = f"agent_vault_{self._number}".encode()
        self._good(self._libpq.prepare(name, sql.encode()))
        self._prepared[sql] = name
        return name

    def _good(self, result: PGresult) -> PGresult:
        if result.status in _GOOD:
            return result
        error = error_from_result(result, self._connection.info.encoding)
        if error.sqlstate is None:
            # Not the server's word but libpq's: the connection is lost. If that shows while sending, it still counts as
            # good, and so it would be used again.
            self._libpq.finish()
            raise OperationalError(str(error))
        raise error
