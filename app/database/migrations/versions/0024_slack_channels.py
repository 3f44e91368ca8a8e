"""Add the Slack channels that receive messages about approvals."""

from alembic import op
from sqlalchemy import BigInteger, Column, String

revision = "0024"
down_revision = "0023"
oldest_code = "0001"


def upgrade() -> None:
    """Create the table."""
    op.create_table(
        "slack_channels",
        Column("channel_id", String, primary_key=True),
        *(Column(name, String, nullable=False) for name in ("org", "name", "host", "url", "status")),
        Column("changed_at", BigInteger, nullable=False),
        if_not_exists=True,
    )
    op.create_index("slack_channels_by_org", "slack_channels", ["org", "name"], if_not_exists=True)
