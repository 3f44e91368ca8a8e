"""Calls to a PostgreSQL server: runs them in batches, ends those that hang, and translates their errors."""

import asyncio
import contextlib
import contextvars
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, TypeVar

from sqlalchemy import Connection, Engine, event
from sqlalchemy.exc import DBAPIError, SQLAlchemyError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError

from app.core.errors import StorageUnavailableError, is_storage_error
from app.database.leases import Lease
from app.database.statements import deferring

_SOCKET = "agent_vault_socket"
T = TypeVar("T")

PATIENCE = 20.0
"""Seconds before a short piece of work is abandoned by closing its connection."""
_LOOK_EVERY = 1.0
"""Seconds between two checks for overdue work."""


@dataclass(frozen=True, slots=True)
class BatchedCall:
    """Work for a shared transaction. `repeatable` is as in `Database.write`.

    `lease` is the lease that the work needs.
    """

    work: Callable[[Connection], Any]
    repeatable: bool = False
    lease: Lease | None = None

    def run(self, connection: Connection) -> Any:
        """Run the work, and combine the statements that it defers."""
        with deferring(connection):
            return self.work(connection)


@dataclass(slots=True)
class FailedCall:
    """The error that work raised, in place of its result."""

    error: BaseException


class TimedCall:
    """Work on a connection. If the network or the server hangs, closing the connection ends the work."""

    def __init__(self, *, limited: bool = True) -> None:
        self._limited = limited
        self._lock = threading.Lock()
        self._socket: socket.socket | None = None
        self._until = 0.0

    @contextmanager
    def using(self, connection: Connection) -> Iterator[None]:
        """Permit closing the connection once a limited call has been in this context for longer than `PATIENCE`."""
        if not self._limited:
            yield
            return
        own = connection.info[_SOCKET]
        with self._lock:
            self._socket, self._until = own, time.monotonic() + PATIENCE
        try:
            yield
        finally:
            with self._lock:
                self._socket = None

    def end_if_overdue(self) -> None:
        """Close the connection if its time is up. Its work then fails as if the network had been cut."""
        with self._lock:
            if self._socket is not None and time.monotonic() > self._until:
                with contextlib.suppress(OSError):
                    self._socket.shutdown(socket.SHUT_RDWR)


class CallWatchdog:
    """Runs calls in threads, and ends overdue calls."""

    def __init__(self) -> None:
        self._calls: set[TimedCall] = set()
        self._loop: asyncio.AbstractEventLoop | None = None

    def submit(self, executor: ThreadPoolExecutor, call: TimedCall, work: Callable[[], T]) -> Future[T]:
        """Run work in a thread of the executor. Raises RuntimeError if the executor is closed."""
        running = executor.submit(work)
        self._calls.add(call)
        running.add_done_callback(lambda _done: self._calls.discard(call))
        loop = asyncio.get_running_loop()
        # A closed event loop no longer runs its timer.
        if self._loop is not loop:
            self._loop = loop
            loop.call_later(_LOOK_EVERY, self._look, loop)
        return running

    def _look(self, loop: asyncio.AbstractEventLoop) -> None:
        """End overdue calls, and schedule the next check. Without running calls, schedule none."""
        if not self._calls:
            self._loop = None
            return
        for call in list(self._calls):
            call.end_if_overdue()
        loop.call_later(_LOOK_EVERY, self._look, loop)


