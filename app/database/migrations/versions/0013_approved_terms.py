"""Add the terms of an escrow to its approval and to the request for it."""

from sqlalchemy import JSON, Column, String

from app.database.migrations.adding import add_columns

revision = "0013"
down_revision = "0012"
oldest_code = "0001"


def upgrade() -> None:
    """Add the columns. Earlier approvals of escrows name no terms, so the program refuses them."""
    add_columns("approvals", Column("terms", String))
    add_columns("approval_requests", Column("terms", String), Column("escrow_terms", JSON))
