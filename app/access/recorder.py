"""Writes audit log entries that belong to no other database transaction, or that must not wait for that transaction."""

import asyncio
import math
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import structlog
from sqlalchemy import Connection

from app.access.credential_events import report_outside
from app.access.keyring import Principal
from app.access.rate_limit import network_of
from app.core.actors import Actor
from app.core.background import Periodic
from app.core.timestamps import DAY, iso_ms, now_ms
from app.database.interface import WRITE_ERRORS, Database
from app.store.audit import SERVICE, NewLogEntry, append
from app.store.keys import api_key_by_id

_log = structlog.get_logger(__name__)

#: Seconds between two checks for entries that wait for the database.
_INTERVAL = 1.0
#: Seconds during which failed authentications and repeated refusals are counted before the counts are written.
PERIOD = 60.0
#: Maximum number of a caller's first refusals in a UTC day that are counted by `PERIOD`. Later ones are counted by
#: `LONG_PERIOD`.
MAX_BY_MINUTE, LONG_PERIOD = 100, 3_600.0
#: Maximum number of client networks counted separately in one period, and number of the most frequent ones that the
#: period's audit log entry lists.
_MAX_NETWORKS, _NAMED = 1_000, 10
#: Maximum number of entries that wait for the database. Beyond it, new refusals are only counted.
_MAX_WAITING = 10_000


@dataclass(slots=True)
class _Count:
    """The number of repeats of an entry in its period, by client network."""

    entry: NewLogEntry
    ends: float
    networks: Counter[str] = field(default_factory=Counter)

    def add(self, client: str | None) -> None:
        network = network_of(client)
        if network not in self.networks and len(self.networks) >= _MAX_NETWORKS:
            network = ""
        self.networks[network] += 1

    def total(self) -> NewLogEntry:
        """Return the entry that reports all repeats, with their networks. Its time is the end of the period."""
        details: dict[str, Any] = {
            "count": self.networks.total(),
            "since": iso_ms(self.entry.timestamp),
            "networks": [{"network": name, "count": count} for name, count in self.networks.most_common(_NAMED)],
        }
        return replace(self.entry.about(**details), timestamp=now_ms())


class Recorder(Periodic):
    """Queues entries in memory and writes them immediately, or once the database is writable again.

    No caller waits for the recorder. Clients can cause failed authentications and refusals without limit, so their
    number of rows is limited. Failed authentications become at most one row a minute. For each caller, operation and
    reason, the first refusal in a minute becomes a row, and all its repeats become one more. Uses of a key outside its
    addresses are counted in the same way, for each operation and client network. Once a caller has caused
    `MAX_BY_MINUTE` first rows in a UTC day, the same counting continues per hour instead of per minute, without
    distinguishing networks. ``timer`` returns the seconds that measure the periods.
    """

    name = "audit"

    def __init__(self, db: Database, *, timer: Callable[[], float] = time.monotonic) -> None:
        super().__init__(_INTERVAL)
        self._db = db
        self._timer = timer
        self._waiting: list[NewLogEntry] = []
        self._writing: asyncio.Task[int] | None = None
        self._began = timer()
        self._counts: dict[tuple[object, ...], _Count] = {}
        self._day = 0
        self._firsts: Counter[tuple[object, ...]] = Counter()
        """Numbers of first rows of each caller in the UTC day."""

    def later(self, entry: NewLogEntry) -> None:
        """Queue an entry. It is written as soon as possible."""
        self._waiting.append(entry)
        self.wake()

    def failed(self, client: str | None) -> None:
        """Count a failed authentication under the network of the client's address."""
        entry = NewLogEntry(SERVICE, "authentication.failed", Actor("system", "api"))
        self._counts.setdefault((entry.action,), _Count(entry, self._began + PERIOD)).add(client)

    def refused(self, principal: Principal, operation: str, **details: str) -> None:
        """Record that an operation of ``principal`` was refused. Equal refusals in the same period are only counted."""
        self._counted(principal.entry("access.refused", operation=operation, **details))

    def used_outside(self, principal: Principal, operation: str) -> None:
        """Record and report that a key was used outside its addresses. Equal uses in the same period are only counted.

        The event is sent at most once an hour for each key and client network.
        """
        entry = principal.entry("key.use_outside", principal.key_id, operation=operation)
        self._counted(entry, network_of(principal.address))

    def _counted(self, entry: NewLogEntry, *minutely: str) -> None:
        """Queue an entry, or count it as a repeat.

        While entries are counted per minute, the values of ``minutely`` must also be equal for an entry to be a repeat.
        """
        caller = (entry.log, entry.actor, entry.action)
        alike = (*caller, *entry.details.values())
        count = self._counts.get((*alike, *minutely)) or self._counts.get(alike)
        if count is None:
            which, period = (alike, LONG_PERIOD) if self._is_frequent(caller) else ((*alike, *minutely), PERIOD)
            count = self._counts[which] = _Count(entry, self._began + period)
            if len(self._waiting) < _MAX_WAITING:
                self.later(entry.about(count=1))
                return
        count.add(entry.address)

    def _is_frequent(self, caller: tuple[object, ...]) -> bool:
        """Count a first row of a caller. Return True if the caller has already had `MAX_BY_MINUTE` of them today."""
        if (today := now_ms() // DAY) > self._day:
            self._day, self._firsts = today, Counter()
        self._firsts[caller] += 1
        return self._firsts[caller] > MAX_BY_MINUTE

    async def stop(self) -> None:
        """Stop, and write the queued entries and the counts.

        If the entries cannot be written, their number is logged.
        """
        await super().stop()
        if self._writing is not None:
            await asyncio.gather(self._writing, return_exceptions=True)
        self._close(math.inf)
        try:
            await self._write()
        except WRITE_ERRORS as error:
            _log.error("audit_entries_lost", entries=len(self._waiting), error=str(error))

    async def tick(self) -> int:
        """Write the waiting entries and return their number."""
        if self._timer() - self._began >= PERIOD:
            self._began = self._timer()
            self._close(self._began)
        return await self._write()

    async def _write(self) -> int:
        if self._writing is None or self._writing.done():
            if not self._waiting:
                return 0
            batch, self._waiting = self._waiting, []
            self._writing = asyncio.create_task(self._store(batch), name="audit_write")
        # The write is shielded: a cancelled one might still commit, and its entries would then be written twice.
        return await asyncio.shield(self._writing)

    async def _store(self, batch: list[NewLogEntry]) -> int:
        try:
            await self._db.write(lambda conn: _append(conn, batch))
        except BaseException:
            self._waiting = batch + self._waiting
            raise
        return len(batch)

    def _close(self, now: float) -> None:
        """For each period that has ended, queue an entry that reports the period's repeats."""
        ended = [which for which, count in self._counts.items() if count.ends <= now]
        for count in map(self._counts.pop, ended):
            if count.networks:
                self.later(count.total())


def _append(conn: Connection, batch: list[NewLogEntry]) -> None:
    for entry in batch:
        append(conn, entry)
        key = api_key_by_id(conn, entry.actor.id) if entry.action == "key.use_outside" else None
        if key is not None:
            report_outside(conn, key, entry.address, network_of(entry.address), entry.timestamp)
