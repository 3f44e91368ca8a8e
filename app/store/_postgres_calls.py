"""Calls of a PostgreSQL server: their end when it hangs, and what their errors mean."""

import asyncio
import contextlib
import contextvars
import os
import socket
import threading
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, Engine, event
from sqlalchemy.exc import DBAPIError, SQLAlchemyError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError

from app.core.errors import StorageUnavailableError, is_storage_error
from app.store.database import Work
from app.store.leases import Lease
from app.store.prepared import deferring

_SOCKET = "agent_vault_socket"
PATIENCE = 20.0
"""Seconds after which a short piece of work is given up: its connection is closed under it."""


@dataclass(slots=True)
class QueuedWork:
    """Work that waits for a transaction, to be run in the context of its caller, whose request the logs name."""

    work: Work[Any]
    future: asyncio.Future[Any]
    context: contextvars.Context
    repeatable: bool
    lease: Lease | None

    def run(self, connection: Connection) -> Any:
        """Run the work."""
        return self.context.run(self.work, connection)


@dataclass(frozen=True, slots=True)
class Piece:
    """Work for a transaction that others share; `repeatable` as in `Database.write`, `lease` if it needs one."""

    work: Callable[[Connection], Any]
    repeatable: bool = False
    lease: Lease | None = None

    def run(self, connection: Connection) -> Any:
        """Run the work, with fewer statements where it defers some."""
        with deferring(connection):
            return self.work(connection)


@dataclass(slots=True)
class FailedWork:
    """What work raised instead of a result."""

    error: BaseException


class SharedWork:
    """Runs the work of many callers together: what comes while some runs is the next batch."""

    def __init__(self, run: Callable[[Sequence[QueuedWork]], Awaitable[Sequence[Any]]]) -> None:
        """``run`` returns for each piece of a batch what it returned, or a `FailedWork`."""
        self._run = run
        self._waiting: list[QueuedWork] = []
        self._running: asyncio.Task[None] | None = None

    async def add(self, work: Work[Any], *, repeatable: bool, lease: Lease | None = None) -> Any:
        """Have work run with the next batch, and return its result."""
        future = asyncio.get_running_loop().create_future()
        job = QueuedWork(work, future, contextvars.copy_context(), repeatable, lease)
        self._waiting.append(job)
        if self._running is None or self._running.done():
            self._running = asyncio.create_task(self._run_all())
        return await job.future

    async def _run_all(self) -> None:
        while self._waiting:
            batch, self._waiting = [one for one in self._waiting if not one.future.cancelled()], []
            if not batch:
                continue
            try:
                outcomes = await self._run(batch)
            except BaseException as error:  # noqa: BLE001 - whatever it is, nobody may wait for ever
                outcomes = [FailedWork(error)] * len(batch)
            for job, outcome in zip(batch, outcomes, strict=True):
                if job.future.done():
                    continue
                if isinstance(outcome, FailedWork):
                    job.future.set_exception(outcome.error)
                else:
                    job.future.set_result(outcome)


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

    def watch(self, future: asyncio.Future[Any]) -> None:
        """End the call whenever it is overdue, until the future is done."""
        if self._limited:
            self._look_in(PATIENCE, future)

    def _look_in(self, seconds: float, future: asyncio.Future[Any]) -> None:
        timer = asyncio.get_running_loop().call_later(seconds, self._look, future)
        future.add_done_callback(lambda _done: timer.cancel())

    def _look(self, future: asyncio.Future[Any]) -> None:
        if not future.done():
            self.end_if_overdue()
            # It may have begun late, or may not have noticed yet.
            self._look_in(1.0, future)

    def end_if_overdue(self) -> None:
        """Close the connection if its time is up; what waits for it fails as if the network had been cut."""
        with self._lock:
            if self._socket is not None and time.monotonic() > self._until:
                with contextlib.suppress(OSError):
                    self._socket.shutdown(socket.SHUT_RDWR)


def keep_sockets(engine: Engine) -> None:
    """Keep a handle of each connection's socket, by which a `TimedCall` ends it."""

    @event.listens_for(engine, "connect")
    def keep(connection: Any, record: Any) -> None:
        # The driver's own: what waits on it wakes up when this one is shut down.
        record.info[_SOCKET] = socket.socket(fileno=os.dup(connection.fileno()))

    @event.listens_for(engine, "close")
    def forget(_connection: Any, record: Any) -> None:
        if (own := record.info.pop(_SOCKET, None)) is not None:
            own.close()


def raised_by(error: BaseException) -> BaseException:
    """Return what to raise for an error of the driver."""
    if isinstance(error, PoolTimeoutError) or is_storage_error(error):
        unavailable = StorageUnavailableError()
        unavailable.__cause__ = error
        return unavailable
    return error


def passes(error: DBAPIError) -> bool:
    """Whether the same reading may well succeed now: its connection was closed, or another transaction won."""
    return error.connection_invalidated or getattr(error.orig, "sqlstate", None) in {"40001", "40P01"}


def is_lost(connection: Connection, error: BaseException) -> bool:
    """Whether an error left no connection to go on with."""
    return connection.invalidated or getattr(error, "connection_invalidated", False)


def give_back(connection: Connection) -> None:
    """Return a connection to the pool, without its transaction."""
    with contextlib.suppress(SQLAlchemyError):
        connection.close()
    if not connection.closed:
        close_for_good(connection)


def close_for_good(connection: Connection) -> None:
    """Close a connection for good, and with it its locks."""
    connection.invalidate()
    connection.close()
