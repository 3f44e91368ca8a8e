"""Which database a process works on, and whether it may serve there."""

import os
import signal
from collections.abc import Callable

import structlog

from app.core.background import Background, Periodic
from app.core.paths import ConfigurationError, Paths
from app.core.settings import Settings
from app.store import Database, SqliteDatabase
from app.store.postgres_database import PostgresDatabase
from indexer import Events, EventStore
from indexer.postgres import PostgresEvents

_log = structlog.get_logger(__name__)

_INTERVAL = 2.0
"""Seconds between two looks at whether this is still the process that serves."""
_OTHER = "another node serves on this database already; several nodes are not supported yet: stop it first"


def open_database(settings: Settings) -> Database:
    """Open the database that the settings name, by default the file in the data folder, which is made if missing.

    Raises ConfigurationError.
    """
    if settings.database_url is None:
        return SqliteDatabase(Paths(settings.data_dir).database)
    url = settings.database_url.get_secret_value()
    return PostgresDatabase(url, prepare_threshold=settings.database_prepare_threshold)


def open_events(settings: Settings, db: Database) -> Events:
    """Open the stored events of the chain: with the rest on a server, or in a file of their own."""
    return PostgresEvents(db) if isinstance(db, PostgresDatabase) else EventStore(Paths(settings.data_dir).events)


def may_have_data(settings: Settings) -> bool:
    """Whether there may be a service's data: a file, or a database on a server."""
    return settings.database_url is not None or Paths(settings.data_dir).database.is_file()


def require_file(settings: Settings, what: str) -> None:
    """Raise ConfigurationError if the database is not a file in the data folder."""
    if settings.database_url is not None:
        raise ConfigurationError(f"{what} is for a database in the data folder; this one is on PostgreSQL: use pg_dump")


class ServingLock(Periodic):
    """Holds the lock of the one process that serves on a database, and ends this process when another has it."""

    name = "serving_lock"

    def __init__(self, db: PostgresDatabase, *, end: Callable[[], None] | None = None) -> None:
        """Take the lock. Raises ConfigurationError if another process has it."""
        super().__init__(_INTERVAL)
        self._db = db
        self._end = end or _terminate
        if not db.serve():
            raise ConfigurationError(f"{db.name}: {_OTHER}")

    async def tick(self) -> None:
        """Take the lock again if its connection was lost."""
        if not await self._db.keep_serving():
            _log.critical("another_node_serves", database=self._db.name)
            self._end()


def serving_locks(db: Database) -> list[Background]:
    """Return what holds the lock of the process that serves; a file needs none. Raises ConfigurationError."""
    return [ServingLock(db)] if isinstance(db, PostgresDatabase) else []


def _terminate() -> None:
    os.kill(os.getpid(), signal.SIGTERM)
