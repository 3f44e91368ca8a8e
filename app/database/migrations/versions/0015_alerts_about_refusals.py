"""Add the period in which an alert rule counts refusals."""

from sqlalchemy import Column, Integer

from app.database.migrations.adding import add_columns

revision = "0015"
down_revision = "0014"
oldest_code = "0001"


def upgrade() -> None:
    """Add the column."""
    add_columns("alert_rules", Column("minutes", Integer))
