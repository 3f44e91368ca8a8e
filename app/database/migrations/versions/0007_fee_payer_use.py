"""Add the use of the fee payer per UTC day. It replaces the stored times of opened token accounts."""

from alembic import op

revision = "0007"
down_revision = "0008"
oldest_code = "0001"


def upgrade() -> None:
    """Create the table and its index, and delete the replaced values."""
    postgresql = op.get_bind().dialect.name == "postgresql"
    text = 'VARCHAR COLLATE "C"' if postgresql else "VARCHAR"
    op.execute(
        f"CREATE TABLE IF NOT EXISTS fee_payer_use (scope {text} NOT NULL, day INTEGER NOT NULL,"
        " lamports BIGINT NOT NULL, token_accounts INTEGER NOT NULL, PRIMARY KEY (scope, day))"
    )
    op.execute("CREATE INDEX IF NOT EXISTS fee_payer_use_by_day ON fee_payer_use (day)")
    op.execute("DELETE FROM setting_values WHERE name LIKE 'token_accounts_opened:%'")
