"""The history of the schema: Alembic's environment and, in `versions`, its revisions.

To change a table, add a revision to `versions`, add its id to `REVISIONS`, and change the table itself. A new database
gets the current tables directly. A test compares them with the tables of an upgraded database. A revision's
`oldest_code` names the oldest revision whose code still works on this schema, so that the old version can serve
while the new version starts.
"""

from collections.abc import Callable, Iterable

from sqlalchemy import Connection, Engine, inspect, text
from sqlalchemy.exc import DBAPIError

from app.core.paths import ConfigurationError

Create = Callable[[Connection], None]
"""Creates all tables in an empty database."""

REVISIONS = (
    "0001",
    "0002",
    "0003",
    "0004",
    "0005",
    "0006",
    "0009",
    "0008",
    "0007",
    "0011",
    "0012",
    "0013",
    "0016",
    "0014",
    "0015",
    "0017",
    "0018",
    "0019",
    "0020",
    "0021",
    "0022",
    "0023",
    "0024",
    "0025",
)
"""All revisions, oldest first. Their numbers are not in order.

The list avoids importing Alembic at each start, which takes longer than opening a database.
"""
OLDEST_SERVER = 150_000
"""The oldest supported PostgreSQL version, as a `server_version_num`."""

_UPGRADE_LOCK = 0x4156_0003
_LOCK_NOT_AVAILABLE = "55P03"
_TABLE_PATIENCE = "3s"
"""Time that an upgrade waits for a table in use by a service. Later users of the table wait for the upgrade."""


def migrate(connection: Connection, create: Create) -> None:
    """Bring the database to the newest revision, in the connection's transaction.

    Creates the tables of an empty database. A newer schema is accepted if it works with the code of this version.
    Raises `ConfigurationError` for any other unknown schema.
    """
    found = _revision(connection)
    if found == REVISIONS[-1]:
        return
    if found is not None and found not in REVISIONS:
        if not _serves(connection, found):
            path = connection.engine.url.database
            raise ConfigurationError(f"{path}: its schema is {found}; this version supports up to {REVISIONS[-1]}")
        return
    _upgrade(connection, found, create)


def upgrade(engine: Engine, name: str, create: Create) -> tuple[str | None, str]:
    """Bring a PostgreSQL database to the newest revision. Return the previous and the new revision.

    An empty database gets its tables. Raises `ConfigurationError` if the database cannot be upgraded or its schema is
    newer.
    """
    with _connected(engine, name) as connection:
        _require_server(connection, name)
        try:
            connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": _UPGRADE_LOCK})
            connection.execute(text(f"SET LOCAL lock_timeout = '{_TABLE_PATIENCE}'"))
            found = _revision(connection)
            if found is not None and found not in REVISIONS:
                raise ConfigurationError(f"{name}: its schema is {found}; this version supports up to {REVISIONS[-1]}")
            if found != REVISIONS[-1]:
                _upgrade(connection, found, create)
            connection.commit()
        except DBAPIError as error:
            reason = _line(error)
            if getattr(error.orig, "sqlstate", None) == _LOCK_NOT_AVAILABLE:
                reason = "a table is in use, for example by an export. Nothing was changed. Run the upgrade again"
            raise ConfigurationError(f"{name} cannot be upgraded: {reason}") from None
    return found, REVISIONS[-1]


def require_current(engine: Engine, name: str) -> None:
    """Raise `ConfigurationError` unless this version of the service can serve on this PostgreSQL database."""
    with _connected(engine, name) as connection:
        _require_server(connection, name)
        try:
            found = _revision(connection)
            serves = found is not None and (found == REVISIONS[-1] or _serves(connection, found))
        except DBAPIError as error:
            raise ConfigurationError(f"{name}: {_line(error)}") from None
        remedy = "run `agent-vault db upgrade`"
        if found is None:
            raise ConfigurationError(f"{name} has no schema: {remedy}")
        if found in REVISIONS[:-1]:
            raise ConfigurationError(f"{name}: its schema is {found}; this version needs {REVISIONS[-1]}: {remedy}")
        if not serves:
            raise ConfigurationError(f"{name}: its schema is {found}; this version supports up to {REVISIONS[-1]}")
        _require_rights(connection, name)


