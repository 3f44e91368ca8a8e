"""The progress of an organisation's events. A page that is behind may have missed a change."""

from collections.abc import Collection
from dataclasses import dataclass

from sqlalchemy import Connection

from app.core.actors import Actor
from app.store.audit import log_lengths
from app.store.feed import last_position
from app.store.feed_readers import MOST, count_unread


@dataclass(frozen=True, slots=True)
class Progress:
    """The progress of an organisation at one read of the database.

    Every event of the feed and every entry of the organisation's audit log raises the ``total``. ``position`` is the
    position of the feed's last event. ``unread`` is the reader's number of unread alerts, from `count_unread`.
    """

    total: int = 0
    position: int = 0
    unread: int = 0

    @property
    def counted(self) -> str:
        """The number of unread alerts in the form shown on pages: `3` or `99+`."""
        return f"{MOST}+" if self.unread > MOST else str(self.unread)


def progress(conn: Connection, org: str, reader: Actor) -> Progress:
    """Return an organisation's progress and the number of alerts that the reader has not read."""
    position = last_position(conn)
    reached = total(position, log_lengths(conn, [org]), [org])[org]
    return Progress(reached, position, count_unread(conn, org, reader))


def total(position: int, lengths: dict[str, int], orgs: Collection[str]) -> dict[str, int]:
    """Return each organisation's total: the feed's position plus the length of the organisation's audit log.

    Both must be read in one transaction. Each new event or entry increases the total.
    """
    return {org: position + lengths.get(org, 0) for org in orgs}
