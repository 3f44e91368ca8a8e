"""Store which exports begin with a byte order mark. Earlier exports do not."""

from sqlalchemy import Boolean, Column

from app.database.migrations.adding import add_columns
from app.database.record_tables import FALSE

revision = "0006"
down_revision = "0005"
oldest_code = "0001"


def upgrade() -> None:
    """Add the column. Code of earlier versions inserts its default."""
    add_columns("exports", Column("bom", Boolean, FALSE, nullable=False))
