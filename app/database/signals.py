"""Signals between the nodes on one database: something is new. They may be lost, so everybody looks anyway."""

from collections.abc import Sequence

from sqlalchemy import Connection

from app.database.statements import at_commit

CHANNEL = "agent_vault_channel"
"""The execution option with the name of the channel. Whoever may connect to a database may send on each channel of it,
so the name is derived from the service's secret: only its nodes know it, and they believe what they hear there. Others
cannot see it either, except for who reads the tables anyway: the account of the nodes and superusers."""
_LONGEST = 8_000
"""Bytes of a notification, at which PostgreSQL refuses it."""
ROWS = "rows"
"""Events of the chain were applied to the read models: those of the transactions that it names as HASH:SLOT."""
RULES = "rules"
"""Rules of alerts changed."""
KEYS = "keys"
"""An API key was revoked or rotated."""
EXPORTS = "exports"
"""An export was requested."""
GUARD = "guard"
"""The guard against forgotten payments was raised."""


def signal(connection: Connection, what: str, about: Sequence[str] = ()) -> None:
    """Tell the other nodes at the commit; without a channel there are none. A signal twice in a transaction is one.

    ``about`` names what is new, and is left out if it is too long.
    """
    channel = connection.get_execution_options().get(CHANNEL)
    if channel is not None:
        text = " ".join([what, *dict.fromkeys(about)]).replace("'", "''")
        at_commit(connection, f"NOTIFY {channel}, '{text if len(text) < _LONGEST else what}'")
