"""Calls of a PostgreSQL server: their end when it hangs, and what their errors mean."""

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
"""Seconds after which a short piece of work is given up: its connection is closed under it."""
_LOOK_EVERY = 1.0
"""Seconds between two looks for work that is overdue."""


@dataclass(frozen=True, slots=True)
class BatchedCall:
    """Work for a transaction that others share; `repeatable` as in `Database.write`, `lease` if it needs one."""

    work: Callable[[Connection], Any]
    repeatable: bool = False
    lease: Lease | None = None

    def run(self, connection: Connection) -> Any:
        """Run the work, with fewer statements where it defers some."""
        with deferring(connection):
            return self.work(connection)


@dataclass(slots=True)
class FailedCall:
    """What work raised instead of a result."""

    error: BaseException


class TimedCall:
    """Work on a connection that can be ended from outside by closing it, when the network or the server hangs."""

    def __init__(self, *, limited: bool = True) -> None:
        self._limited = limited
        self._lock = threading.Lock()
        self._socket: socket.socket | None = None
        self._until = 0.0

    @contextmanager
    def using(self, connection: Connection) -> Iterator[None]:
        """Let the connection be closed if this takes longer than the patience."""
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
        """Close the connection if its time is up; what waits for it fails as if the network had been cut."""
        with self._lock:
            if self._socket is not None and time.monotonic() > self._until:
                with contextlib.suppress(OSError):
                    self._socket.shutdown(socket.SHUT_RDWR)


class CallWatchdog:
    """Runs calls in threads, and ends those that are overdue."""

    def __init__(self) -> None:
        self._calls: set[TimedCall] = set()
        self._loop: asyncio.AbstractEventLoop | None = None

    def submit(self, executor: ThreadPoolExecutor, call: TimedCall, work: Callable[[], T]) -> Future[T]:
        """Run work in a thread of the executor. Raises RuntimeError if that is closed."""
        running = executor.submit(work)
        self._calls.add(call)
        running.add_done_callback(lambda _done: self._calls.discard(call))
        loop = asyncio.get_running_loop()
        # One that is closed looks no more.
        if self._loop is not loop:
            self._loop = loop
            loop.call_later(_LOOK_EVERY, self._look, loop)
        return running

    def _look(self, loop: asyncio.AbstractEventLoop) -> None:
        """Look again as long as calls are under way; only then the loop has something to do for it."""
        if not self._calls:
            self._loop = None
            return
        for call in list(self._calls):
            call.end_if_overdue()
        loop.call_later(_LOOK_EVERY, self._look, loop)


class CallBatcher:
    """Runs the work of many callers together in a thread: what comes while some runs is the next batch.

    It goes on when its callers no longer wait. A batch is one change of threads each way and no task, which would cost
    as much as its statements.
    """

    def __init__(
        self,
        watch: CallWatchdog,
        executor: ThreadPoolExecutor,
        run: Callable[[TimedCall, Sequence[BatchedCall]], Sequence[Any]],
    ) -> None:
        """``run`` returns for each piece of a batch what it returned, or a `FailedCall`."""
        self._watch = watch
        self._executor = executor
        self._run = run
        self._waiting: list[_QueuedCall] = []
        # Where a batch runs or is about to; a loop that is closed answers nobody, and the next one begins anew.
        self._busy: asyncio.AbstractEventLoop | None = None

    async def add(self, work: Callable[[Connection], T], *, repeatable: bool = False, lease: Lease | None = None) -> T:
        """Have work run with the next batch, in the context of its caller, whose request the logs name."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()
        context = contextvars.copy_context()
        piece = BatchedCall(lambda connection: context.run(work, connection), repeatable, lease)
        self._waiting.append(_QueuedCall(piece, future))
        if self._busy is not loop:
            # Not before what else is asked for at this moment has come.
            self._busy = loop
            loop.call_soon(self._start, loop)
        return await future

    def _start(self, loop: asyncio.AbstractEventLoop) -> None:
        """Run what waits."""
        waiting, self._waiting = self._waiting, []
        batch = [one for one in waiting if not one.future.cancelled() and one.future.get_loop() is loop]
        if not batch:
            self._busy = None
            return
        call, pieces = TimedCall(), [one.piece for one in batch]

        def ended(running: Future[Sequence[Any]]) -> None:
            # In the thread that ran it, or in that which closes the database.
            with contextlib.suppress(RuntimeError):  # the loop is closed, and nobody waits
                loop.call_soon_threadsafe(self._finish, loop, batch, running)

        try:
            self._watch.submit(self._executor, call, partial(self._run, call, pieces)).add_done_callback(ended)
        except RuntimeError as error:  # the database is closed
            self._busy = None
            _answer(batch, [FailedCall(error)] * len(batch))

    def _finish(
        self, loop: asyncio.AbstractEventLoop, batch: Sequence["_QueuedCall"], running: Future[Sequence[Any]]
    ) -> None:
        """Hand out results, and go on with what has come meanwhile."""
        try:
            outcomes = running.result()
        except BaseException as error:  # noqa: BLE001 - whatever it is, nobody may wait for ever
            outcomes = [FailedCall(error)] * len(batch)
        _answer(batch, outcomes)
        self._start(loop)


class _QueuedCall(NamedTuple):
    """Work, and where its caller waits for the outcome."""

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
    """Keep a handle of each connection's socket, by which a `TimedCall` ends it."""

    @event.listens_for(engine, "connect")
    def keep(connection: Any, record: Any) -> None:
        # The driver's own: what waits on it wakes up when this one is shut down.
        record.info[_SOCKET] = socket.socket(fileno=os.dup(connection.fileno()))

    @event.listens_for(engine, "close")
    def forget(_connection: Any, record: Any) -> None:
        if (own := record.info.pop(_SOCKET, None)) is not None:
            own.close()


def translated_error(error: BaseException) -> BaseException:
    """Return what to raise for an error of the driver."""
    if isinstance(error, PoolTimeoutError) or is_storage_error(error):
        unavailable = StorageUnavailableError()
        unavailable.__cause__ = error
        return unavailable
    return error


def is_transient(error: DBAPIError) -> bool:
    """Whether the same reading may well succeed now: its connection was closed, or another transaction won."""
    return error.connection_invalidated or getattr(error.orig, "sqlstate", None) in {"40001", "40P01"}


def is_connection_lost(connection: Connection, error: BaseException) -> bool:
    """Whether an error left no connection to go on with."""
    return connection.invalidated or getattr(error, "connection_invalidated", False)


def return_to_pool(connection: Connection) -> None:
    """Return a connection to the pool, without its transaction."""
    with contextlib.suppress(SQLAlchemyError):
        connection.close()
    if not connection.closed:
        close_permanently(connection)


def close_permanently(connection: Connection) -> None:
    """Close a connection for good, and with it its locks."""
    connection.invalidate()
    connection.close()
