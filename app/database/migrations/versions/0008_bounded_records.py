"""Store the number of refusals of a row, the daily numbers of a wallet's records, and the resources to drop first."""

from alembic import op

revision = "0008"
down_revision = "0009"
oldest_code = "0001"


def upgrade() -> None:
    """Add the columns, the table and the indexes."""
    postgresql = op.get_bind().dialect.name == "postgresql"
    text, there = ('VARCHAR COLLATE "C"', "IF NOT EXISTS ") if postgresql else ("VARCHAR", "")
    for table, column in (
        ("attempts", "refusals INTEGER"),
        ("transactions", "refusals INTEGER"),
        ("idempotency", f"kept_for {text}"),
        ("idempotency", "kept_bytes INTEGER"),
        ("idempotency", f"reduced {text}"),
    ):
        op.execute(f"ALTER TABLE {table} ADD COLUMN {there}{column}")
    op.execute(
        f"CREATE TABLE IF NOT EXISTS daily_counts (wallet_id {text} NOT NULL, kind {text} NOT NULL,"
        " day BIGINT NOT NULL, count INTEGER NOT NULL, PRIMARY KEY (wallet_id, kind))"
    )
    for name, columns, where in (
        ("attempts_unreported ON attempts", "created_at", "refusals IS NOT NULL AND ended_at IS NULL"),
        ("idempotency_kept ON idempotency", "kept_for, created_at, kept_bytes", "reduced IS NOT NULL"),
    ):
        op.execute(f"CREATE INDEX IF NOT EXISTS {name} ({columns}) WHERE {where}")
