"""Add the budget that holds an allowance, and the surplus of an escrow."""

from sqlalchemy import BigInteger, Column, String

from app.database.migrations.adding import add_columns

revision = "0017"
down_revision = "0015"
oldest_code = "0001"


def upgrade() -> None:
    """Add the columns."""
    add_columns("allowances", Column("budget", String))
    add_columns("escrows", Column("surplus", BigInteger))
