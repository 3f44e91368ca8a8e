"""Stores the last use of API keys, announces their expiry, and deletes old records."""

from collections.abc import Callable

from app.access.credential_events import report_expiries
from app.access.keyring import KeyRing
from app.core.background import Periodic
from app.core.timestamps import DAY, HOUR, now_seconds
from app.database.interface import Database
from app.payments.refusals import report_refusals
from app.store import exports, fee_payer_use, request_log
from app.store.approval_events import report_expired_approvals, report_reminders
from app.store.keys import expiring_keys
from app.store.retention import delete_events, delete_undecided_requests
from app.store.stopped_payments import report_stopped

#: Number of records deleted in one database transaction. It is small because payments wait for such a transaction.
_BATCH = 500


class KeyUse(Periodic):
    """Stores the last use of the API keys that this process received."""

    name = "key_use"

    def __init__(self, keys: KeyRing, *, interval: float) -> None:
        super().__init__(interval)
        self._keys = keys

    async def stop(self) -> None:
        """Stop, and store the remaining uses."""
        await super().stop()
        await self._keys.note_use()

    async def tick(self) -> None:
        """Store the uses of API keys since the last round."""
        await self._keys.note_use()


class Housekeeping(Periodic):
    """Deletes old records, and reports counted refusals, expired requests and API keys that expire soon.

    It runs every ``interval`` seconds.

    Keeps events, undecided requests for approvals and the use of the fee payer for ``days``, measured by
    ``chain_clock`` (Unix milliseconds). By ``clock`` (Unix seconds), also deletes old records of exports without a
    file, and logged requests that are older than a day or not among their organisation's newest ``requests``.
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
        clock: Callable[[], float] = now_seconds,
    ) -> None:
        super().__init__(interval)
        self._db = db
        self._kept_ms = days * DAY
        self._requests = requests
        self._chain_clock = chain_clock
        self._clock = clock

    async def tick(self) -> int:
        """Do one round and return the number of deleted and reported records."""
        chain_time = self._chain_clock()
        old, hour = chain_time - self._kept_ms, chain_time // HOUR * HOUR
        now, deleted = int(self._clock() * 1000), 0
        for delete, bound in (
            (report_refusals, hour),
            (report_expired_approvals, chain_time),
            (report_reminders, chain_time),
            (report_stopped, now),
            (delete_events, old),
            (delete_undecided_requests, old),
            (fee_payer_use.forget, old),
            (exports.forget, now - exports.KEPT_MS),
            (request_log.forget, now - request_log.KEPT_MS),
            (request_log.shorten, self._requests),
        ):
            deleted += await self._delete(delete, bound)
        if await self._db.read(lambda conn: expiring_keys(conn, now)):
            await self._db.write(lambda conn: report_expiries(conn, now))
        return deleted

    async def _delete(self, delete: Callable[..., int], bound: int) -> int:
        deleted = 0
        while found := await self._db.write(lambda conn: delete(conn, bound, most=_BATCH)):
            deleted += found
        return deleted