def _connected(engine: Engine, name: str) -> Connection:
    try:
        return engine.connect()
    except DBAPIError as error:
        raise ConfigurationError(f"cannot connect to the {name}: {_line(error)}") from None


def _require_server(connection: Connection, name: str) -> None:
    row = connection.execute(
        text(
            "SELECT CAST(current_setting('server_version_num') AS integer), current_setting('server_version'),"
            " current_setting('server_encoding'), pg_is_in_recovery()"
        )
    ).one()
    number, version, encoding, standby = row
    if number < OLDEST_SERVER:
        raise ConfigurationError(f"{name} is on PostgreSQL {version}: {OLDEST_SERVER // 10_000} or newer is needed")
    if encoding != "UTF8":
        raise ConfigurationError(f"{name} has the encoding {encoding}: create it with ENCODING 'UTF8'")
    if standby:
        raise ConfigurationError(f"{name} is on a standby, which cannot be written to: use the primary")


def _require_rights(connection: Connection, name: str) -> None:
    """Raise `ConfigurationError` unless the connection's user may read and write all tables but Alembic's.

    `name` is the database's name in the message.
    """
    missing = connection.execute(
        text(
            "SELECT c.relname, wanted, current_user FROM pg_class c, unnest(ARRAY['SELECT', 'INSERT', 'UPDATE',"
            " 'DELETE']) AS wanted WHERE c.relkind = 'r' AND c.relnamespace = current_schema()::regnamespace"
            " AND c.relname <> 'alembic_version' AND NOT has_table_privilege(c.oid, wanted)"
            " ORDER BY c.relname, wanted LIMIT 1"
        )
    ).one_or_none()
    if missing is not None:
        table, right, account = missing
        raise ConfigurationError(f"{name}: the account {account} lacks the right to {right} in the table {table}")


def _revision(connection: Connection) -> str | None:
    """Return the schema's revision, or None if there is no schema."""
    tables: Iterable[str] = inspect(connection).get_table_names()
    if not tables:
        return None
    versioned = "alembic_version" in tables
    found = connection.scalar(text("SELECT version_num FROM alembic_version")) if versioned else "unversioned"
    return str(found)


def _serves(connection: Connection, found: str) -> bool:
    """Return True if the newer schema `found` works with the code of this version."""
    if not inspect(connection).has_table("schema_versions"):
        return False
    of_it = text("SELECT oldest_code FROM schema_versions WHERE revision = :found")
    oldest: str | None = connection.scalar(of_it, {"found": found})
    return oldest in REVISIONS


def _upgrade(connection: Connection, found: str | None, create: Create) -> None:
    from alembic import command  # noqa: PLC0415 - takes 0.1 s, and most starts have nothing to upgrade
    from alembic.config import Config  # noqa: PLC0415
    from alembic.script import ScriptDirectory  # noqa: PLC0415

    config = Config(attributes={"connection": connection})
    config.set_main_option("script_location", "app.database:migrations")
    config.set_main_option("path_separator", "os")
    if found is None:
        create(connection)
        command.stamp(config, REVISIONS[-1])
    else:
        command.upgrade(config, REVISIONS[-1])
    newest = ScriptDirectory.from_config(config).get_revision(REVISIONS[-1])
    connection.execute(
        text("INSERT INTO schema_versions (revision, oldest_code) VALUES (:revision, :oldest)"),
        {"revision": newest.revision, "oldest": newest.module.oldest_code},
    )


def _line(error: DBAPIError) -> str:
    """Return the message of the server or the driver, in one line and without the statement."""
    lines = [line.strip() for line in str(error.orig).splitlines() if line.strip()]
    return lines[0] if lines else type(error.orig).__name__
