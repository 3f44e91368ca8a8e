"""The indexer's tables in the service's PostgreSQL database, shared by all nodes."""

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
"""Runs a statement with `$1` for its first value. Returns an object like SQLite's cursor."""


class Transactions(Protocol):
    """Runs work in transactions, in threads where it may wait for the server."""

    def run(self, connection: Connection, statement: str, values: Sequence[Any]) -> Any:
        """Run a statement in the connection's transaction, as described for `Run`."""

    def read(self, work: Callable[[Connection], T], *, in_thread: bool = False) -> Awaitable[T]:
        """Run work on a snapshot."""

    def look_up(self, work: Callable[[Connection], T]) -> Awaitable[T]:
        """Run one query, or a few that need not see the same state."""

    def write(self, work: Callable[[Connection], T], *, repeatable: bool = False) -> Awaitable[T]:
        """Run work in a transaction. `repeatable` work may be run again after its writes were rolled back."""


class Write(Protocol):
    """Runs work in a transaction."""

    def __call__(self, work: Callable[[Connection], T], /) -> Awaitable[T]:
        """Run work. It may be run a second time after its writes were rolled back."""


class PostgresEvents:
    """The tables on a server. Ids are committed in ascending order, because writes run one after another."""

    def __init__(self, db: Transactions) -> None:
        self._db = db
        self.store: Write = partial(db.write, repeatable=True)
        """Runs writing work. Replace it to do more in the same transaction."""

    async def read(self, work: Callable[[EventTables], T]) -> T:
        """Run work on a snapshot."""
        return await self._db.read(lambda connection: work(self._tables(connection)))

    async def look_up(self, work: Callable[[EventTables], T]) -> T:
        """Run one query, or a few that need not see the same state."""
        return await self._db.look_up(lambda connection: work(self._tables(connection)))

    async def write(self, work: Callable[[EventTables], T]) -> T:
        """Run work in a transaction, after all earlier writes of any process."""
        return await self.store(lambda connection: work(self._tables(connection)))

    def changes_in(self, connection: Connection, after: int, limit: int) -> list[StoredEvent]:
        """Return at most `limit` rows with an id above `after`, in order, including the transaction's own rows."""
        return self._tables(connection).changes(after, limit)

    def last_rows(self, connection: Connection, message_hashes: Sequence[str]) -> list[LastRow]:
        """Return each organisation's newest row in the stored transactions with one of these messages."""
        return self._tables(connection).last_rows(message_hashes)

    def close(self) -> None:
        """Do nothing: the service owns the database."""

    def _tables(self, connection: Connection) -> EventTables:
        return tables(partial(self._db.run, connection))


def tables(run: Run) -> EventTables:
    """Return the tables, which are read and written in the transaction of `run`."""
    return EventTables(_Statements(run))


class _Statements:
    def __init__(self, run: Run) -> None:
        self._run = run

    def execute(self, statement: str, values: Sequence[Any] = ()) -> Any:
        return self._run(_translated(statement), values)

    def atomic(self) -> AbstractContextManager[object]:
        # Each piece of work already runs in a transaction or in a savepoint of one.
        return nullcontext()


@lru_cache(maxsize=2048)
def _translated(statement: str) -> str:
    """Return the statement with the table names and value placeholders (`$1`) of PostgreSQL."""
    first, *others = _TABLE.sub(rf"\1 {PREFIX}\2", statement).split("?")
    return first + "".join(f"${number}{part}" for number, part in enumerate(others, 1))
