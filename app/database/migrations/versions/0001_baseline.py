"""The first schema. Databases that were created since have its tables from the start."""

revision = "0001"
down_revision = None
oldest_code = "0001"


def upgrade() -> None:
    """Do nothing: the oldest databases are of this revision already."""
