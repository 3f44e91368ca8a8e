"""PostgreSQL: threads that wait for it, one writer that commits the work of many callers together."""

import asyncio
import contextlib
import contextvars
import os
import secrets
import socket
import threading
import time
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from functools import partial
from itertools import groupby
from operator import attrgetter
from typing import Any

from sqlalchemy import Connection, Engine
from sqlalchemy.exc import DBAPIError, SQLAlchemyError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError

from app.core.errors import StorageDoubtError, StorageUnavailableError, is_storage_error
from app.store._postgres_calls import (
    BEGIN,
    PATIENCE,
    STATUS,
    FailedWork,
    Piece,
    QueuedWork,
    TimedCall,
    give_back,
    in_ms,
    passes,
    raised_by,
)
from app.store._postgres_engine import READERS, SCANNERS, database_name, engine_of
from app.store.database import Database, Step, T, Work
from app.store.leases import fenced
from app.store.migrations import require_current

WRITER_LOCK = 0x4156_0001
"""The advisory lock that every writing transaction takes, in any process, so that they follow one another."""
_LOCK_PATIENCE = 10.0
"""Seconds to wait while another process writes."""
_DOUBT = 5.0
"""Seconds in which to find out whether a commit took place whose answer was lost."""
_PAUSE = 0.2
_BROKEN_FOR = 1.0
"""Seconds after a failed connection in which requests are answered with 503 instead of waiting for another try."""
_SAVE, _UNDO = "SAVEPOINT piece", "ROLLBACK TO SAVEPOINT piece"
"""A later savepoint hides earlier ones of its name, so what is undone is always the newest."""


