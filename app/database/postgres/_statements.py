"""Statements sent directly by libpq, without psycopg's cursors.

psycopg still connects, converts values and rows, and names the errors. Its cursors inspect the text and the types of
all values at each execution. This takes three times as long as everything else, and a payment needs a dozen statements.
"""

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import structlog
from psycopg import Connection, OperationalError, abc
from psycopg.adapt import PyFormat, Transformer
from psycopg.errors import error_from_result
from psycopg.pq import ExecStatus, TransactionStatus
from psycopg.pq.abc import PGresult

KEPT = 200
"""Maximum number of prepared statements of a connection, and of statements whose uses are counted."""
_GOOD = (ExecStatus.TUPLES_OK, ExecStatus.COMMAND_OK)
READ_ONLY = "25006"
"""The SQLSTATE of a statement that is refused because the session is read-only."""
_NOT_AS_PREPARED = frozenset({"26000", "42P05"})
"""The SQLSTATEs for a prepared statement that is missing or already exists."""

_log = structlog.get_logger(__name__)


@dataclass
class Preparation:
    """Controls when a process prepares a statement: at its `threshold`-th use, or never if `threshold` is 0."""

    threshold: int

    def end(self) -> None:
        """Stop preparing statements, because a pooler assigns another session to each transaction."""
        if self.threshold:
            self.threshold = 0
            _log.warning("prepared_statements_given_up", remedy="set AGENT_VAULT_DATABASE_PREPARE_THRESHOLD=0")


class StatementResult:
    """The result of a statement, with methods like an SQLite cursor's."""

    def __init__(self, result: PGresult, values: abc.Transformer) -> None:
        self._result, self._values = result, values

    def names(self) -> tuple[str, ...]:
        """Return the names of the columns."""
        return tuple((self._result.fname(place) or b"").decode() for place in range(self._result.nfields))

    @property
    def tag(self) -> str:
        """The server's tag for the executed command, such as `COMMIT`."""
        return (self._result.command_status or b"").decode()

    @property
    def rowcount(self) -> int:
        """The number of rows that the statement wrote."""
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
        """Iterate over all rows."""
        return iter(self.fetchall())


class Sender:
    """Sends statements over a psycopg connection, and has the server prepare repeated statements.

    The server infers the types of values from their place in the statement, not from their Python types. If the place
    does not determine the type, the statement needs a cast.
    """

    def __init__(self, connection: Connection[Any], preparation: Preparation) -> None:
        self._connection = connection
        self._preparation = preparation
        self._libpq = connection.pgconn
        self._values = Transformer.from_context(connection)
        self._used: dict[str, int] = {}
        self._prepared: dict[str, bytes] = {}
        self.at_commit: dict[str, None] = {}
        """Statements to send with the commit of the running transaction."""
        self.deferred: list[Any] | None = None
        """Deferred statements, to be sent as one; see `deferring`. None if statements must not be deferred."""

    @property
    def idle(self) -> bool:
        """True if the connection has no open transaction."""
        return self._libpq.transaction_status == TransactionStatus.IDLE

    @property
    def autocommit(self) -> bool:
        """True if each statement is a transaction of its own."""
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
        """Run statements without values in one round trip. Return the last result. Raises psycopg's errors."""
        return StatementResult(self._good(self._libpq.exec_(script.encode())), self._values)

    def _prepare(self, sql: str) -> bytes | None:
        """Return the name of the prepared statement, or None if the text has not been used often enough yet."""
        threshold = self._preparation.threshold
        if threshold == 0:
            return None
        used = self._used.pop(sql, 0) + 1
        if used < threshold:
            if len(self._used) >= KEPT:
                del self._used[next(iter(self._used))]
            self._used[sql] = used
            return None
        if len(self._prepared) >= KEPT:
            oldest = next(iter(self._prepared))
            self.run_all(f"DEALLOCATE {self._prepared.pop(oldest).decode()}")
        # The name derives from the text. If a pooler mixes up sessions, another client's statement of this name has the
        # same text.
        name = b"agent_vault_" + hashlib.sha256(sql.encode()).hexdigest()[:32].encode()
        self._good(self._libpq.prepare(name, sql.encode()))
        self._prepared[sql] = name
        return name

    def _good(self, result: PGresult) -> PGresult:
        if result.status in _GOOD:
            return result
        error = error_from_result(result, self._connection.info.encoding)
        if error.sqlstate in _NOT_AS_PREPARED:
            self._preparation.end()
        elif error.sqlstate == READ_ONLY:
            # A session that began read-only stays read-only, even after the server accepts writes again.
            _log.warning("server_is_read_only", error=error.diag.message_primary)
        elif error.sqlstate is not None:
            raise error
        # The connection is unusable. An error without an SQLSTATE is libpq's own and means a lost connection. Close it
        # here, because it would otherwise be reused.
        self._libpq.finish()
        raise error if error.sqlstate else OperationalError(str(error))
