"""Add the total, the end, the parent and the freeze of a budget."""

from sqlalchemy import BigInteger, Boolean, Column, String, false

from app.database.migrations.adding import add_columns

revision = "0022"
down_revision = "0021"
oldest_code = "0001"


def upgrade() -> None:
    """Add the columns."""
    add_columns(
        "budgets",
        Column("max_total", BigInteger),
        Column("expires_at", BigInteger),
        Column("parent", String),
        Column("frozen", Boolean, server_default=false(), nullable=False),
        Column("frozen_sequence", BigInteger, server_default="0", nullable=False),
    )
