"""Writes audit log entries that belong to no other database transaction, or that are too urgent to wait for one."""

import asyncio
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import structlog
from sqlalchemy import Connection

from app.access.credential_events import report_outside
from app.access.keyring import Principal
from app.access.rate_limit import network_of
from app.core.actors import Actor
from app.core.background import Periodic
from app.core.timestamps import iso_ms, now_ms
from app.database.interface import WRITE_ERRORS, Database
from app.store.audit import SERVICE, NewLogEntry, append
from app.store.keys import api_key_by_id

_log = structlog.get_logger(__name__)

#: Seconds between two checks for entries that wait for the database.
_INTERVAL = 1.0
#: Seconds during which failed authentications and repeated refusals are counted before the counts are written.
PERIOD = 60.0
#: Maximum number of client networks counted separately in one period, and number of the most frequent ones that the
#: period's audit log entry lists.
_MAX_NETWORKS, _NAMED = 1_000, 10
#: Number of waiting entries from which new refusals are only counted.
_MAX_WAITING = 10_000


class Recorder(Periodic):
    """Queues entries in memory and writes them immediately, or once the database is writable again.

    No caller waits for it. Clients can cause failed authentications and refusals without limit, so these are counted.
    Failed authentications become at most one row a minute. For each caller, operation and reason, the first refusal in
    a minute becomes a row, and its repeats become one more. Uses of a key outside its addresses are counted in the same
    way, for each operation and client network. ``timer`` returns the seconds that measure the minutes.
    """

    name = "audit"

    def __init__(self, db: Database, *, timer: Callable[[], float] = time.monotonic) -> None:
        super().__init__(_INTERVAL)
        self._db = db
        self._timer = timer
        self._waiting: list[NewLogEntry] = []
        self._writing: asyncio.Task[int] | None = None
        self._began = timer()
        self._failures: Counter[str] = Counter()
        self._since = 0
        self._refused: dict[tuple[object, ...], tuple[NewLogEntry, int]] = {}

    def later(self, entry: NewLogEntry) -> None:
        """Queue an entry. It is written as soon as possible."""
        self._waiting.append(entry)
        self.wake()

    def failed(self, client: str | None) -> None:
        """Count a failed authentication under the network of the client's address."""
        network = network_of(client)
        if not self._failures:
            self._since = now_ms()
        if network not in self._failures and len(self._failures) >= _MAX_NETWORKS:
            network = ""
        self._failures[network] += 1

    def refused(self, principal: Principal, operation: str, **details: str) -> None:
        """Record that an operation of ``principal`` was refused. Equal refusals in the same minute are only counted."""
        self._counted(principal.entry("access.refused", operation=operation, **details), operation, *details.values())

    def used_outside(self, principal: Principal, operation: str) -> None:
        """Record and report that a key was used outside its addresses. Equal uses in the same minute are only counted.

        The event is sent at most once an hour for each key and client network.
        """
        entry = principal.entry("key.use_outside", principal.key_id, operation=operation)
        self._counted(entry, operation, network_of(principal.address))

    def _counted(self, entry: NewLogEntry, *alike: str) -> None:
        which = (entry.log, entry.actor, entry.action, *alike)
        first, repeats = self._refused.get(which, (None, 0))
        if first is not None:
            self._refused[which] = (first, repeats + 1)
            return
        if len(self._waiting) < _MAX_WAITING:
            self._refused[which] = (entry, 0)
            self.later(entry.about(count=1))
        else:
            self._refused[which] = (entry, 1)

    async def stop(self) -> None:
        """Stop, and write the queued entries and the counts. If they cannot be written, their number is logged."""
        await super().stop()
        if self._writing is not None:
            await asyncio.gather(self._writing, return_exceptions=True)
        self._close_period()
        try:
            await self._write()
        except WRITE_ERRORS as error:
            _log.error("audit_entries_lost", entries=len(self._waiting), error=str(error))

    async def tick(self) -> int:
        """Write the waiting entries and return their number."""
        if self._timer() - self._began >= PERIOD:
            self._close_period()
        return await self._write()

    async def _write(self) -> int:
        if self._writing is None or self._writing.done():
            if not self._waiting:
                return 0
            batch, self._waiting = self._waiting, []
            self._writing = asyncio.create_task(self._store(batch), name="audit_write")
        # Shielded, because an abandoned write may still commit. Its entries would then be written twice.
        return await asyncio.shield(self._writing)

    async def _store(self, batch: list[NewLogEntry]) -> int:
        try:
            await self._db.write(lambda conn: _append(conn, batch))
        except BaseException:
            self._waiting = batch + self._waiting
            raise
        return len(batch)

    def _close_period(self) -> None:
        """Queue one entry for all failed authentications and one for each repeated refusal or use."""
        self._began = self._timer()
        failures, self._failures = self._failures, Counter()
        if failures:
            details: dict[str, Any] = {
                "count": failures.total(),
                "since": iso_ms(self._since),
                "networks": [{"network": name, "count": count} for name, count in failures.most_common(_NAMED)],
            }
            self.later(NewLogEntry(SERVICE, "authentication.failed", Actor("system", "api"), details=details))
        refused, self._refused = self._refused, {}
        for entry, repeats in refused.values():
            if repeats:
                self.later(replace(entry.about(count=repeats), timestamp=now_ms()))


def _append(conn: Connection, batch: list[NewLogEntry]) -> None:
    for entry in batch:
        append(conn, entry)
        key = api_key_by_id(conn, entry.actor.id) if entry.action == "key.use_outside" else None
        if key is not None:
            report_outside(conn, key, entry.address, network_of(entry.address), entry.timestamp)
