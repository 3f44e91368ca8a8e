"""The database on PostgreSQL: threads wait for the server, and one writer commits the work of many callers together."""

import asyncio
import contextlib
import contextvars
import os
import secrets
import socket
import threading
import time
from collections.abc import AsyncIterator, Callable, Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

from sqlalchemy import Connection, Engine
from sqlalchemy.exc import DBAPIError, SQLAlchemyError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError

from app.core.errors import StorageDoubtError, StorageUnavailableError, is_storage_error
from app.database.interface import Database, Step, T, Work, patiently
from app.database.leases import Lease, LeaseLostError, required
from app.database.migrations import require_current
from app.database.postgres._batches import RetryBatch, lease_lost, result_or_failure, run_together, run_with_savepoints
from app.database.postgres._calls import (
    PATIENCE,
    BatchedCall,
    CallBatcher,
    CallWatchdog,
    FailedCall,
    TimedCall,
    is_transient,
    translated_error,
)
from app.database.postgres.engine import PLACE, READERS, SCANNERS, database_name, engine_of
from app.database.postgres.transactions import (
    STATUS,
    ConnectionCache,
    OpenTransaction,
    TransactionTimeouts,
    begin_reading,
    begin_writing,
    commit,
    roll_back,
)
from app.database.signals import CHANNEL

_LOCK_PATIENCE = 10.0
"""Seconds to wait while another process writes."""
_IDLE = 4.0
"""After this many seconds without a statement, a process that holds the writers' lock counts as stopped."""
_IDLE_BETWEEN_STEPS = 30.0
"""After this many seconds between two steps of a long transaction, its process counts as stopped. The limit is longer
because the process may do other work between the steps."""
_DOUBT = 5.0
"""Maximum seconds for finding the outcome of a commit with a lost response."""
_PAUSE = 0.2
_BROKEN_FOR = 1.0
"""Seconds after a failed connection during which requests get 503 immediately, instead of waiting for another try."""


