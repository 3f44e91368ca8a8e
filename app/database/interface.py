"""Access to the database, the same for SQLite and PostgreSQL."""

import sqlite3
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from typing import Any, TypeVar

from sqlalchemy import Connection
from sqlalchemy.exc import IntegrityError, SQLAlchemyError

from app.core.errors import StorageUnavailableError
from app.database.commit_log import CommitLog

T = TypeVar("T")
Work = Callable[[Connection], T]

WRITE_ERRORS = (StorageUnavailableError, SQLAlchemyError, sqlite3.Error, OSError)
"""What a write raises when the database cannot be written, such as on a full disk."""

DUPLICATE_ERRORS = (IntegrityError,)
"""What a write raises whose row is stored already."""

Step = Callable[[Work[Any]], Awaitable[Any]]
"""Runs one piece of work within a long transaction and returns its result."""


class Database(ABC):
    """The service's database.

    Writes follow one another, also those of other processes: what work reads before it writes is still so when it is
    committed, and ids that the database gives are committed in their order. Work may run in another thread than its
    caller's, so it touches nothing but its connection and what its caller waits with.
    """

    name: str
    """What people know it by; without a password."""
    node: str = ""
    """The id of this process among those that serve on it at the same time; empty if only one can."""
    server: str = ""
    """The start time of the server that this process wrote to last; empty for a file."""
    ledger: CommitLog | None = None
    """Remembers committed attempts outside of the database, where that can lose commits."""

    def remember(self, tx_id: str, org: str) -> None:
        """Write a committed attempt to the ledger, if there is one."""
        if self.ledger is not None:
            self.ledger.add(tx_id, org)

    @abstractmethod
    async def write(self, work: Work[T], *, repeatable: bool = False) -> T:
        """Run `work` in a transaction and return its result once committed to disk.

        An exception in `work` undoes only its own changes and is raised here. Keep it short: others wait for it. Raises
        ``storage_unavailable`` if the database cannot be written now, such as on a full disk or without a connection;
        that is a `StorageDoubtError` if the work may have been committed all the same.

        Work is `repeatable` if it may be run a second time after all that it wrote was undone: it changes nothing but
        the database. That spares statements, so what every payment writes should be.
        """

    async def write_unordered(self, work: Work[T]) -> T:
        """Run a single statement that needs no order with other writes, and so waits for none where that is possible.

        It may be run twice if its connection is lost.
        """
        return await self.write(work)

    @abstractmethod
    def write_now(self, work: Work[T]) -> T:
        """Run `work` in a transaction of its own, blocking this thread until it is committed."""

    @abstractmethod
    def transaction(self) -> AbstractAsyncContextManager[Step]:
        """Hold the writer for work of many steps: all of it is committed together at the end, or none of it is.

        Each step runs in a thread, and may take long. Reads see the state before; other writes wait for the end. Raises
        ``storage_unavailable`` as ``write`` does.
        """

    @abstractmethod
    async def read(self, work: Work[T], *, in_thread: bool = False) -> T:
        """Run `work` on a snapshot of the database; `in_thread` is for what may take milliseconds.

        Raises ``storage_unavailable`` if the database cannot be read now.
        """

    async def look_up(self, work: Work[T]) -> T:
        """Run a reading statement, or a few that need not see the same state.

        Raises ``storage_unavailable`` as ``read`` does. On a server that spares two round trips, and those of many
        callers share a thread: what every payment reads should be such a statement.
        """
        return await self.read(work)

    @abstractmethod
    def read_now(self, work: Work[T]) -> T:
        """Run `work` on a snapshot of the database, blocking this thread; for the command line and tests."""

    @abstractmethod
    def close(self) -> None:
        """Close all connections; uncommitted work is lost."""