class PostgresDatabase(Database):
    """The service's database on a PostgreSQL server.

    Nothing waits for it in the event loop. As with SQLite, all work passed to `write` during one commit goes into the
    next, and a failed piece undoes only itself; an advisory lock lets the transactions of all processes follow one
    another.
    """

    def __init__(self, url: str, *, prepare_threshold: int = 5) -> None:
        """Connect. Raises ConfigurationError if it is not a database that this version can serve on."""
        self.name = database_name(url)
        self.node = f"{socket.gethostname()}/{os.getpid()}/{secrets.token_hex(4)}"
        self._engine = engine_of(url, prepare_threshold=prepare_threshold)
        self._readers = self._engine.execution_options(isolation_level="REPEATABLE READ", postgresql_readonly=True)
        self._writers = self._engine.execution_options(isolation_level="READ COMMITTED")
        self._single = self._engine.execution_options(isolation_level="AUTOCOMMIT")
        # Held by the thread that writes.
        self._lock = threading.Lock()
        self._writing = ThreadPoolExecutor(1, thread_name_prefix="write")
        self._long = ThreadPoolExecutor(1, thread_name_prefix="long-write")
        self._reading = ThreadPoolExecutor(READERS, thread_name_prefix="read")
        self._scanning = ThreadPoolExecutor(SCANNERS, thread_name_prefix="scan")
        self._beside = ThreadPoolExecutor(1, thread_name_prefix="beside")
        self._jobs: list[QueuedWork] = []
        self._flusher: asyncio.Task[None] | None = None
        self._abandoned: set[asyncio.Task[None]] = set()
        self._broken_until = 0.0
        self._closed = False
        try:
            require_current(self._engine, self.name)
        except BaseException:
            self.close()
            raise

    async def write(self, work: Work[T], *, repeatable: bool = False) -> T:
        """Run `work` in the writer's thread, and commit it with that of others."""
        future = asyncio.get_running_loop().create_future()
        job = QueuedWork(fenced(work), future, contextvars.copy_context(), repeatable)
        self._jobs.append(job)
        if self._flusher is None or self._flusher.done():
            self._flusher = asyncio.create_task(self._flush())
        result: T = await job.future
        return result

    def write_now(self, work: Work[T]) -> T:
        """Run `work` in a transaction of its own, blocking this thread until it is committed."""
        (outcome,) = self._write(TimedCall(limited=False), [Piece(fenced(work), repeatable=False)])
        if isinstance(outcome, FailedWork):
            raise outcome.error
        result: T = outcome
        return result

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Step]:
        """Hold the writer for work of many steps."""
        loop, held, check = asyncio.get_running_loop(), contextlib.ExitStack(), fenced(lambda _connection: None)

        def begin() -> tuple[Connection, Any]:
            with contextlib.ExitStack() as stack:
                self._lock.acquire()
                stack.callback(self._lock.release)
                connection, receipt = self._begin(TimedCall(limited=False), limit=0)
                stack.callback(give_back, connection)
                check(connection)
                held.push(stack.pop_all())
                return connection, receipt

        try:
            # One thread runs all of it in order, so the end comes after a step whose caller was cancelled.
            connection, receipt = await loop.run_in_executor(self._long, self._checked, begin)
            yield lambda work: loop.run_in_executor(self._long, self._checked, partial(work, connection))
            await loop.run_in_executor(self._long, self._checked, partial(self._commit, connection, receipt))
        finally:
            await asyncio.shield(loop.run_in_executor(self._long, held.close))

    async def read(self, work: Work[T], *, in_thread: bool = False) -> T:
        """Run `work` in a thread; with `in_thread` in one of those that may be busy for long."""
        executor, call = (self._scanning, TimedCall(limited=False)) if in_thread else (self._reading, TimedCall())
        return await self._watched(executor, call, lambda: self._read(call, work, self._readers))

    async def beside(self, work: Work[T]) -> T:
        """Run a single statement that waits for no other writer, and is repeated if its connection was lost."""
        call = TimedCall()
        return await self._watched(self._beside, call, lambda: self._read(call, work, self._single))

    def read_now(self, work: Work[T]) -> T:
        """Run `work` on a snapshot of the database, blocking this thread."""
        return self._read(TimedCall(limited=False), work, self._readers)

    def close(self) -> None:
        """Close all connections; uncommitted work is lost. Waits for running reads."""
        self._closed = True
        for one in (self._reading, self._scanning, self._beside):
            one.shutdown(cancel_futures=True)
        self._writing.shutdown(wait=True)
        self._long.shutdown(wait=True)
        self._engine.dispose()

    async def _watched(self, executor: ThreadPoolExecutor, call: TimedCall, work: Callable[[], T]) -> T:
        """Run work in a thread, and end it if it takes too long."""
        context = contextvars.copy_context()
        future = asyncio.get_running_loop().run_in_executor(executor, context.run, work)
        future.add_done_callback(lambda done: done.cancelled() or done.exception())
        try:
            await _end_in_time(future, call)
        except asyncio.CancelledError:
            # Its caller waits no longer, but the thread does, and those that wait for the thread.
            watching = asyncio.create_task(_end_in_time(future, call))
            self._abandoned.add(watching)
            watching.add_done_callback(self._abandoned.discard)
            raise
        return future.result()

    def _checked(self, work: Callable[[], T]) -> T:
        """Run work; raises ``storage_unavailable`` for what an unreachable or overloaded server leads to."""
        if time.monotonic() < self._broken_until:
            raise StorageUnavailableError
        try:
            return work()
        except (SQLAlchemyError, OSError) as error:
            raised = raised_by(error)
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

    def _read(self, call: TimedCall, work: Work[T], engine: Engine) -> T:
        def attempt() -> T:
            connection = self._connect(engine)
            try:
                with call.using(connection):
                    return work(connection)
            finally:
                give_back(connection)

        def read() -> T:
            begun = time.monotonic()
            try:
                return attempt()
            except DBAPIError as error:
                # Reading changes nothing, so it may be repeated: after a restart of the server, the first user of each
                # connection finds it closed.
                if not passes(error) or time.monotonic() - begun > PATIENCE / 2:
                    raise
                return attempt()

        return self._checked(read)

    def _begin(self, call: TimedCall, *, limit: float = PATIENCE) -> tuple[Connection, Any]:
        """Return a connection in a transaction that holds the writer's lock, and by what to find out its outcome."""
        try:
            return self._begin_once(call, limit)
        except DBAPIError as error:
            # Closed since it was last used; nothing was done yet.
            if not error.connection_invalidated:
                raise
        return self._begin_once(call, limit)

    def _begin_once(self, call: TimedCall, limit: float) -> tuple[Connection, Any]:
        given = {"patience": in_ms(_LOCK_PATIENCE), "limit": in_ms(limit), "key": WRITER_LOCK}
        connection = self._connect(self._writers)
        try:
            with call.using(connection):
                return connection, connection.execute(BEGIN, given).one()
        except BaseException:
            give_back(connection)
            raise

    async def _flush(self) -> None:
        while self._jobs:
            batch, self._jobs = [one for one in self._jobs if not one.future.cancelled()], []
            call, outcomes = TimedCall(), list[Any]()
            pieces = [Piece(one.run, one.repeatable) for one in batch]
            try:
                if pieces:
                    outcomes = await self._watched(self._writing, call, partial(self._write, call, pieces))
            except BaseException as error:  # noqa: BLE001 - whatever it is, nobody may wait for ever
                outcomes = [FailedWork(error)] * len(batch)
            for job, outcome in zip(batch, outcomes, strict=True):
                if job.future.done():
                    continue
                if isinstance(outcome, FailedWork):
                    job.future.set_exception(outcome.error)
                else:
                    job.future.set_result(outcome)

    def _write(self, call: TimedCall, pieces: Sequence[Piece]) -> list[Any]:
        """Run work in one transaction, of which each piece is undone by itself; returns results and failures."""
        try:
            return self._checked(partial(self._write_all, call, pieces))
        except StorageUnavailableError as error:
            return [FailedWork(error)] * len(pieces)

    def _write_all(self, call: TimedCall, pieces: Sequence[Piece]) -> list[Any]:
        with self._lock:
            connection, receipt = self._begin(call)
            try:
                with call.using(connection):
                    outcomes = self._all(connection, pieces)
                    if not all(isinstance(one, FailedWork) for one in outcomes):
                        self._commit(connection, receipt)
            finally:
                give_back(connection)
        return outcomes

    def _all(self, connection: Connection, pieces: Sequence[Piece]) -> list[Any]:
        if len(pieces) == 1:
            return [self._one(connection, pieces[0], alone=True)]
        outcomes: list[Any] = []
        for repeatable, some in groupby(pieces, attrgetter("repeatable")):
            part = list(some)
            found = self._together(connection, part) if repeatable and len(part) > 1 else None
            outcomes += [self._one(connection, one) for one in part] if found is None else found
        return outcomes

    def _together(self, connection: Connection, pieces: Sequence[Piece]) -> list[Any] | None:
        """Run pieces in one savepoint, as most of the time none fails; undoes all of them and returns None if one does.

        Raises what leaves no transaction to go on with.
        """
        connection.exec_driver_sql(_SAVE)
        try:
            return [one.run(connection) for one in pieces]
        except Exception as error:
            if connection.invalidated or getattr(error, "connection_invalidated", False):
                raise
            connection.exec_driver_sql(_UNDO)
            return None

    def _one(self, connection: Connection, piece: Piece, *, alone: bool = False) -> Any:
        """Run a piece of work and undo it if it fails. Raises what leaves no transaction to go on with."""
        # Not released one by one, which would be another statement for each: the commit does that.
        if not alone:
            connection.exec_driver_sql(_SAVE)
        try:
            return piece.run(connection)
        except Exception as error:
            if connection.invalidated or getattr(error, "connection_invalidated", False):
                raise
            if not alone:
                connection.exec_driver_sql(_UNDO)
            return FailedWork(raised_by(error) if isinstance(error, SQLAlchemyError) else error)

    def _commit(self, connection: Connection, receipt: Any) -> None:
        try:
            connection.commit()
        except DBAPIError as error:
            if not error.connection_invalidated:
                raise
            if not self._was_committed(receipt):
                raise

    def _was_committed(self, receipt: Any) -> bool:
        """Find out whether a commit took place whose answer was lost. Raises StorageDoubtError if that is not known."""
        until = time.monotonic() + _DOUBT
        while time.monotonic() < until and not self._closed:
            with contextlib.suppress(SQLAlchemyError, OSError), self._engine.connect() as connection:
                found = connection.execute(STATUS, {"transaction": receipt.transaction}).one()
                if found.server != receipt.server:
                    # Perhaps another server, on which the number is another transaction's.
                    break
                if found.status in {"committed", "aborted"}:
                    return bool(found.status == "committed")
                if found.status is None:
                    break
            time.sleep(_PAUSE)
        raise StorageDoubtError


async def _end_in_time(future: asyncio.Future[Any], call: TimedCall) -> None:
    """Wait for the end of work in a thread, which has no more than the patience of its call."""
    while not (await asyncio.wait({future}, timeout=1.0))[0]:
        call.end_if_overdue()
