"""Add the number of payments that a frozen, paused or empty wallet refused since its last event."""

from sqlalchemy import Column, Integer

from app.database.migrations.adding import add_columns

revision = "0018"
down_revision = "0017"
oldest_code = "0001"


def upgrade() -> None:
    """Add the column."""
    add_columns("alert_marks", Column("count", Integer))
