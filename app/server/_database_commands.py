"""`agent-vault db`."""

import click

from app.core.paths import ConfigurationError
from app.server._command_options import settings_of
from app.store._postgres_engine import SETTING, database_name, engine_of
from app.store.migrations import upgrade as upgrade_schema


@click.group("db")
def database() -> None:
    """Prepare a database on PostgreSQL."""


@database.command()
def upgrade() -> None:
    """Bring the database to this version's schema: a new one, too. With SQLite, `serve` does that."""
    settings = settings_of()
    if settings.database_url is None:
        raise ConfigurationError(f"name the database in {SETTING}; with SQLite, `serve` brings it to its schema")
    url = settings.database_url.get_secret_value()
    name, engine = database_name(url), engine_of(url)
    try:
        before, after = upgrade_schema(engine, name)
    finally:
        engine.dispose()
    if before == after:
        click.echo(f"{name}: its schema is {after} already")
    else:
        click.echo(f"{name}: its schema is {after} now" + (f", it was {before}" if before else ""))
