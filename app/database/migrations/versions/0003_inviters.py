"""Store the inviter with each invitation, so that the invitation ends when its inviter is removed."""

from alembic import op
from sqlalchemy import Column, String

from app.database.migrations.adding import add_columns

revision = "0003"
down_revision = "0002"
oldest_code = "0001"


def upgrade() -> None:
    """Add the column, and fill it from the audit log, which has always recorded the inviter."""
    add_columns("invitations", Column("invited_by", String))
    op.execute(
        "UPDATE invitations SET invited_by = (SELECT min(actor) FROM audit_entries WHERE log = invitations.org"
        " AND action = 'person.invite' AND object = invitations.invitation_id)"
    )
