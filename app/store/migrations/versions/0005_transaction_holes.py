"""Add the table of unreadable transactions; on SQLite they are in the indexer's own file."""

from alembic import op

revision = "0005"
down_revision = "0004"
oldest_code = "0001"


def upgrade() -> None:
    """Create the table and its indexes."""
    if op.get_bind().dialect.name == "postgresql":
        text, whole = 'TEXT COLLATE "C"', "BIGINT NOT NULL"
        op.execute(
            f"CREATE TABLE chain_transaction_holes (signature {text} PRIMARY KEY, slot {whole}, reason {text} NOT NULL,"
            f" since {whole}, retry_at {whole})"
        )
        op.execute("CREATE INDEX chain_transaction_holes_due ON chain_transaction_holes (retry_at)")
        op.execute("CREATE INDEX chain_transaction_holes_by_age ON chain_transaction_holes (since, signature)")
