"""Calls of a PostgreSQL server: their end when it hangs, and what their errors mean."""

import asyncio
import contextlib
import contextvars
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, text
from sqlalchemy.exc import DBAPIError, SQLAlchemyError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError

from app.core.errors import StorageUnavailableError, is_storage_error
from app.store.database import Work
from app.store.prepared import deferring

PATIENCE = 20.0
"""Seconds after which a short piece of work is given up: its connection is closed under it."""
BEGIN = text(
    "SELECT set_config('synchronous_commit', CASE current_setting('synchronous_commit')"
    " WHEN 'remote_apply' THEN 'remote_apply' ELSE 'on' END, true),"
    " set_config('lock_timeout', :patience, true), set_config('statement_timeout', :limit, true),"
    " pg_advisory_xact_lock(:key), CAST(pg_current_xact_id() AS text) AS transaction,"
    " CAST(pg_postmaster_start_time() AS text) AS server"
)
"""Begins a writing transaction: makes its commit durable and takes the writers' lock."""
STATUS = text(
    "SELECT CAST(pg_postmaster_start_time() AS text) AS server, pg_xact_status(CAST(:transaction AS xid8)) AS status"
)
"""Asks what became of a transaction, and since when the server runs."""


@dataclass(slots=True)
class QueuedWork:
    """Work that waits for a transaction, to be run in the context of its caller, whose request the logs name."""

    work: Work[Any]
    future: asyncio.Future[Any]
    context: contextvars.Context
    repeatable: bool

    def run(self, connection: Connection) -> Any:
        """Run the work."""
        return self.context.run(self.work, connection)


@dataclass(frozen=True, slots=True)
class Piece:
    """Work for a transaction that others share; `repeatable` as in `Database.write`."""

    work: Callable[[Connection], Any]
    repeatable: bool

    def run(self, connection: Connection) -> Any:
        """Run the work, with fewer statements where it defers some."""
        with deferring(connection):
            return self.work(connection)


@dataclass(slots=True)
class FailedWork:
    """What work raised instead of a result."""

    error: BaseException


class TimedCall:
    """Work on a connection that can be ended from outside by closing it, when the network or the server hangs."""

    def __init__(self, *, limited: bool = True) -> None:
        self._patience = PATIENCE if limited else None
        self._lock = threading.Lock()
        self._socket: socket.socket | None = None
        self._until = 0.0

    @contextmanager
    def using(self, connection: Connection) -> Iterator[None]:
        """Let the connection be closed if this takes longer than the patience."""
        if self._patience is None:
            yield
            return
        # The driver's own: what waits on it wakes up when this one is shut down.
        own = socket.socket(fileno=os.dup(connection.connection.dbapi_connection.fileno()))  # type: ignore[union-attr]
        with own:
            with self._lock:
                self._socket, self._until = own, time.monotonic() + self._patience
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


def in_ms(seconds: float) -> str:
    """Return what the settings of the server call so many seconds."""
    return str(round(seconds * 1000))
