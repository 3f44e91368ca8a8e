"""Add the table of unreadable transactions. On SQLite, they are in the indexer's own file."""

from alembic import op

revision = "0005"
down_revision = "0004"
oldest_code = "0001"


def upgrade() -> None:
    """Create the table and its indexes."""
    if op.get_bind().dialect.name == "postgresql":
        text, whole, table = 'TEXT COLLATE "C"', "BIGINT NOT NULL", "chain_transaction_holes"
        op.execute(
            f"CREATE TABLE IF NOT EXISTS {table} (signature {text} PRIMARY KEY, slot {whole}, reason {text} NOT NULL,"
            f" since {whole}, retry_at {whole})"
        )
        for name, columns in ((f"{table}_due", "retry_at"), (f"{table}_by_age", "since, signature")):
            op.execute(f"CREATE INDEX IF NOT EXISTS {name} ON {table} ({columns})")
