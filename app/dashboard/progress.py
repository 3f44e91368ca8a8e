"""How far things have come: what tells a page that it has missed something."""

from collections.abc import Collection
from dataclasses import dataclass

from sqlalchemy import Connection

from app.core.actors import Actor
from app.store.audit import log_lengths
from app.store.feed import last_position
from app.store.feed_readers import MOST, count_unread


@dataclass(frozen=True, slots=True)
class Progress:
    """How far an organisation had come, by one look at the database.

    Every event of the feed and every entry of the organisation's audit log raises the ``total``. ``position`` is that
    of the feed's last event; ``unread`` are the alerts that somebody has not read, as `count_unread` counts them.
    """

    total: int = 0
    position: int = 0
    unread: int = 0

    @property
    def counted(self) -> str:
        """The number of unread alerts as it is shown: `3`, or `99+`."""
        return f"{MOST}+" if self.unread > MOST else str(self.unread)


def progress(conn: Connection, org: str, reader: Actor) -> Progress:
    """Return how far an organisation has come, and what of it somebody has not read."""
    position = last_position(conn)
    reached = total(position, log_lengths(conn, [org]), [org])[org]
    return Progress(reached, position, count_unread(conn, org, reader))


def total(position: int, lengths: dict[str, int], orgs: Collection[str]) -> dict[str, int]:
    """Return the total of organisations, from what the feed and their audit logs have reached in the same transaction.

    Both only grow, so that their sum is higher exactly when something came.
    """
    return {org: position + lengths.get(org, 0) for org in orgs}
