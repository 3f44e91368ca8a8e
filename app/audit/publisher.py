"""Publishes the newest hash of every audit log once a day, and deletes entries past their retention time."""

from collections.abc import Callable

import structlog
from sqlalchemy import Connection

from app.core.background import Periodic
from app.core.identifiers import EVENT_PREFIX, derived_id
from app.core.timestamps import DAY, now_seconds
from app.database.interface import Database
from app.store.audit import SERVICE, LogHead, delete_entries, due_heads, log_head, mark_published
from app.store.feed import append_event

_log = structlog.get_logger(__name__)

#: Seconds between two checks for due heads.
_INTERVAL = 60.0
#: Maximum number of entries deleted in one transaction, so that payments do not wait for a long transaction.
_BATCH = 500


class HeadPublisher(Periodic):
    """Sends the head of each audit log, its newest hash, as an event and a log line: once a day.

    The first head is sent a day after the log's first entry. Anyone who keeps a head can check later that the entries
    up to it are unchanged, until the head's own entry is deleted. The service's own audit log belongs to no
    organisation, so its head is only a log line. Entries are kept for ``days``, or forever if ``days`` is 0. ``clock``
    returns the Unix time in seconds.
    """

    name = "audit_heads"

    def __init__(self, db: Database, *, days: int, clock: Callable[[], float] = now_seconds) -> None:
        super().__init__(_INTERVAL)
        self._db = db
        self._kept_ms = days * DAY
        self._clock = clock

    async def tick(self) -> int:
        """For each log with a due head, delete old entries and send the head. Return the number of heads sent."""
        now = int(self._clock() * 1000)
        sent = 0
        for due in await self._db.read(lambda conn: due_heads(conn, now - DAY)):
            if self._kept_ms:
                await self._delete(due.log, now - self._kept_ms)
            head = await self._db.write(lambda conn, due=due: _publish(conn, due, now))  # type: ignore[misc]
            if head is not None:
                _log.info("audit_head", log=head.log, number=head.number, hash=head.hash)
                sent += 1
        return sent

    async def _delete(self, log: str, before: int) -> None:
        while await self._db.write(lambda conn: delete_entries(conn, log, before, most=_BATCH)) == _BATCH:
            pass


def _publish(conn: Connection, due: LogHead, now: int) -> LogHead | None:
    """Mark a log's current head as sent, add the event for its organisation, and return the head.

    The service's own log gets no event. Returns None if the log is empty or another process has sent the head.
    """
    head = log_head(conn, due.log)
    if head is None or not mark_published(conn, due, now):
        return None
    if head.log != SERVICE:
        append_event(
            conn,
            event_id=derived_id(EVENT_PREFIX, head.log, "audit.head", str(now)),
            org=head.log,
            type="audit.head",
            timestamp=now,
            summary=f"The newest entry of the audit log has the number {head.number}",
            payload={"number": head.number, "hash": head.hash},
        )
    return head
