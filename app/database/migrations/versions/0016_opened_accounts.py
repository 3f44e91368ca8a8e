"""Add the policies' permission to open token accounts for payees of paid requests."""

from sqlalchemy import Boolean, Column

from app.database.migrations.adding import add_columns
from app.database.record_tables import FALSE

revision = "0016"
down_revision = "0013"
oldest_code = "0001"


def upgrade() -> None:
    """Add the column."""
    add_columns("policy_details", Column("opens_accounts", Boolean, FALSE, nullable=False))
