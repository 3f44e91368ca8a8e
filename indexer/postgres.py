"""The indexer's tables in the service's database on PostgreSQL, where the nodes share them."""

import re
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import lru_cache
from typing import Any, Protocol, TypeVar

from sqlalchemy import Connection

from indexer.schema import PREFIX
from indexer.store import EventTables

T = TypeVar("T")

_TABLE = re.compile(r"\b(FROM|JOIN|INTO|UPDATE) (?!SET\b)(\w+)")


class Transactions(Protocol):
    """Runs work in transactions, in threads that may wait for the server."""

    def read(self, work: Callable[[Connection], T], *, in_thread: bool = False) -> Awaitable[T]:
        """Run work on a snapshot."""

    def look_up(self, work: Callable[[Connection], T]) -> Awaitable[T]:
        """Run a single reading statement."""

    def write(self, work: Callable[[Connection], T], *, repeatable: bool = False) -> Awaitable[T]:
        """Run work in a transaction; `repeatable` work may be run again after all that it wrote was undone."""


class PostgresEvents:
    """The tables on a server. Ids are committed in their order, because writes follow one another."""

    def __init__(self, db: Transactions) -> None:
        self._db = db

    async def read(self, work: Callable[[EventTables], T]) -> T:
        """Run work on a snapshot."""
        return await self._db.read(lambda connection: work(tables(connection)))

    async def look_up(self, work: Callable[[EventTables], T]) -> T:
        """Run a single reading statement."""
        return await self._db.look_up(lambda connection: work(tables(connection)))

    async def write(self, work: Callable[[EventTables], T]) -> T:
        """Run work in a transaction, after those of all processes that came before."""
        return await self._db.write(lambda connection: work(tables(connection)), repeatable=True)

    def close(self) -> None:
        """Do nothing: the database is the service's."""


def tables(connection: Connection) -> EventTables:
    """Return the tables, to be read and written in the connection's transaction."""
    return EventTables(_Statements(connection))


class _Statements:
    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def execute(self, statement: str, values: Sequence[Any] = ()) -> Any:
        return self._connection.exec_driver_sql(_translated(statement), tuple(values))

    def atomic(self) -> AbstractContextManager[object]:
        # Each piece of work has its transaction, or a savepoint in one.
        return nullcontext()


@lru_cache(maxsize=2048)
def _translated(statement: str) -> str:
    """Return the statement with the names of the tables here, and the driver's marks for values."""
    return _TABLE.sub(rf"\1 {PREFIX}\2", statement).replace("?", "%s")
