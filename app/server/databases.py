"""Opens the database that a process works on, and refuses a file that is damaged, moved or copied while in use."""

import secrets
import sqlite3
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path

from sqlalchemy import Connection

from app.core.errors import is_storage_error
from app.core.paths import ConfigurationError, Paths
from app.core.settings import ROLES, Settings
from app.core.signers import write_secret
from app.core.timestamps import CLOCK, now_ms
from app.database import Database, SqliteDatabase
from app.database.commit_log import CommitLog
from app.database.interface import WRITE_ERRORS
from app.database.postgres.database import PostgresDatabase
from app.database.postgres.engine import SETTING, database_name, require_address
from app.projection.projector import Projector
from app.store.guard import report_lost_commits
from app.store.idempotency import LIFETIME
from app.store.schema import create_tables
from app.store.values import clock_ahead, get_value, put_value
from indexer import Events, EventStore, Indexer
from indexer.postgres import PostgresEvents

IN_USE = "in_use"
"""Name of the stored value that marks a file as used by a service; empty after a clean stop."""
_REMEDY = "restore an archive of `agent-vault backup`"


def open_database(settings: Settings, *, channel: str | None = None) -> Database:
    """Open the configured database. The default is a file in the data folder, created if missing.

    This process then follows the test clock that the file stores.

    ``channel`` is the channel of the signals between nodes. Raises ConfigurationError if the database cannot be used.
    """
    if settings.database_url is None:
        db = open_file(settings.paths())
        CLOCK.ahead = db.read_now(clock_ahead)
        return db
    url = settings.database_url.get_secret_value()
    if settings.database_listen_url is not None:
        require_address(settings.database_listen_url.get_secret_value(), "AGENT_VAULT_DATABASE_LISTEN_URL")
    return PostgresDatabase(url, prepare_threshold=settings.database_prepare_threshold, channel=channel)


def open_file(paths: Paths) -> SqliteDatabase:
    """Open the database in a data folder. Raises ConfigurationError if the file is moved, damaged or a copy."""
    require_not_moved(paths)
    try:
        db = SqliteDatabase(paths.database, create_tables)
        marked = db.read_now(lambda conn: get_value(conn, IN_USE))
    except WRITE_ERRORS as error:
        if is_storage_error(error):
            raise
        raise _damaged(paths.database, getattr(error, "orig", None) or error) from None
    if marked and marked != _mark(paths):
        db.close()
        raise ConfigurationError(
            f"{paths.database} is a copy that was made while a service used the file, so it may mix several moments: "
            f"{_REMEDY}"
        )
    return db


def require_intact(*files: Path) -> None:
    """Raise ConfigurationError with the name of the first SQLite file that is damaged."""
    for path in filter(Path.exists, files):
        try:
            with closing(sqlite3.connect(path)) as file:
                [found] = file.execute("PRAGMA integrity_check(1)").fetchone() if path.stat().st_size else ["empty"]
        except sqlite3.DatabaseError as error:
            found = error
        if found != "ok":
            raise _damaged(path, found)


def use_file(db: Database, ledger: CommitLog, paths: Paths) -> Callable[[], None]:
    """Mark the database in a data folder as in use until the returned function is called.

    A copy of a file in use contains the mark. The copy has another inode, or the token of an earlier run, so the mark
    does not match. A copy made after a clean stop has no mark. If it lacks transactions of the commit log, they raise
    the database guard.
    """

    def mark(conn: Connection) -> None:
        if lost := ledger.missing(conn, now_ms() - LIFETIME):
            report_lost_commits(conn, lost)
        put_value(conn, IN_USE, _mark(paths))

    if not paths.in_use.exists():
        write_secret(paths.in_use, secrets.token_hex(8))
    db.write_now(mark)
    # The mark must be in the file itself, because a copy may lack the write-ahead log.
    with closing(sqlite3.connect(paths.database)) as file:
        file.execute("PRAGMA wal_checkpoint(TRUNCATE)")

    def release() -> None:
        # A file that cannot be written to stays marked, as after a crash.
        with suppress(*WRITE_ERRORS):
            db.write_now(lambda conn: put_value(conn, IN_USE, ""))
            paths.in_use.unlink(missing_ok=True)

    return release


def _mark(paths: Paths) -> str:
    token = paths.in_use.read_text(encoding="ascii") if paths.in_use.exists() else ""
    return f"{token} {paths.database.stat().st_ino}"


def _damaged(path: Path, reason: object) -> ConfigurationError:
    return ConfigurationError(f"{path} is damaged ({reason}): {_REMEDY}")


def require_not_moved(paths: Paths) -> None:
    """Raise ConfigurationError if a folder's data was moved: a service on the old data could repeat payments."""
    if paths.moved.exists():
        place = paths.moved.read_text(encoding="utf-8").strip()
        raise ConfigurationError(f"the data in {paths.root} was moved to the {place}: set its address in {SETTING}")


def open_events(settings: Settings, db: Database) -> Events:
    """Open the stored on-chain events: in the service's database on a server, or in a file of their own."""
    return PostgresEvents(db) if isinstance(db, PostgresDatabase) else EventStore(settings.paths().events)


def open_projector(db: Database, events: Events, indexer: Indexer, *, payer: str = "") -> Projector:
    """Return the projector for an indexer's rows.

    On PostgreSQL, it applies new rows to the read models in the transaction that stores them.
    """
    if not isinstance(events, PostgresEvents):
        return Projector(db, indexer.changes, payer=payer)
    projector = Projector(db, indexer.changes, events, payer=payer)
    events.store = projector.store
    return projector


def may_have_data(settings: Settings) -> bool:
    """Return True if the database file exists, or if the database is on a server. The server is not asked."""
    return settings.database_url is not None or settings.paths().database.is_file()


def require_file(settings: Settings, what: str) -> None:
    """Raise ConfigurationError unless the database is a file in the data folder."""
    if settings.database_url is not None:
        raise ConfigurationError(f"{what} is for a database in the data folder; this one is on PostgreSQL: use pg_dump")


def data_name(settings: Settings) -> str:
    """Return the name of a service's data for messages: its folder, or its database on a server."""
    if settings.database_url is None:
        return f"the data folder {settings.data_dir}"
    return f"the {database_name(settings.database_url.get_secret_value())}"


def require_roles(settings: Settings) -> None:
    """Raise ConfigurationError if a process on a file omits a role, because no other process could have it."""
    if settings.database_url is None and not all(settings.has_role(one) for one in ROLES):
        raise ConfigurationError(
            "--roles needs a database on PostgreSQL, set in AGENT_VAULT_DATABASE_URL: with a data folder alone, one "
            "process has all roles"
        )