class CallBatcher:
    """Runs the work of many callers together in a thread. Work that arrives while a batch runs forms the next batch.

    A batch continues even if its callers no longer wait. Each batch switches to the thread and back only once. It uses
    no task, because a task would double the time of its statements.
    """

    def __init__(
        self,
        watch: CallWatchdog,
        executor: ThreadPoolExecutor,
        run: Callable[[TimedCall, Sequence[BatchedCall]], Sequence[Any]],
    ) -> None:
        """``run`` returns, for each piece of a batch, its result or a `FailedCall`."""
        self._watch = watch
        self._executor = executor
        self._run = run
        self._waiting: list[_QueuedCall] = []
        # The event loop of the running or scheduled batch. The callers of a closed loop cannot be answered, so the next
        # event loop starts a new batch.
        self._busy: asyncio.AbstractEventLoop | None = None

    async def add(self, work: Callable[[Connection], T], *, repeatable: bool = False, lease: Lease | None = None) -> T:
        """Run work with the next batch, in the context of its caller, so that logs name the caller's request."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()
        context = contextvars.copy_context()
        piece = BatchedCall(lambda connection: context.run(work, connection), repeatable, lease)
        self._waiting.append(_QueuedCall(piece, future))
        if self._busy is not loop:
            # Start after the other callbacks that are due now, so that their work joins this batch.
            self._busy = loop
            loop.call_soon(self._start, loop)
        return await future

    def _start(self, loop: asyncio.AbstractEventLoop) -> None:
        """Run the waiting work as one batch."""
        waiting, self._waiting = self._waiting, []
        batch = [one for one in waiting if not one.future.cancelled() and one.future.get_loop() is loop]
        if not batch:
            self._busy = None
            return
        call, pieces = TimedCall(), [one.piece for one in batch]

        def ended(running: Future[Sequence[Any]]) -> None:
            # This runs in the thread of the batch, or in the thread that closes the database.
            with contextlib.suppress(RuntimeError):  # the loop is closed, and no caller waits
                loop.call_soon_threadsafe(self._finish, loop, batch, running)

        try:
            self._watch.submit(self._executor, call, partial(self._run, call, pieces)).add_done_callback(ended)
        except RuntimeError as error:  # the database is closed
            self._busy = None
            _answer(batch, [FailedCall(error)] * len(batch))

    def _finish(
        self, loop: asyncio.AbstractEventLoop, batch: Sequence["_QueuedCall"], running: Future[Sequence[Any]]
    ) -> None:
        """Deliver the results, and start the next batch with the work that arrived during this one."""
        try:
            outcomes = running.result()
        except BaseException as error:  # noqa: BLE001 - no caller may wait forever
            outcomes = [FailedCall(error)] * len(batch)
        _answer(batch, outcomes)
        self._start(loop)


class _QueuedCall(NamedTuple):
    """Work, and the future that its caller waits for."""

    piece: BatchedCall
    future: asyncio.Future[Any]


def _answer(batch: Sequence[_QueuedCall], outcomes: Sequence[Any]) -> None:
    for (_, future), outcome in zip(batch, outcomes, strict=True):
        if future.done():
            continue
        if isinstance(outcome, FailedCall):
            future.set_exception(outcome.error)
        else:
            future.set_result(outcome)


def track_sockets(engine: Engine) -> None:
    """Keep a handle of each connection's socket, so that a `TimedCall` can end the connection."""

    @event.listens_for(engine, "connect")
    def keep(connection: Any, record: Any) -> None:
        # A duplicate of the driver's handle. Shutting down the duplicate wakes up the threads that wait on the driver's
        # handle.
        record.info[_SOCKET] = socket.socket(fileno=os.dup(connection.fileno()))

    @event.listens_for(engine, "close")
    def forget(_connection: Any, record: Any) -> None:
        if (own := record.info.pop(_SOCKET, None)) is not None:
            own.close()


def translated_error(error: BaseException) -> BaseException:
    """Return a `StorageUnavailableError` for an unreachable or overloaded server, otherwise the error itself."""
    if isinstance(error, PoolTimeoutError) or is_storage_error(error):
        unavailable = StorageUnavailableError()
        unavailable.__cause__ = error
        return unavailable
    return error


def is_transient(error: DBAPIError) -> bool:
    """Return True if a repeated read may succeed: the connection was lost, or transactions conflicted or deadlocked."""
    return error.connection_invalidated or getattr(error.orig, "sqlstate", None) in {"40001", "40P01"}


def is_connection_lost(connection: Connection, error: BaseException) -> bool:
    """Return True if an error left no usable connection."""
    return connection.invalidated or getattr(error, "connection_invalidated", False)


def return_to_pool(connection: Connection) -> None:
    """Roll back a connection's open transaction, if any, and return the connection to the pool."""
    with contextlib.suppress(SQLAlchemyError):
        connection.close()
    if not connection.closed:
        close_permanently(connection)


def close_permanently(connection: Connection) -> None:
    """Close a connection permanently. This also releases its locks."""
    connection.invalidate()
    connection.close()
