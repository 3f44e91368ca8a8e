"""Signals between the nodes on one database: hints that something is new, behind which everybody looks anyway."""

from sqlalchemy import Connection, text

CHANNEL = "agent_vault"
ROWS = "rows"
"""Events of the chain were applied to the read models."""
RULES = "rules"
"""Rules of alerts changed."""
KEYS = "keys"
"""An API key was revoked or rotated."""
EXPORTS = "exports"
"""An export was requested."""

_NOTIFY = text("SELECT pg_notify(:channel, :what)")


def signal(connection: Connection, what: str) -> None:
    """Tell the other nodes at the commit; on SQLite there are none. The same signal twice in a transaction is one."""
    if connection.dialect.name == "postgresql":
        connection.execute(_NOTIFY, {"channel": CHANNEL, "what": what})
