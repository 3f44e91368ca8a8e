"""Add the manifests of accounting files."""

from sqlalchemy import Column, String

from app.database.migrations.adding import add_columns

revision = "0021"
down_revision = "0020"
oldest_code = "0001"


def upgrade() -> None:
    """Add the column."""
    add_columns("exports", Column("manifest", String))
