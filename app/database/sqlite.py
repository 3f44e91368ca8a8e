"""The database on SQLite: one writer commits the work of many callers together, and each thread has its own reader."""

import asyncio
import contextvars
import sqlite3
import threading
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, closing, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from pydantic_core import from_json, to_json
from sqlalchemy import Connection, Engine, create_engine, event
from sqlalchemy.exc import DBAPIError
from sqlalchemy.pool import NullPool

from app.core.errors import StorageUnavailableError, is_storage_error
from app.core.paths import keep_private
from app.database.interface import Database, Step, T, Work, patiently
from app.database.migrations import Create, migrate

_BUSY_TIMEOUT = 10.0
"""Seconds to wait while another process, such as the command line, writes."""
_WAL_LIMIT = 64 * 1024 * 1024
"""Maximum size in bytes that the write-ahead log keeps after a long transaction has enlarged it."""


@dataclass(slots=True)
class _Job:
    work: Work[Any]
    future: asyncio.Future[Any]


class SqliteDatabase(Database):
    """The service's database in a file.

    A commit waits for the disk, so callers share commits: all work passed to `write` during one commit goes into the
    next, each piece in its own savepoint. Statements run in the event loop's thread, where they take microseconds.
    Three operations can wait: committing for the disk, beginning a transaction for another process, and taking the lock
    for another thread. They run in a thread of their own, so that they do not queue behind reads.
    """

    def __init__(self, path: str | Path, create: Create) -> None:
        """Open or create the file and migrate it to the newest schema. ``create`` creates the tables of a new file.

        Raises `ConfigurationError` if the file has a schema that does not work with this version.
        """
        self.name = str(path)
        keep_private(path)
        # A begin does not wait here. `_begin` waits, in a thread chosen by its caller.
        self._writer = _engine(path, "BEGIN IMMEDIATE", timeout=0.0)
        self._readers = _engine(path, "BEGIN", timeout=_BUSY_TIMEOUT)
        self._thread = threading.local()
        self._open_readers: list[Connection] = []
        self._connection = self._writer.connect()
        # Held by the thread that uses the writer's connection.
        self._lock = threading.Lock()
        self._committer = ThreadPoolExecutor(1, thread_name_prefix="commit")
        self._long = ThreadPoolExecutor(1, thread_name_prefix="long-write")
        self._reading = ThreadPoolExecutor(thread_name_prefix="read")
        self._jobs: list[_Job] = []
        self._flusher: asyncio.Task[None] | None = None
        try:
            self.write_now(partial(migrate, create=create))
        except BaseException:
            self.close()
            raise

    async def write(self, work: Work[T], *, repeatable: bool = False) -> T:  # noqa: ARG002 - savepoints are cheap
        """Run `work` in the event loop, and commit it together with the work of other callers."""
        job = _Job(work, asyncio.get_running_loop().create_future())
        self._jobs.append(job)
        if self._flusher is None or self._flusher.done():
            self._flusher = asyncio.create_task(self._flush())
        with _storage_errors():
            result: T = await patiently(job.future)
        return result

    def write_now(self, work: Work[T]) -> T:
        """Run `work` in a transaction of its own, blocking this thread until it is committed."""
        with self._lock:
            return self._transaction(work)

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Step]:
        """Hold the writer for work of many steps."""
        loop, held = asyncio.get_running_loop(), threading.Event()

        def begin() -> None:
            self._lock.acquire()
            try:
                self._begin()
            except BaseException:
                self._lock.release()
                raise
            held.set()

        def end() -> None:
            if held.is_set():
                try:
                    self._connection.rollback()  # has no effect after a commit
                finally:
                    self._lock.release()

        try:
            with _storage_errors():
                # One thread runs all steps in order, so `end` follows a running step even if its caller was cancelled.
                await loop.run_in_executor(self._long, begin)
                yield lambda work: loop.run_in_executor(self._long, work, self._connection)
                await loop.run_in_executor(self._long, self._connection.commit)
        finally:
            await asyncio.shield(loop.run_in_executor(self._long, end))

    async def read(self, work: Work[T], *, in_thread: bool = False) -> T:
        """Run `work` in the event loop, where it must take microseconds only. With `in_thread`, run it in a thread."""
        if not in_thread:
            return self.read_now(work)
        context = contextvars.copy_context()
        return await asyncio.get_running_loop().run_in_executor(self._reading, context.run, self.read_now, work)

    def read_now(self, work: Work[T]) -> T:
        """Run `work` on a snapshot of the database, blocking this thread."""
        with _storage_errors():
            connection = self._reader()
            try:
                return work(connection)
            finally:
                connection.rollback()

    def close(self) -> None:
        """Close all connections; uncommitted work is lost.

        Waits for running reads, even if their callers gave up, because the reads still use their connections.
        """
        self._reading.shutdown(cancel_futures=True)
        self._committer.shutdown(wait=False)
        self._long.shutdown(wait=False)
        # A flush between two steps holds the lock. The flush cannot continue while this call blocks the event loop.
        free = self._lock.acquire(timeout=_BUSY_TIMEOUT)
        for connection in (self._connection, *self._open_readers):
            connection.close()
        if free:
            self._lock.release()
        self._writer.dispose()
        self._readers.dispose()

    def _reader(self) -> Connection:
        """Return this thread's connection for reading."""
        connection: Connection | None = getattr(self._thread, "reader", None)
        if connection is None:
            connection = self._thread.reader = self._readers.connect()
            self._open_readers.append(connection)
        return connection

    def _begin(self) -> None:
        """Begin a transaction. Blocks this thread while another process writes."""
        execute = _driver(self._connection).execute
        execute(f"PRAGMA busy_timeout={round(_BUSY_TIMEOUT * 1000)}")
        try:
            self._connection.begin()
        finally:
            execute("PRAGMA busy_timeout=0")

    def _transaction(self, work: Work[T]) -> T:
        self._begin()
        try:
            result = work(self._connection)
            self._connection.commit()
        except BaseException:
            self._connection.rollback()
            raise
        return result

    async def _flush(self) -> None:
        in_thread = partial(asyncio.get_running_loop().run_in_executor, self._committer)
        while self._jobs:
            if not self._lock.acquire(blocking=False):
                await in_thread(self._lock.acquire)
            batch: list[_Job] = []
            try:
                try:
                    self._connection.begin()
                except sqlite3.OperationalError as error:
                    if not _is_busy(error):
                        raise
                    # Another process writes. Wait in another thread, because the event loop's thread serves all
                    # requests.
                    await in_thread(self._begin)
                batch, self._jobs = self._jobs, []
                finished = self._run(batch)
            except Exception as error:  # noqa: BLE001 - fails all jobs that share the transaction
                self._connection.rollback()
                self._lock.release()
                if not batch:
                    batch, self._jobs = self._jobs, []
                _answer([(job, None) for job in batch], error)
                continue
            await in_thread(self._commit, finished)

    def _run(self, batch: list[_Job]) -> list[tuple[_Job, Any]]:
        """Run every job in its own savepoint. Return the successful jobs with their results."""
        finished = []
        execute = _driver(self._connection).execute
        for job in batch:
            if job.future.cancelled():
                continue
            # SQLAlchemy's own savepoints take a hundred times as long.
            execute("SAVEPOINT job")
            try:
                result = job.work(self._connection)
            except Exception as error:  # noqa: BLE001 - any error is the caller's
                try:
                    execute("ROLLBACK TO job")
                except sqlite3.Error:
                    # A full disk may have undone the whole transaction, including its savepoints.
                    raise error from None
                _answer([(job, None)], error)
            else:
                finished.append((job, result))
            execute("RELEASE job")
        return finished

    def _commit(self, finished: list[tuple[_Job, Any]]) -> None:
        """Commit, release the lock and answer the callers. Runs in a worker thread."""
        failure: Exception | None = None
        try:
            self._connection.commit()
        except Exception as error:  # noqa: BLE001 - a full disk fails all jobs of the commit
            self._connection.rollback()
            failure = error
        finally:
            self._lock.release()
        if finished:
            finished[0][0].future.get_loop().call_soon_threadsafe(_answer, finished, failure)


