"""The indexer's tables in the service's database on PostgreSQL, where the nodes share them."""

import re
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import lru_cache, partial
from typing import Any, Protocol, TypeVar

from sqlalchemy import Connection

from indexer.schema import PREFIX
from indexer.store import EventTables, LastRow, StoredEvent

T = TypeVar("T")

_TABLE = re.compile(r"\b(FROM|JOIN|INTO|UPDATE) (?!SET\b)(\w+)")


Run = Callable[[str, Sequence[Any]], Any]
"""Runs a statement with `$1` for its first value; returns what is like a cursor of SQLite's."""


class Transactions(Protocol):
    """Runs work in transactions, in threads that may wait for the server."""

    def run(self, connection: Connection, statement: str, values: Sequence[Any]) -> Any:
        """Run a statement in the connection's transaction; see `Run`."""

    def read(self, work: Callable[[Connection], T], *, in_thread: bool = False) -> Awaitable[T]:
        """Run work on a snapshot."""

    def look_up(self, work: Callable[[Connection], T]) -> Awaitable[T]:
        """Run a reading statement, or a few that need not see the same state."""

    def write(self, work: Callable[[Connection], T], *, repeatable: bool = False) -> Awaitable[T]:
        """Run work in a transaction; `repeatable` work may be run again after all that it wrote was undone."""


class Write(Protocol):
    """Runs work in a transaction."""

    def __call__(self, work: Callable[[Connection], T], /) -> Awaitable[T]:
        """Run work, perhaps a second time after all that it wrote was undone."""


class PostgresEvents:
    """The tables on a server. Ids are committed in their order, because writes follow one another."""

    def __init__(self, db: Transactions) -> None:
        self._db = db
        self.store: Write = partial(db.write, repeatable=True)
        """Runs what writes; who replaces it may do more in the same transaction."""

    async def read(self, work: Callable[[EventTables], T]) -> T:
        """Run work on a snapshot."""
        return await self._db.read(lambda connection: work(self._tables(connection)))

    async def look_up(self, work: Callable[[EventTables], T]) -> T:
        """Run a reading statement, or a few that need not see the same state."""
        return await self._db.look_up(lambda connection: work(self._tables(connection)))

    async def write(self, work: Callable[[EventTables], T]) -> T:
        """Run work in a transaction, after those of all processes that came before."""
        return await self.store(lambda connection: work(self._tables(connection)))

    def changes_in(self, connection: Connection, after: int, limit: int) -> list[StoredEvent]:
        """Return at most `limit` rows with an id above `after`, in order, with what the transaction itself stored."""
        return self._tables(connection).changes(after, limit)

    def last_rows(self, connection: Connection, message_hashes: Sequence[str]) -> list[LastRow]:
        """Return the newest row of each organisation in the stored transactions with one of these messages."""
        return self._tables(connection).last_rows(message_hashes)

    def close(self) -> None:
        """Do nothing: the database is the service's."""

    def _tables(self, connection: Connection) -> EventTables:
        return tables(partial(self._db.run, connection))


def tables(run: Run) -> EventTables:
    """Return the tables, to be read and written in the transaction in which `run` runs statements."""
    return EventTables(_Statements(run))


class _Statements:
    def __init__(self, run: Run) -> None:
        self._run = run

    def execute(self, statement: str, values: Sequence[Any] = ()) -> Any:
        return self._run(_translated(statement), values)

    def atomic(self) -> AbstractContextManager[object]:
        # Each piece of work has its transaction, or a savepoint in one.
        return nullcontext()


@lru_cache(maxsize=2048)
def _translated(statement: str) -> str:
    """Return the statement with the names of the tables here, and the server's marks for values."""
    first, *others = _TABLE.sub(rf"\1 {PREFIX}\2", statement).split("?")
    return first + "".join(f"${number}{part}" for number, part in enumerate(others, 1))
