"""Add the rule about approvals that a pending change of a policy puts in force."""

from sqlalchemy import JSON, Column

from app.database.migrations.adding import add_columns

revision = "0023"
down_revision = "0022"
oldest_code = "0001"


def upgrade() -> None:
    """Add the column."""
    add_columns("policy_details", Column("approvals_next", JSON))
