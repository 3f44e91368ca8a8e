"""Signals notify the other nodes on a database of changes. Signals may be lost, so every node also polls."""

from collections.abc import Sequence

from sqlalchemy import Connection

from app.database.statements import at_commit

CHANNEL = "agent_vault_channel"
"""The execution option with the name of the channel. Any account that can connect to a database can send on all of its
channels. The name is therefore derived from the service's secret, so that only the service's nodes know the name. The
nodes trust the signals on this channel. In the database, only the nodes' own account and superusers can see the name,
and both can read the tables anyway."""
_LONGEST = 8_000
"""PostgreSQL refuses a notification with this number of bytes or more."""
ROWS = "rows"
"""Events were applied to the read models. The signal may name their transactions, each as MESSAGE_HASH:SLOT."""
RULES = "rules"
"""Alert rules changed."""
KEYS = "keys"
"""An API key was revoked or rotated."""
EXPORTS = "exports"
"""An export was requested."""
GUARD = "guard"
"""The database guard was activated, because payments may have been lost."""


def signal(connection: Connection, what: str, about: Sequence[str] = ()) -> None:
    """Signal the other nodes at the commit, if there is a channel. Equal signals in a transaction are sent once.

    ``about`` names the changed objects, and is omitted if it is too long.
    """
    channel = connection.get_execution_options().get(CHANNEL)
    if channel is not None:
        text = " ".join([what, *dict.fromkeys(about)]).replace("'", "''")
        at_commit(connection, f"NOTIFY {channel}, '{text if len(text) < _LONGEST else what}'")
