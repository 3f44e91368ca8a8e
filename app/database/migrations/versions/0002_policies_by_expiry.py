"""Index the policies by their expiry, which the keeper queries every second, and the streams with a missing event."""

from alembic import op

revision = "0002"
down_revision = "0001"
oldest_code = "0001"


def upgrade() -> None:
    """Create the indexes. On SQLite, skip the streams, which are in the indexer's own file."""
    op.create_index("policies_by_expiry", "policies", ["expiry"])
    if op.get_bind().dialect.name == "postgresql":
        op.execute("CREATE INDEX chain_streams_with_gaps ON chain_streams (stream) WHERE last <> count")
