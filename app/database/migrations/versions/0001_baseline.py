"""Create the first schema from its frozen DDL, the `.sql` file next to this one."""

from pathlib import Path

from alembic import op

revision = "0001"
down_revision = None
oldest_code = "0001"


def upgrade() -> None:
    """Create all tables and indexes."""
    connection = op.get_bind()
    # Dialects differ in auto-increment keys, binary columns and predicates of partial indexes, so each has its own
    # file.
    ddl = Path(__file__).with_suffix(f".{connection.dialect.name}.sql").read_text(encoding="utf-8")
    for statement in filter(str.strip, ddl.split(";")):
        connection.exec_driver_sql(statement)
