"""Add policies' rules about approvals, the approvals that people have given, and reasons of rejections."""

from alembic import op
from sqlalchemy import JSON, BigInteger, Column, String, text

from app.database.migrations.adding import add_columns

revision = "0020"
down_revision = "0019"
oldest_code = "0001"


def upgrade() -> None:
    """Create the table and add the columns."""
    op.create_table(
        "approval_decisions",
        *(Column(name, String, primary_key=True) for name in ("subject", "person_id")),
        Column("decided_at", BigInteger, nullable=False),
        if_not_exists=True,
    )
    add_columns("policy_details", Column("approvals", JSON))
    add_columns(
        "approval_requests",
        Column("approvals_required", BigInteger, server_default=text("0"), nullable=False),
        Column("reason", String),
    )
