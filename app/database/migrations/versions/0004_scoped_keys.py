"""Add the scope of idempotency keys. Keys without a scope belong to the whole organisation until they expire."""

from sqlalchemy import Column, String

from app.database.migrations.adding import add_columns

revision = "0004"
down_revision = "0003"
oldest_code = "0001"


def upgrade() -> None:
    """Add the column."""
    add_columns("idempotency", Column("scope", String))
