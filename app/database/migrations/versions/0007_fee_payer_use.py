"""Add the use of the fee payer per UTC day. It replaces the stored times of opened token accounts."""

from alembic import op
from sqlalchemy import BigInteger, Column, Integer, String

revision = "0007"
down_revision = "0008"
oldest_code = "0001"


def upgrade() -> None:
    """Create the table and its index, and delete the replaced values."""
    op.create_table(
        "fee_payer_use",
        Column("scope", String, primary_key=True),
        Column("day", Integer, primary_key=True, autoincrement=False),
        Column("lamports", BigInteger, nullable=False),
        Column("token_accounts", Integer, nullable=False),
        if_not_exists=True,
    )
    op.create_index("fee_payer_use_by_day", "fee_payer_use", ["day"], if_not_exists=True)
    op.execute("DELETE FROM setting_values WHERE name LIKE 'token_accounts_opened:%'")
