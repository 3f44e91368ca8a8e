"""Signals between the nodes on one database: hints that something is new, behind which everybody looks anyway."""

from collections.abc import Sequence

from sqlalchemy import Connection

from app.store.prepared import at_commit

CHANNEL = "agent_vault"
_LONGEST = 8_000
"""Bytes of a notification, at which PostgreSQL refuses it."""
ROWS = "rows"
"""Events of the chain were applied to the read models: those of the transactions with the message hashes it names."""
RULES = "rules"
"""Rules of alerts changed."""
KEYS = "keys"
"""An API key was revoked or rotated."""
EXPORTS = "exports"
"""An export was requested."""


def signal(connection: Connection, what: str, about: Sequence[str] = ()) -> None:
    """Tell the other nodes at the commit; on SQLite there are none. The same signal twice in a transaction is one.

    ``about`` names what is new, and is left out if it is too long.
    """
    if connection.dialect.name == "postgresql":
        text = " ".join([what, *dict.fromkeys(about)]).replace("'", "''")
        at_commit(connection, f"NOTIFY {CHANNEL}, '{text if len(text) < _LONGEST else what}'")
