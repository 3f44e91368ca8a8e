"""Operators' time limits for agents' sessions. A limit still applies after the agent has rotated its token."""

from collections.abc import Collection

from sqlalchemy import BigInteger, Column, Connection, String, Table, delete, insert, select

from app.database.columns import metadata

# A grant belongs to the session key, not to the wallet alone, because the chain determines the key in force. A rotation
# that never landed, or was made outside this service, therefore neither extends nor replaces an operator's grant.
session_grants = Table(
    "session_grants",
    metadata,
    Column("wallet_id", String, primary_key=True),
    Column("session_authority", String, primary_key=True),
    Column("granted_until", BigInteger, nullable=False, doc="Unix seconds"),
)


def granted_until(connection: Connection, wallet_id: str, session_authority: str) -> int | None:
    """Return the Unix second that limits this session and its rotations, or None if this service did not grant it."""
    table = session_grants
    asked = (table.c.wallet_id == wallet_id, table.c.session_authority == session_authority)
    found: int | None = connection.scalar(select(table.c.granted_until).where(*asked))
    return found


def store_grant(
    connection: Connection, wallet_id: str, session_authority: str, until: int, *, keep: Collection[str] = ()
) -> None:
    """Store a new session's grant and delete the wallet's other grants, except for the sessions in ``keep``."""
    table = session_grants
    outdated = (table.c.wallet_id == wallet_id, table.c.session_authority.not_in(keep))
    connection.execute(delete(table).where(*outdated))
    row = {"wallet_id": wallet_id, "session_authority": session_authority, "granted_until": until}
    connection.execute(insert(table).values(row))
