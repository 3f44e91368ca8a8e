"""The indexer's tables in the service's PostgreSQL database, shared by all nodes."""

from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Protocol, TypeVar

from sqlalchemy import Connection

from app.database import Database
from indexer.store import EventTables, LastRow, StoredEvent

T = TypeVar("T")


class Write(Protocol):
    """Runs work in a transaction."""

    def __call__(self, work: Callable[[Connection], T], /) -> Awaitable[T]:
        """Run work. The work may run a second time after its writes were rolled back."""


class PostgresEvents:
    """The tables on a server. Ids are committed in ascending order, because writes run one after another."""

    def __init__(self, db: Database) -> None:
        self._db = db
        self.store: Write = partial(db.write, repeatable=True)
        """Runs work that writes. Replace this function to do more in the same transaction."""

    async def read(self, work: Callable[[EventTables], T]) -> T:
        """Run work on a snapshot."""
        return await self._db.read(lambda connection: work(EventTables(connection)))

    async def look_up(self, work: Callable[[EventTables], T]) -> T:
        """Run one query, or a few that need not see the same state."""
        return await self._db.look_up(lambda connection: work(EventTables(connection)))

    async def write(self, work: Callable[[EventTables], T]) -> T:
        """Run work in a transaction, after all earlier writes of any process."""
        return await self.store(lambda connection: work(EventTables(connection)))

    def changes_in(self, connection: Connection, after: int, limit: int) -> list[StoredEvent]:
        """Return at most `limit` rows with an id above `after`, in order, including the transaction's own rows."""
        return EventTables(connection).changes(after, limit)

    def last_rows(self, connection: Connection, message_hashes: Sequence[str]) -> list[LastRow]:
        """Return each organisation's newest row in the stored transactions with one of these messages."""
        return EventTables(connection).last_rows(message_hashes)

    def close(self) -> None:
        """Do nothing: the service owns the database."""