@contextmanager
def _storage_errors() -> Iterator[None]:
    """Raise ``storage_unavailable`` for errors of the disk or of a locked file."""
    try:
        yield
    except (DBAPIError, sqlite3.Error) as error:
        if is_storage_error(error):
            raise StorageUnavailableError from error
        raise


def _driver(connection: Connection) -> Any:
    """Return the driver's connection, for statements that do not need SQLAlchemy."""
    return connection.connection.dbapi_connection


def _is_busy(error: sqlite3.Error) -> bool:
    # The lower byte is the primary code.
    return getattr(error, "sqlite_errorcode", sqlite3.SQLITE_OK) & 0xFF == sqlite3.SQLITE_BUSY


def _answer(finished: list[tuple[_Job, Any]], failure: Exception | None) -> None:
    for job, result in finished:
        if job.future.done():
            continue
        if failure is not None:
            job.future.set_exception(failure)
        else:
            job.future.set_result(result)


def _engine(path: str | Path, begin: str, *, timeout: float) -> Engine:
    arguments = {"timeout": _BUSY_TIMEOUT, "check_same_thread": False}
    engine = create_engine(
        f"sqlite:///{path}",
        connect_args=arguments,
        json_serializer=lambda value: to_json(value).decode(),
        json_deserializer=from_json,
        poolclass=NullPool,
        # Bound values include memos, responses and signed transactions, which must not appear in messages or logs.
        hide_parameters=True,
    )

    @event.listens_for(engine, "connect")
    def configure(connection: Any, _record: Any) -> None:
        # Otherwise, Python's driver would begin and commit transactions on its own, which would break savepoints.
        connection.isolation_level = None
        pragmas = ("synchronous=FULL", "foreign_keys=ON", "temp_store=MEMORY", f"journal_size_limit={_WAL_LIMIT}")
        for pragma in ("journal_mode=WAL", *pragmas):
            connection.execute(f"PRAGMA {pragma}")
        connection.execute(f"PRAGMA busy_timeout={round(timeout * 1000)}")

    @event.listens_for(engine, "begin")
    def start(connection: Connection) -> None:
        _driver(connection).execute(begin)

    return engine


def copy_database(source: Path, target: Path) -> None:
    """Copy a SQLite file as of one commit, even while other processes write to it. Raises sqlite3.Error."""
    keep_private(target)
    with (
        closing(sqlite3.connect(f"{source.absolute().as_uri()}?mode=rw", uri=True, timeout=30)) as live,
        closing(sqlite3.connect(target)) as copy,
    ):
        # Copy all pages in one step: a write between two steps would restart the copy.
        live.backup(copy)
        copy.execute("PRAGMA journal_mode = DELETE")
