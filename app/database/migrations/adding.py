"""Adds columns in a revision, on both databases."""

from typing import Any

from alembic import op
from sqlalchemy import Column


def on_postgresql() -> bool:
    """Return True if the revision upgrades a PostgreSQL database."""
    return op.get_bind().dialect.name == "postgresql"


def add_columns(table: str, *columns: Column[Any]) -> None:
    """Add columns to a table. On PostgreSQL, skips existing columns. SQLite has no such option."""
    for one in columns:
        op.add_column(table, one, if_not_exists=on_postgresql())
