"""Add the labels that payments keep, and spending by day and month. The projector fills both when it starts."""

from alembic import op
from sqlalchemy import BigInteger, Column, String

revision = "0019"
down_revision = "0018"
oldest_code = "0001"


def upgrade() -> None:
    """Create the tables and the index."""
    op.create_table(
        "transaction_labels",
        *(Column(name, String, primary_key=True) for name in ("tx_id", "kind", "key")),
        Column("org", String, nullable=False),
        Column("timestamp", BigInteger, nullable=False),
        if_not_exists=True,
    )
    columns = ["org", "kind", "key", "timestamp", "tx_id"]
    op.create_index("transaction_labels_newest", "transaction_labels", columns, if_not_exists=True)
    op.create_table(
        "spending",
        *(Column(name, String, primary_key=True) for name in ("org", "kind", "period", "key")),
        *(Column(name, BigInteger, nullable=False) for name in ("spent", "payments", "refused")),
        if_not_exists=True,
    )
