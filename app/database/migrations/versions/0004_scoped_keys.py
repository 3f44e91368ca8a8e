"""Add the scope of idempotency keys. Keys without a scope belong to the whole organisation until they expire."""

from alembic import op

revision = "0004"
down_revision = "0003"
oldest_code = "0001"


def upgrade() -> None:
    """Add the column."""
    postgresql = op.get_bind().dialect.name == "postgresql"
    column = 'IF NOT EXISTS scope VARCHAR COLLATE "C"' if postgresql else "scope VARCHAR"
    op.execute(f"ALTER TABLE idempotency ADD COLUMN {column}")
