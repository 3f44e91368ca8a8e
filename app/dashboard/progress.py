"""The growth of an organisation's feed and audit log, which shows a page whether it has missed a change."""

from collections.abc import Collection
from dataclasses import dataclass

from sqlalchemy import Connection

from app.core.actors import Actor
from app.store.approval_requests import count_waiting
from app.store.audit import log_lengths
from app.store.escrows import count_disputes
from app.store.feed import last_position
from app.store.feed_readers import MOST, count_unread
from app.store.organisations import name_and_pause


@dataclass(frozen=True, slots=True)
class Progress:
    """The progress of an organisation at one read of the database.

    Every event of the feed and every entry of the organisation's audit log raises the ``total``. ``position`` is the
    position of the feed's last event. ``unread`` is the number of alerts that the reader has not read, ``waiting`` the
    number of pending approvals, and ``disputed`` the number of disputes. Counting stops one above `MOST`.
    """

    total: int = 0
    position: int = 0
    unread: int = 0
    waiting: int = 0
    disputed: int = 0
    name: str = ""
    """The organisation's name."""
    paused: bool = False
    """True if all vaults of the organisation are paused."""

    def counted(self, name: str) -> str:
        """Return one of the numbers in the form shown on pages: `3` or `99+`."""
        number = getattr(self, name)
        return f"{MOST}+" if number > MOST else str(number)


def progress(conn: Connection, org: str, reader: Actor, now: int) -> Progress:
    """Return an organisation's progress and the numbers for the reader's menu.

    Approvals are counted if they are pending at the Unix millisecond `now`.
    """
    position = last_position(conn)
    reached = total(position, log_lengths(conn, [org]), [org])[org]
    waiting, disputed = count_waiting(conn, org, now, MOST + 1), count_disputes(conn, org, MOST + 1)
    return Progress(reached, position, count_unread(conn, org, reader), waiting, disputed, *name_and_pause(conn, org))


def total(position: int, lengths: dict[str, int], orgs: Collection[str]) -> dict[str, int]:
    """Return each organisation's total: the feed's position plus the length of the organisation's audit log.

    Both must be read in one transaction. Each new event or entry increases the total.
    """
    return {org: position + lengths.get(org, 0) for org in orgs}
