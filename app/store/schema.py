"""Creates the tables of a new database: the service's and, on PostgreSQL, the indexer's."""

from importlib import import_module
from pkgutil import iter_modules

from sqlalchemy import Connection, MetaData

import app.database
import app.store
from app.database.columns import metadata
from indexer import schema


def tables() -> MetaData:
    """Return the service's tables."""
    for package in (app.database, app.store):
        # A module adds its tables to the metadata when it is imported.
        for module in iter_modules(package.__path__, f"{package.__name__}."):
            import_module(module.name)
    return metadata


def create_tables(connection: Connection) -> None:
    """Create all tables and indexes in an empty database."""
    tables().create_all(connection, checkfirst=False)
    if connection.dialect.name == "postgresql":
        schema.metadata.create_all(connection, checkfirst=False)
