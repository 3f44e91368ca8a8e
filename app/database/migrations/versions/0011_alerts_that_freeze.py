"""Add the column of alert rules that freeze the wallet."""

from alembic import op

revision = "0011"
down_revision = "0007"
oldest_code = "0001"


def upgrade() -> None:
    """Add the column."""
    default, unless = ("false", "IF NOT EXISTS ") if op.get_bind().dialect.name == "postgresql" else ("0", "")
    op.execute(f"ALTER TABLE alert_rules ADD COLUMN {unless}freezes BOOLEAN DEFAULT {default} NOT NULL")
