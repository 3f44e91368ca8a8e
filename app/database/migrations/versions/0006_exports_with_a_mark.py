"""Store which exports begin with a byte order mark. Earlier exports do not."""

from alembic import op

revision = "0006"
down_revision = "0005"
oldest_code = "0001"


def upgrade() -> None:
    """Add the column. Code of earlier versions inserts its default."""
    postgresql = op.get_bind().dialect.name == "postgresql"
    column = "IF NOT EXISTS bom BOOLEAN DEFAULT false" if postgresql else "bom BOOLEAN DEFAULT 0"
    op.execute(f"ALTER TABLE exports ADD COLUMN {column} NOT NULL")
