"""The history of the schema: Alembic's environment and, in `versions`, its revisions.

Changing a table takes a new revision in `versions`, its id in `REVISIONS`, and the change of the table itself; a test
compares the two schemas.
"""

from sqlalchemy import Connection, inspect, text

from app.core.paths import ConfigurationError

REVISIONS = ("0001",)
"""All revisions, oldest first. Listed here because importing Alembic takes longer than opening a database."""


def migrate(connection: Connection) -> None:
    """Bring the database to the newest revision, in the connection's transaction.

    Raises `ConfigurationError` if the database has a schema that this version does not know.
    """
    tables = inspect(connection).get_table_names()
    if tables:
        versioned = "alembic_version" in tables
        found = connection.scalar(text("SELECT version_num FROM alembic_version")) if versioned else "unversioned"
        if found == REVISIONS[-1]:
            return
        if found not in REVISIONS:
            path = connection.engine.url.database
            raise ConfigurationError(f"{path}: its schema is {found}, this version knows up to {REVISIONS[-1]}")
    _upgrade(connection)


def _upgrade(connection: Connection) -> None:
    from alembic import command  # noqa: PLC0415 - takes 0.1 s, and most starts have nothing to upgrade
    from alembic.config import Config  # noqa: PLC0415

    config = Config(attributes={"connection": connection})
    config.set_main_option("script_location", "app.store:migrations")
    config.set_main_option("path_separator", "os")
    command.upgrade(config, "head")
