"""Add the key that an API key replaced in a rotation."""

from alembic import op
from sqlalchemy import Column, String

from app.database.migrations.adding import add_columns

revision = "0012"
down_revision = "0011"
oldest_code = "0001"


def upgrade() -> None:
    """Add the column. The rotations come from the audit log, as far as it still has them."""
    add_columns("api_keys", Column("replaces", String))
    op.execute(
        "UPDATE api_keys SET replaces = (SELECT min(details ->> 'replaces') FROM audit_entries WHERE log = api_keys.org"
        " AND action = 'key.rotate' AND object = api_keys.key_id)"
    )
