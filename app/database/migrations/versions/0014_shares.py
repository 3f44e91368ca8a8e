"""Add the actor that requested an export, the wallet of an alert's e-mail, and the number of omitted e-mails."""

from sqlalchemy import Column, Integer, String

from app.database.migrations.adding import add_columns

revision = "0014"
down_revision = "0016"
oldest_code = "0001"


def upgrade() -> None:
    """Add the columns."""
    add_columns("exports", Column("requested_by", String))
    add_columns("alert_mails", Column("wallet_id", String), Column("omitted", Integer))
