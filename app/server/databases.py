"""The database that a process works on, and the number of processes that may serve there."""

from app.core.paths import ConfigurationError, Paths
from app.core.settings import ROLES, Settings
from app.database import Database, SqliteDatabase
from app.database.postgres.database import PostgresDatabase
from app.database.postgres.engine import SETTING, database_name, require_address
from app.projection.projector import Projector
from indexer import Events, EventStore, Indexer
from indexer.postgres import PostgresEvents


def open_database(settings: Settings, *, channel: str | None = None) -> Database:
    """Open the configured database. The default is a file in the data folder, created if missing.

    ``channel`` is the channel of the signals between nodes. Raises ConfigurationError if the database cannot be used.
    """
    if settings.database_url is None:
        require_not_moved(settings.paths())
        return SqliteDatabase(settings.paths().database)
    url = settings.database_url.get_secret_value()
    if settings.database_listen_url is not None:
        require_address(settings.database_listen_url.get_secret_value(), "AGENT_VAULT_DATABASE_LISTEN_URL")
    return PostgresDatabase(url, prepare_threshold=settings.database_prepare_threshold, channel=channel)


def require_not_moved(paths: Paths) -> None:
    """Raise ConfigurationError if a folder's data was moved: a service on the old data would pay everything again."""
    if paths.moved.exists():
        place = paths.moved.read_text(encoding="utf-8").strip()
        raise ConfigurationError(f"the data in {paths.root} was moved to the {place}: set its address in {SETTING}")


def open_events(settings: Settings, db: Database) -> Events:
    """Open the stored on-chain events: in the service's database on a server, or in a file of their own."""
    return PostgresEvents(db) if isinstance(db, PostgresDatabase) else EventStore(settings.paths().events)


def open_projector(db: Database, events: Events, indexer: Indexer, *, payer: str = "") -> Projector:
    """Return the projector of an indexer's rows.

    On PostgreSQL, it applies new rows to the read models in the transaction that stores them.
    """
    if not isinstance(events, PostgresEvents):
        return Projector(db, indexer.changes, payer=payer)
    projector = Projector(db, indexer.changes, events, payer=payer)
    events.store = projector.store
    return projector


def may_have_data(settings: Settings) -> bool:
    """Return True if a service's data may exist: a file, or a database on a server."""
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
