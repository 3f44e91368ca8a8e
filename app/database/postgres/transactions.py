"""Transactions of a PostgreSQL server, each begun and ended by one round trip, and the connections kept for them."""

import contextlib
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache

from sqlalchemy import Connection, Dialect, text

from app.database.leases import Lease, among
from app.database.postgres._calls import is_connection_lost, return_to_pool
from app.database.statements import SENDER, is_idle, run_script

WRITER_LOCK = 0x4156_0001
"""The advisory lock that every writing transaction takes, in any process, so that they follow one another."""
STATUS = text(
    "SELECT CAST(pg_postmaster_start_time() AS text) AS server, pg_xact_status(CAST(:transaction AS xid8)) AS status"
)
"""Asks what became of a transaction, and since when the server runs."""
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
    """A writing transaction: by what to find out its outcome, and the terms of its leases that are still held."""

    transaction: str
    server: str
    held: frozenset[str]


@dataclass(frozen=True, slots=True)
class TransactionTimeouts:
    """Seconds that a writing transaction has; 0 is no limit.

    ``lock`` is for the wait for the writers' lock, ``statement`` for each statement, ``idle`` for the time between two.
    The last one frees the lock of a process that was stopped, or whose machine is gone: nothing else tells the server.
    """

    lock: float
    statement: float
    idle: float


def begin_writing(connection: Connection, leases: Collection[Lease], limits: TransactionTimeouts) -> OpenTransaction:
    """Begin a transaction that holds the writers' lock, and whose commit is durable."""
    connection.info[SENDER].at_commit.clear()
    answer = run_script(connection, _beginning(connection.dialect, frozenset(leases), limits))
    *_, transaction, server, held = answer.fetchone()
    return OpenTransaction(transaction, server, frozenset(held))


@lru_cache(maxsize=64)
def _beginning(dialect: Dialect, leases: frozenset[Lease], limits: TransactionTimeouts) -> str:
    held = among(leases).compile(dialect=dialect, compile_kwargs={"literal_binds": True})
    # Leases are asked for by a statement of its own, which sees what was committed while the lock was waited for.
    then = "; SELECT " if leases else ", "
    return _BEGIN.format(
        patience=_in_ms(limits.lock),
        limit=_in_ms(limits.statement),
        idle=_in_ms(limits.idle),
        key=WRITER_LOCK,
        then=then,
        held=str(held).replace("%%", "%"),
    )


def begin_reading(connection: Connection) -> None:
    """Begin a transaction that sees one snapshot and changes nothing."""
    run_script(connection, "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")


def commit(connection: Connection) -> None:
    """Commit the transaction. Raises SQLAlchemy's errors, and RuntimeError if a failed statement was ignored."""
    script = "; ".join([*connection.info[SENDER].at_commit, "COMMIT"])
    if run_script(connection, script).tag != "COMMIT":
        raise RuntimeError("The work went on after a statement failed, so nothing of it was stored.")


def roll_back(connection: Connection) -> None:
    """End the transaction without its changes."""
    run_script(connection, "ROLLBACK")


class ConnectionCache:
    """Connections out of the pool that are used again and again: taking one and giving it back costs two statements.

    Once one is found lost, none is used again without a look at it by the pool.
    """

    def __init__(self, connect: Callable[[], Connection]) -> None:
        self._connect = connect
        self._free: list[Connection] = []
        self._closed = False

    @contextmanager
    def one(self) -> Iterator[Connection]:
        """Use a connection; it is kept unless that fails, or leaves a transaction."""
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
        """Close those that nobody uses, and keep none from now on."""
        self._closed = True
        self._drop()

    def _drop(self) -> None:
        with contextlib.suppress(IndexError):
            while True:
                return_to_pool(self._free.pop())


def _in_ms(seconds: float) -> int:
    return round(seconds * 1000)
