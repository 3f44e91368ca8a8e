"""Add the end, the allowed addresses and the creator of API keys, and the creator of people."""

from alembic import op

revision = "0009"
down_revision = "0006"
oldest_code = "0001"


def upgrade() -> None:
    """Add the columns. The creators of keys come from the audit log, as far as it still has them."""
    postgresql = op.get_bind().dialect.name == "postgresql"
    text, unless = ('VARCHAR COLLATE "C"', "IF NOT EXISTS ") if postgresql else ("VARCHAR", "")
    for table, column in (
        ("api_keys", "expires_at BIGINT"),
        ("api_keys", "allowed_addresses JSON"),
        ("api_keys", f"created_by {text}"),
        ("people", f"created_by {text}"),
        ("organisations", f"restricts_keys BOOLEAN DEFAULT {'false' if postgresql else '0'} NOT NULL"),
    ):
        op.execute(f"ALTER TABLE {table} ADD COLUMN {unless}{column}")
    op.execute(
        "UPDATE api_keys SET created_by = (SELECT min(actor) FROM audit_entries WHERE log = api_keys.org"
        " AND action IN ('key.create', 'key.rotate') AND object = api_keys.key_id)"
    )
