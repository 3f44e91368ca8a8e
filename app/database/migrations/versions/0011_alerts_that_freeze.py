"""Add the column of alert rules that freeze the wallet."""

from sqlalchemy import Boolean, Column

from app.database.migrations.adding import add_columns
from app.database.record_tables import FALSE

revision = "0011"
down_revision = "0007"
oldest_code = "0001"


def upgrade() -> None:
    """Add the column."""
    add_columns("alert_rules", Column("freezes", Boolean, FALSE, nullable=False))
