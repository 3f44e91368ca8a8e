"""The interface of the database, the same for SQLite and PostgreSQL."""

import asyncio
import sqlite3
import time
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from contextvars import ContextVar
from typing import Any, TypeVar

from sqlalchemy import Connection
from sqlalchemy.exc import IntegrityError, SQLAlchemyError

from app.core.errors import StorageDoubtError, StorageUnavailableError
from app.database.commit_log import CommitLog

T = TypeVar("T")
Work = Callable[[Connection], T]

WRITE_ERRORS = (StorageUnavailableError, SQLAlchemyError, sqlite3.Error, OSError)
"""Errors that a write raises if the database cannot be written to, for example because the disk is full.

They include `DUPLICATE_ERRORS`. Code that handles both must catch `DUPLICATE_ERRORS` first.
"""

DUPLICATE_ERRORS = (IntegrityError,)
"""Errors that a write raises if its row is stored already."""

REQUEST_PATIENCE = 18.0
"""Seconds that a request may wait for the database in total, not counting waits of up to `_LAST_PATIENCE`. A hanging
database therefore delays a request by about 20 seconds."""
_LAST_PATIENCE = 0.5
"""Seconds that each call of a request may still wait once `REQUEST_PATIENCE` is used up. Shorter waits are not
counted."""
patience: ContextVar[float | None] = ContextVar("patience", default=None)
"""Seconds that the request of this context may still wait for the database; None outside of requests."""

Step = Callable[[Work[Any]], Awaitable[Any]]
"""Runs one piece of work within a long transaction and returns its result."""


async def patiently(waiting: Awaitable[T]) -> T:
    """Wait for a call, but no longer than the request's patience.

    Raises `StorageDoubtError` if the call takes longer, because it may still be running.
    """
    left, began = patience.get(), time.monotonic()
    if left is None:
        return await waiting
    try:
        async with asyncio.timeout(left):
            return await waiting
    except TimeoutError:
        raise StorageDoubtError from None
    finally:
        if (waited := time.monotonic() - began) > _LAST_PATIENCE:
            patience.set(max(_LAST_PATIENCE, left - waited))


class Database(ABC):
    """The service's database.

    Writes are serialized, even across processes, except in `write_unordered`. Data that work has read is therefore
    still unchanged when the work commits, and ids assigned by the database are committed in order. Work may run in
    another thread than its caller. Work may use only the connection that it is given, and objects that the caller does
    not touch while waiting.
    """

    name: str
    """The database's name to show to people, without a password."""
    node: str = ""
    """The id of this process among those that use the database concurrently. Empty if only one process can use it."""
    server: str = ""
    """The start time of the server that this process last wrote to. Empty for a file or without a database guard."""
    ledger: CommitLog | None = None
    """The commit log, which remembers committed attempts outside of the database, or None if the database cannot lose
    commits.
    """

    def remember(self, tx_id: str, org: str) -> None:
        """Write a committed attempt to the commit log, if there is one."""
        if self.ledger is not None:
            self.ledger.add(tx_id, org)

    @abstractmethod
    async def write(self, work: Work[T], *, repeatable: bool = False) -> T:
        """Run `work` in a transaction and return its result once committed to disk.

        An exception in `work` undoes only its own changes and is raised here. Keep `work` short, because other writes
        wait for it. Raises ``storage_unavailable`` if the database cannot be written to now, for example because of a
        full disk or a lost connection. The error is a `StorageDoubtError` if the work may still have been committed.

        Work is `repeatable` if it changes only the database, so that it may run again after its writes were undone.
        Repeatable work needs fewer statements. The writes of every payment should therefore be repeatable.
        """

    async def write_unordered(self, work: Work[T]) -> T:
        """Run a single statement in no particular order with other writes, if possible without waiting for them.

        The statement may run twice if its connection is lost.
        """
        return await self.write(work)

    @abstractmethod
    def write_now(self, work: Work[T]) -> T:
        """Run `work` in a transaction of its own, blocking this thread until it is committed."""

    @abstractmethod
    def transaction(self) -> AbstractAsyncContextManager[Step]:
        """Hold the writer for work of many steps. All steps are committed together at the end, or none is.

        Each step runs in a thread and may take long. Reads see the state before the transaction, and other writes wait
        for its end. Raises ``storage_unavailable`` like ``write``.
        """

    @abstractmethod
    async def read(self, work: Work[T], *, in_thread: bool = False) -> T:
        """Run `work` on a snapshot of the database. Use `in_thread` for work that may take milliseconds.

        Raises ``storage_unavailable`` if the database cannot be read now.
        """

    async def look_up(self, work: Work[T]) -> T:
        """Run one query, or a few queries that need not see the same state.

        Raises ``storage_unavailable`` like ``read``. On a server, this saves two round trips, and many callers share a
        thread. The reads of every payment should therefore use this method.
        """
        return await self.read(work)

    @abstractmethod
    def read_now(self, work: Work[T]) -> T:
        """Run `work` on a snapshot of the database, blocking this thread; for the command line, the start and tests."""

    @abstractmethod
    def close(self) -> None:
        """Close all connections; uncommitted work is lost."""
