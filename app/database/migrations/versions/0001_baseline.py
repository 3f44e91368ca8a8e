"""The first schema. Every database is at least at this revision."""

revision = "0001"
down_revision = None
oldest_code = "0001"


def upgrade() -> None:
    """Do nothing, because even the oldest databases have this schema."""
