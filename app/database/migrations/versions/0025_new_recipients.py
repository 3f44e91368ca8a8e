"""Add the cap of new recipients to policies."""

from sqlalchemy import BigInteger, Column

from app.database.migrations.adding import add_columns

revision = "0025"
down_revision = "0024"
oldest_code = "0001"


def upgrade() -> None:
    """Add the column."""
    add_columns("policies", Column("new_recipient_cap", BigInteger))
