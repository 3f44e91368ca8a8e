"""Store the number of refusals of a row, the daily numbers of a wallet's records, and the resources to drop first."""

from alembic import op
from sqlalchemy import BigInteger, Column, Integer, String, text

from app.database.migrations.adding import add_columns

revision = "0008"
down_revision = "0009"
oldest_code = "0001"


def upgrade() -> None:
    """Add the columns, the table and the indexes."""
    for table in ("attempts", "transactions"):
        add_columns(table, Column("refusals", Integer))
    kept = Column("kept_for", String), Column("kept_bytes", Integer)
    add_columns("idempotency", *kept, Column("reduced", String))
    op.create_table(
        "daily_counts",
        Column("wallet_id", String, primary_key=True),
        Column("kind", String, primary_key=True),
        Column("day", BigInteger, nullable=False),
        Column("count", Integer, nullable=False),
        if_not_exists=True,
    )
    for name, table, columns, where in (
        ("attempts_unreported", "attempts", ["created_at"], text("refusals IS NOT NULL AND ended_at IS NULL")),
        ("idempotency_kept", "idempotency", ["kept_for", "created_at", "kept_bytes"], text("reduced IS NOT NULL")),
    ):
        op.create_index(name, table, columns, if_not_exists=True, sqlite_where=where, postgresql_where=where)
