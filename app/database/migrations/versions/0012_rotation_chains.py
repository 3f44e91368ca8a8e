"""Add the key that an API key replaced in a rotation."""

from alembic import op

revision = "0012"
down_revision = "0011"
oldest_code = "0001"


def upgrade() -> None:
    """Add the column. The rotations come from the audit log, as far as it still has them."""
    postgresql = op.get_bind().dialect.name == "postgresql"
    text, unless = ('VARCHAR COLLATE "C"', "IF NOT EXISTS ") if postgresql else ("VARCHAR", "")
    op.execute(f"ALTER TABLE api_keys ADD COLUMN {unless}replaces {text}")
    op.execute(
        "UPDATE api_keys SET replaces = (SELECT min(details ->> 'replaces') FROM audit_entries WHERE log = api_keys.org"
        " AND action = 'key.rotate' AND object = api_keys.key_id)"
    )
