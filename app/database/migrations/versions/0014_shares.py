"""Add the author of an export, the wallet of an e-mail about an alert, and the number of e-mails that one sums up."""

from sqlalchemy import Column, Integer, String

from app.database.migrations.adding import add_columns

revision = "0014"
down_revision = "0016"
oldest_code = "0001"


def upgrade() -> None:
    """Add the columns."""
    add_columns("exports", Column("requested_by", String))
    add_columns("alert_mails", Column("wallet_id", String), Column("omitted", Integer))
