"""Finds out what became of transactions whose requests ended before the chain had answered."""

from app.chain.errors import ChainUnavailable, RpcError
from app.core.background import Periodic
from app.core.errors import ApiError
from app.core.timestamps import now_ms
from app.store.attempts import Attempt, pending_attempts
from app.store.database import Database
from app.store.idempotency import purge
from app.submission.submitter import Submitter


class Recovery(Periodic):
    """Looks at pending attempts at the start and every ``interval`` seconds.

    A confirmed or failed one is recorded. One that has not landed is sent again, always the same signed bytes, until
    its last valid block height has passed at finalized commitment; it has failed once no event is missing that could be
    its own. Changes that could undo a newer one are not sent again (see ``app.submission.ordering``). Attempts younger
    than ``grace`` seconds belong to requests that still wait for them.
    """

    name = "recovery"
    waits_for = (ApiError, ChainUnavailable, RpcError)

    def __init__(self, db: Database, submitter: Submitter, *, interval: float, grace: float) -> None:
        super().__init__(interval)
        self._db = db
        self._submitter = submitter
        self._grace_ms = int(grace * 1000)
        # What was pending when the process started has no request that waits for it.
        self._bound = now_ms()

    async def recover(self, *, created_before: int | None = None) -> int:
        """Look once at the pending attempts that are older; returns how many have an outcome now.

        When the chain does not answer for one, the others are looked at all the same; then its ApiError,
        ChainUnavailable or RpcError is raised.
        """
        recovered = 0
        failure: Exception | None = None
        for attempt in await self._db.read(lambda conn: pending_attempts(conn, created_before=created_before)):
            try:
                recovered += await self._recover(attempt)
            except Exception as error:  # noqa: BLE001 - raised below, once every attempt was looked at
                failure = failure or error
        if failure is not None:
            raise failure
        return recovered

    async def _recover(self, attempt: Attempt) -> bool:
        outcome = await self._submitter.look(attempt)
        if outcome.status != "pending":
            return True
        if outcome.sendable and self._submitter.type_of(attempt).resent:
            await self._submitter.resend(attempt)
        return False

    async def tick(self) -> int:
        """Recover what no request waits for, and delete idempotency keys whose time is up."""
        self._bound = max(self._bound, now_ms() - self._grace_ms)
        recovered = await self.recover(created_before=self._bound)
        await self._db.write(lambda conn: purge(conn, now_ms()))
        return recovered
