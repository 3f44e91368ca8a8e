"""The records of API keys, cached for the requests that present the keys."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from app.database.interface import Database
from app.store.keys import ApiKey, api_key_by_digest


@dataclass(frozen=True, slots=True, eq=False)
class _Reading:
    """A running read of a key's record.

    ``changes`` is the number of key changes known before the read. The result may be used until the timer reads
    ``until`` seconds.
    """

    changes: int
    until: float
    record: asyncio.Task[ApiKey | None]


class KeyRecords:
    """Finds keys by their digest, and caches each key for ``cache_seconds``, measured by ``timer``."""

    def __init__(self, db: Database, cache_seconds: float, timer: Callable[[], float]) -> None:
        self._db = db
        self._cache_seconds = cache_seconds
        self._timer = timer
        self._cache: dict[str, tuple[float, ApiKey]] = {}
        self._readings: dict[str, _Reading] = {}
        self._changes = 0

    async def find(self, digest: str) -> ApiKey | None:
        """Return the key with this digest, even an ended one, or None."""
        until, cached = self._cache.get(digest, (0.0, None))
        if cached is not None and self._timer() < until:
            return cached
        self._cache.pop(digest, None)
        reading = self._reading_of(digest)
        found = await asyncio.shield(reading.record)
        # Do not cache the record if any key has changed during the read, because this key may have been revoked.
        if found is not None and reading.changes == self._changes:
            self._cache[digest] = (reading.until, found)
        return found

    def forget(self) -> None:
        """Empty the cache."""
        self._cache.clear()
        self._changes += 1

    def _reading_of(self, digest: str) -> _Reading:
        """Return the running read of a key's record, or start one.

        Concurrent requests share a running read until the cache time is over or any key has changed.
        """
        running = self._readings.get(digest)
        if running is not None and running.changes == self._changes and self._timer() < running.until:
            return running
        record = asyncio.create_task(self._db.read(lambda conn: api_key_by_digest(conn, digest)))
        # The cache time starts before the read. If another node revokes the key during the read, the key still stops
        # working within the cache time.
        reading = _Reading(self._changes, self._timer() + self._cache_seconds, record)
        self._readings[digest] = reading

        def ended(done: asyncio.Task[ApiKey | None]) -> None:
            if self._readings.get(digest) is reading:
                del self._readings[digest]
            # Retrieve the exception here: possibly no request waits for the read any more.
            if not done.cancelled():
                done.exception()

        record.add_done_callback(ended)
        return reading
