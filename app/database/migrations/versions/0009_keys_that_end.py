"""Add the end, the allowed addresses and the creator of API keys, and the creator of people."""

from alembic import op
from sqlalchemy import JSON, BigInteger, Boolean, Column, String

from app.database.migrations.adding import add_columns
from app.database.record_tables import FALSE

revision = "0009"
down_revision = "0006"
oldest_code = "0001"


def upgrade() -> None:
    """Add the columns. The creators of keys come from the audit log, as far as it still has them."""
    restrictions = Column("expires_at", BigInteger), Column("allowed_addresses", JSON)
    add_columns("api_keys", *restrictions, Column("created_by", String))
    add_columns("people", Column("created_by", String))
    add_columns("organisations", Column("restricts_keys", Boolean, FALSE, nullable=False))
    op.execute(
        "UPDATE api_keys SET created_by = (SELECT min(actor) FROM audit_entries WHERE log = api_keys.org"
        " AND action IN ('key.create', 'key.rotate') AND object = api_keys.key_id)"
    )
