"""Until when an operator lets a wallet's agent hold a session, however often the agent rotates its token."""

from collections.abc import Collection

from sqlalchemy import BigInteger, Column, Connection, String, Table, delete, insert, select

from app.database.columns import metadata

# A grant belongs to the session key, not to the wallet alone: the chain says which key is in force. A rotation that
# never landed, or one made without this service, thus neither extends nor replaces what an operator granted.
session_grants = Table(
    "session_grants",
    metadata,
    Column("wallet_id", String, primary_key=True),
    Column("session_authority", String, primary_key=True),
    Column("granted_until", BigInteger, nullable=False, comment="Unix seconds"),
)


def granted_until(connection: Connection, wallet_id: str, session_authority: str) -> int | None:
    """Return until when rotations that begin with this session may last; None if this service did not grant it."""
    table = session_grants
    asked = (table.c.wallet_id == wallet_id, table.c.session_authority == session_authority)
    found: int | None = connection.scalar(select(table.c.granted_until).where(*asked))
    return found


def store_grant(
    connection: Connection, wallet_id: str, session_authority: str, until: int, *, keep: Collection[str] = ()
) -> None:
    """Store a new session's grant and delete the wallet's others, except those of the sessions to ``keep``."""
    table = session_grants
    outdated = (table.c.wallet_id == wallet_id, table.c.session_authority.not_in(keep))
    connection.execute(delete(table).where(*outdated))
    row = {"wallet_id": wallet_id, "session_authority": session_authority, "granted_until": until}
    connection.execute(insert(table).values(row))
