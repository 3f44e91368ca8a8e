"""Signals between the nodes on one database: hints that something is new, behind which everybody looks anyway."""

from sqlalchemy import Connection

from app.store.prepared import at_commit

CHANNEL = "agent_vault"
ROWS = "rows"
"""Events of the chain were applied to the read models."""
RULES = "rules"
"""Rules of alerts changed."""
KEYS = "keys"
"""An API key was revoked or rotated."""
EXPORTS = "exports"
"""An export was requested."""


def signal(connection: Connection, what: str) -> None:
    """Tell the other nodes at the commit; on SQLite there are none. The same signal twice in a transaction is one.

    What one piece of work signals is told even if that piece fails and others are committed: it is a hint.
    """
    if connection.dialect.name == "postgresql":
        at_commit(connection, f"NOTIFY {CHANNEL}, '{what}'")