class PostgresDatabase(Database):
    """The service's database on a PostgreSQL server.

    Only the methods `write_now`, `read_now` and `close` block the calling thread. As with SQLite, all work passed to
    `write` during one commit is committed together by the next one. A failed piece of work undoes only itself. An
    advisory lock serializes the writing transactions of all processes.
    """

    def __init__(self, url: str, *, prepare_threshold: int = 5, channel: str | None = None) -> None:
        """Connect to the server. ``channel`` is the channel of the nodes' signals.

        Raises ConfigurationError if this version cannot serve on the database.
        """
        self.channel = channel
        self.name = database_name(url)
        self.node = f"{socket.gethostname()}/{os.getpid()}/{secrets.token_hex(4)}"
        self._engine = engine_of(url, prepare_threshold=prepare_threshold)
        # Transactions are begun and ended by scripts.
        self._connections = ConnectionCache(
            partial(self._connect, self._engine.execution_options(isolation_level="AUTOCOMMIT", **{CHANNEL: channel}))
        )
        # Held by the thread that writes.
        self._lock = threading.Lock()
        # Serializes transactions of many steps: a second one would block the thread that runs the first one's steps.
        self._stepping = asyncio.Lock()
        self._writing = ThreadPoolExecutor(1, thread_name_prefix="write")
        self._long = ThreadPoolExecutor(1, thread_name_prefix="long-write")
        self._reading = ThreadPoolExecutor(READERS, thread_name_prefix="read")
        self._scanning = ThreadPoolExecutor(SCANNERS, thread_name_prefix="scan")
        self._beside = ThreadPoolExecutor(1, thread_name_prefix="beside")
        self._looking_up = ThreadPoolExecutor(1, thread_name_prefix="look-up")
        self._watch = CallWatchdog()
        self._writes = CallBatcher(self._watch, self._writing, self._write)
        self._look_ups = CallBatcher(self._watch, self._looking_up, self._look_up_all)
        self._broken_until = 0.0
        self._closed = False
        #: Work that runs in its own transaction before the first write after a change of the server. A restart of the
        #: server counts as a change.
        self.on_new_server: Work[object] | None = None
        try:
            require_current(self._engine, self.name)
        except BaseException:
            self.close()
            raise

    async def write(self, work: Work[T], *, repeatable: bool = False) -> T:
        """Run `work` in the writer's thread, and commit it together with the work of other callers."""
        return await patiently(self._writes.add(work, repeatable=repeatable, lease=required()))

    def write_now(self, work: Work[T]) -> T:
        """Run `work` in a transaction of its own, blocking this thread until it is committed."""
        (outcome,) = self._write(TimedCall(limited=False), [BatchedCall(work, lease=required())])
        if isinstance(outcome, FailedCall):
            raise outcome.error
        result: T = outcome
        return result

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Step]:
        """Hold the writer for work of many steps."""
        async with self._stepping, self._stepped() as step:
            yield step

    @asynccontextmanager
    async def _stepped(self) -> AsyncIterator[Step]:
        loop, held, lease = asyncio.get_running_loop(), contextlib.ExitStack(), required()

        def begin() -> tuple[Connection, OpenTransaction]:
            with contextlib.ExitStack() as stack:
                self._lock.acquire()
                stack.callback(self._lock.release)
                limits = TransactionTimeouts(_LOCK_PATIENCE, 0, _IDLE_BETWEEN_STEPS)
                connection, begun = self._begin(stack, TimedCall(limited=False), [lease] if lease else [], limits)
                if lease and lease.term not in begun.held:
                    raise LeaseLostError
                held.push(stack.pop_all())
                return connection, begun

        try:
            # One thread runs all steps in order, so the end follows a running step even if its caller was cancelled.
            connection, begun = await loop.run_in_executor(self._long, self._checked, begin)
            yield lambda work: loop.run_in_executor(self._long, self._checked, partial(work, connection))
            await loop.run_in_executor(self._long, self._checked, partial(self._commit, connection, begun))
        finally:
            await asyncio.shield(loop.run_in_executor(self._long, held.close))

    async def read(self, work: Work[T], *, in_thread: bool = False) -> T:
        """Run `work` in a thread. With `in_thread`, use one of the threads for long reads."""
        executor, call = (self._scanning, TimedCall(limited=False)) if in_thread else (self._reading, TimedCall())
        return await self._watched(executor, call, lambda: self._read(call, work))

    async def look_up(self, work: Work[T]) -> T:
        """Run work without a transaction in a thread, together with the look-ups of other callers."""
        return await patiently(self._look_ups.add(work))

    async def write_unordered(self, work: Work[T]) -> T:
        """Run a single statement that waits for no other writer. It may run twice if its connection is lost."""
        call = TimedCall()
        return await self._watched(self._beside, call, lambda: self._read(call, work, single=True))

    async def place(self) -> str:
        """Return the identity of the database and its server, for `listening` to compare."""
        return await self.write_unordered(lambda conn: str(conn.exec_driver_sql(PLACE).scalar_one()))

    def read_now(self, work: Work[T]) -> T:
        """Run `work` on a snapshot of the database, blocking this thread."""
        return self._read(TimedCall(limited=False), work)

    def close(self) -> None:
        """Close all connections; uncommitted work is lost. Waits for running reads and writes."""
        self._closed = True
        for one in (self._reading, self._scanning, self._beside, self._looking_up):
            one.shutdown(cancel_futures=True)
        self._writing.shutdown(wait=True)
        self._long.shutdown(wait=True)
        self._connections.close()
        self._engine.dispose()

    async def _watched(self, executor: ThreadPoolExecutor, call: TimedCall, work: Callable[[], T]) -> T:
        """Run work in a thread, and end a limited call after `PATIENCE`.

        The work continues if its caller stops waiting.
        """
        running = self._watch.submit(executor, call, partial(contextvars.copy_context().run, work))
        future = asyncio.wrap_future(running)
        # Retrieve the exception, because the caller may no longer wait when the work fails.
        future.add_done_callback(lambda done: done.cancelled() or done.exception())
        return await patiently(asyncio.shield(future))

    def _checked(self, work: Callable[[], T]) -> T:
        """Run work. Raises ``storage_unavailable`` for the errors of an unreachable or overloaded server."""
        if time.monotonic() < self._broken_until:
            raise StorageUnavailableError
        try:
            return work()
        except (SQLAlchemyError, OSError) as error:
            raised = translated_error(error)
            if raised is error:
                raise
            raise raised from error

    def _connect(self, engine: Engine) -> Connection:
        try:
            connection: Connection = engine.connect()
        except (DBAPIError, PoolTimeoutError) as error:
            if is_storage_error(error) or isinstance(error, PoolTimeoutError):
                self._broken_until = time.monotonic() + _BROKEN_FOR
            raise
        return connection

    def _read(self, call: TimedCall, work: Work[T], *, single: bool = False) -> T:
        """Run work on a snapshot.

        With `single`, run it without a transaction, so that each statement sees the newest state.
        """

        def attempt() -> T:
            with self._connections.one() as connection, call.using(connection):
                if single:
                    return work(connection)
                begin_reading(connection)
                found = work(connection)
                roll_back(connection)
                return found

        def read() -> T:
            begun = time.monotonic()
            try:
                return attempt()
            except DBAPIError as error:
                # A read or a single statement may be repeated. After a restart of the server, the first user of each
                # connection finds it closed.
                if not is_transient(error) or time.monotonic() - begun > PATIENCE / 2:
                    raise
                return attempt()

        return self._checked(read)

    def _begin(
        self, stack: contextlib.ExitStack, call: TimedCall, leases: Collection[Lease], limits: TransactionTimeouts
    ) -> tuple[Connection, OpenTransaction]:
        """Return a connection, held by the stack, in a transaction that holds the writers' lock."""
        try:
            return self._begin_once(stack, call, leases, limits)
        except DBAPIError as error:
            # The connection has been closed since its last use. Nothing has been done yet, so try again.
            if not error.connection_invalidated:
                raise
        return self._begin_once(stack, call, leases, limits)

    def _begin_once(
        self, stack: contextlib.ExitStack, call: TimedCall, leases: Collection[Lease], limits: TransactionTimeouts
    ) -> tuple[Connection, OpenTransaction]:
        with contextlib.ExitStack() as own:
            connection = own.enter_context(self._connections.one())
            with call.using(connection):
                begun = begin_writing(connection, leases, limits)
                if self.on_new_server is not None and begun.server != self.server:
                    self.on_new_server(connection)
                    commit(connection)
                    self.server = begun.server
                    begun = begin_writing(connection, leases, limits)
            stack.push(own.pop_all())
            return connection, begun

    def _look_up_all(self, call: TimedCall, calls: Sequence[BatchedCall]) -> list[Any]:
        def each(connection: Connection) -> list[Any]:
            return [result_or_failure(one.work, connection) for one in calls]

        return self._read(call, each, single=True)

    def _write(self, call: TimedCall, calls: Sequence[BatchedCall]) -> list[Any]:
        """Run work in one transaction, and undo each failed piece by itself. Return results and failures."""
        try:
            return self._checked(partial(self._write_all, call, calls))
        except StorageUnavailableError as error:
            return [FailedCall(error)] * len(calls)

    def _write_all(self, call: TimedCall, calls: Sequence[BatchedCall]) -> list[Any]:
        with self._lock:
            if len(calls) > 1 and all(one.repeatable for one in calls):
                # Usually, no piece of work fails, so no savepoint is needed.
                with contextlib.suppress(RetryBatch):
                    return self._transaction(call, calls, run_together)
            return self._transaction(call, calls, run_with_savepoints)

    def _transaction(
        self,
        call: TimedCall,
        calls: Sequence[BatchedCall],
        work: Callable[[Connection, Sequence[BatchedCall]], list[Any]],
    ) -> list[Any]:
        with contextlib.ExitStack() as stack:
            limits = TransactionTimeouts(_LOCK_PATIENCE, PATIENCE, _IDLE)
            connection, begun = self._begin(stack, call, {one.lease for one in calls if one.lease}, limits)
            fenced = [
                one if one.lease is None or one.lease.term in begun.held else BatchedCall(lease_lost) for one in calls
            ]
            with call.using(connection):
                outcomes = work(connection, fenced)
                if not all(isinstance(one, FailedCall) for one in outcomes):
                    self._commit(connection, begun)
            return outcomes

    def _commit(self, connection: Connection, begun: OpenTransaction) -> None:
        try:
            commit(connection)
        except DBAPIError as error:
            if not error.connection_invalidated:
                raise
            if not self._was_committed(begun):
                raise

    def _was_committed(self, begun: OpenTransaction) -> bool:
        """Return True if a commit with a lost response took place.

        Raises StorageDoubtError if the outcome stays unknown.
        """
        until = time.monotonic() + _DOUBT
        while time.monotonic() < until and not self._closed:
            with contextlib.suppress(SQLAlchemyError, OSError), self._engine.connect() as connection:
                found = connection.execute(STATUS, {"transaction": begun.transaction}).one()
                if found.server != begun.server:
                    # This may be a different server, on which the number belongs to another transaction.
                    break
                if found.status in {"committed", "aborted"}:
                    return bool(found.status == "committed")
                if found.status is None:
                    break
            time.sleep(_PAUSE)
        raise StorageDoubtError
