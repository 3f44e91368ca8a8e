"""PostgreSQL transactions and the connections kept for them. To begin or end one takes one round trip."""

import contextlib
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache

from sqlalchemy import Connection, text

from app.database.leases import Lease, among
from app.database.postgres._calls import is_connection_lost, return_to_pool
from app.database.statements import SENDER, is_idle, run_script, sender_dialect

WRITER_LOCK = 0x4156_0001
"""The advisory lock that the ordered writing transactions of all processes take, so that they are serialized."""
STATUS = text(
    "SELECT CAST(pg_postmaster_start_time() AS text) AS server, pg_xact_status(CAST(:transaction AS xid8)) AS status"
)
"""The query for the status of a transaction and the start time of the server."""
_BEGIN = (
    "BEGIN ISOLATION LEVEL READ COMMITTED;"
    " SELECT set_config('synchronous_commit', CASE current_setting('synchronous_commit')"
    " WHEN 'remote_apply' THEN 'remote_apply' ELSE 'on' END, true),"
    " set_config('lock_timeout', '{patience}', true), set_config('statement_timeout', '{limit}', true),"
    " set_config('idle_in_transaction_session_timeout', '{idle}', true),"
    " pg_advisory_xact_lock({key}){then}CAST(pg_current_xact_id() AS text), CAST(pg_postmaster_start_time() AS text),"
    " ARRAY({held})"
)


@dataclass(frozen=True, slots=True)
class OpenTransaction:
    """A writing transaction: its number and its server's start time, which identify its outcome, and its held leases.

    `held` has the terms of the needed leases that were still held at the start of the transaction.
    """

    transaction: str
    server: str
    held: frozenset[str]


@dataclass(frozen=True, slots=True)
class TransactionTimeouts:
    """Timeouts of a writing transaction in seconds; 0 means no limit.

    ``lock`` limits the wait for the writers' lock, ``statement`` each statement, and ``idle`` the time between two
    statements. ``idle`` frees the lock of a process that has stopped or lost its machine. Otherwise, the server
    would not notice that the process is gone.
    """

    lock: float
    statement: float
    idle: float


def begin_writing(connection: Connection, leases: Collection[Lease], limits: TransactionTimeouts) -> OpenTransaction:
    """Begin a transaction that holds the writers' lock. Its commit will be durable."""
    connection.info[SENDER].at_commit.clear()
    answer = run_script(connection, _beginning(frozenset(leases), limits))
    *_, transaction, server, held = answer.fetchone()
    return OpenTransaction(transaction, server, frozenset(held))


@lru_cache(maxsize=64)
def _beginning(leases: frozenset[Lease], limits: TransactionTimeouts) -> str:
    held = among(leases).compile(dialect=sender_dialect(), compile_kwargs={"literal_binds": True})
    # A separate statement reads the leases, so that it sees the commits made during the wait for the lock.
    then = "; SELECT " if leases else ", "
    return _BEGIN.format(
        patience=_in_ms(limits.lock),
        limit=_in_ms(limits.statement),
        idle=_in_ms(limits.idle),
        key=WRITER_LOCK,
        then=then,
        held=held,
    )


def begin_reading(connection: Connection) -> None:
    """Begin a transaction that sees one snapshot and changes nothing."""
    run_script(connection, "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")


def commit(connection: Connection) -> None:
    """Commit the transaction. Raises SQLAlchemy's errors, and RuntimeError if a failed statement was ignored."""
    script = "; ".join([*connection.info[SENDER].at_commit, "COMMIT"])
    if run_script(connection, script).tag != "COMMIT":
        raise RuntimeError("The work continued after a statement failed, so none of it was stored.")


def roll_back(connection: Connection) -> None:
    """End the transaction without its changes."""
    run_script(connection, "ROLLBACK")


class ConnectionCache:
    """Connections that are kept and reused, because taking one from the pool and returning it costs two statements.

    Once a connection is lost, the unused ones go back to the pool, which checks each before its next use.
    """

    def __init__(self, connect: Callable[[], Connection]) -> None:
        self._connect = connect
        self._free: list[Connection] = []
        self._closed = False

    @contextmanager
    def one(self) -> Iterator[Connection]:
        """Use a connection, and keep it unless this context raises an error or leaves a transaction open."""
        try:
            connection = self._free.pop()
        except IndexError:
            connection = self._connect()
        good = False
        try:
            yield connection
            good = not self._closed and is_idle(connection)
        except BaseException as error:
            if is_connection_lost(connection, error):
                self._drop()
            raise
        finally:
            if good:
                self._free.append(connection)
            else:
                return_to_pool(connection)

    def close(self) -> None:
        """Close the unused connections, and keep none from now on."""
        self._closed = True
        self._drop()

    def _drop(self) -> None:
        with contextlib.suppress(IndexError):
            while True:
                return_to_pool(self._free.pop())


def _in_ms(seconds: float) -> int:
    return round(seconds * 1000)
