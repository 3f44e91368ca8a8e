"""Stores when API keys were last used; deletes old records."""

import time
from collections.abc import Callable

from app.access.keyring import KeyRing
from app.core.background import Periodic
from app.database.interface import Database
from app.store import exports, request_log
from app.store.retention import delete_events, delete_undecided_requests

#: Records deleted in one transaction, so that payments do not wait for a large one.
_BATCH = 500
_DAY_MS = 86_400_000


class KeyUse(Periodic):
    """Stores the last use of the keys that came to this process."""

    name = "key_use"

    def __init__(self, keys: KeyRing, *, interval: float) -> None:
        super().__init__(interval)
        self._keys = keys

    async def stop(self) -> None:
        """Stop, and store what is left."""
        await super().stop()
        await self._keys.note_use()

    async def tick(self) -> None:
        """Store what was used since the last round."""
        await self._keys.note_use()


class Housekeeping(Periodic):
    """Does a round every ``interval`` seconds.

    Keeps events and undecided requests for approvals for ``days`` by ``chain_clock``, which returns Unix milliseconds.
    Also deletes the records of exports without a file, and of the requests all but the last day's and an organisation's
    newest ``requests``, by ``clock``, which returns Unix seconds.
    """

    name = "housekeeping"

    def __init__(
        self,
        db: Database,
        *,
        interval: float,
        days: int,
        requests: int,
        chain_clock: Callable[[], int],
        clock: Callable[[], float] = time.time,
    ) -> None:
        super().__init__(interval)
        self._db = db
        self._kept_ms = days * _DAY_MS
        self._requests = requests
        self._chain_clock = chain_clock
        self._clock = clock

    async def tick(self) -> int:
        """Do one round and return how many records were deleted."""
        old = self._chain_clock() - self._kept_ms
        now, deleted = int(self._clock() * 1000), 0
        for delete, bound in (
            (delete_events, old),
            (delete_undecided_requests, old),
            (exports.forget, now - exports.KEPT_MS),
            (request_log.forget, now - request_log.KEPT_MS),
            (request_log.shorten, self._requests),
        ):
            deleted += await self._delete(delete, bound)
        return deleted

    async def _delete(self, delete: Callable[..., int], bound: int) -> int:
        deleted = 0
        while found := await self._db.write(lambda conn: delete(conn, bound, most=_BATCH)):
            deleted += found
        return deleted
