"""Finds out what became of transactions whose requests ended before the chain had answered."""

import asyncio

import structlog

from app.chain.errors import ChainUnavailable, RpcError
from app.errors import ApiError
from app.store.attempts import pending_attempts
from app.store.database import Database
from app.store.idempotency import purge
from app.submission import Submitter
from app.timestamps import now_ms

_log = structlog.get_logger(__name__)


class Settlement:
    """Looks at pending attempts at the start and every ``interval`` seconds.

    A confirmed or failed one is settled. One that has not landed is sent again, always the same signed bytes, until
    its last valid block height has passed at finalized commitment without it: then it failed. Attempts younger than
    ``grace`` seconds belong to requests that still wait for them.
    """

    def __init__(self, db: Database, submitter: Submitter, *, interval: float, grace: float) -> None:
        self._db = db
        self._submitter = submitter
        self._interval = interval
        self._grace_ms = int(grace * 1000)
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Begin, with everything that an earlier process left pending."""
        self._task = asyncio.create_task(self._run(), name="settlement")

    async def stop(self) -> None:
        """End."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def settle(self, *, created_before: int | None = None) -> int:
        """Look once at the pending attempts that are older; returns how many are settled now.

        Raises ApiError, ChainUnavailable or RpcError when the chain does not answer.
        """
        settled = 0
        for attempt in self._db.read(lambda conn: pending_attempts(conn, created_before=created_before)):
            outcome = await self._submitter.look(attempt)
            if outcome.landed:
                continue
            if outcome.status == "pending":
                await self._submitter.resend(attempt)
            else:
                settled += 1
        return settled

    async def _run(self) -> None:
        # What was pending when the process started has no request that waits for it.
        bound = now_ms()
        while True:
            try:
                await self.settle(created_before=bound)
                await self._db.write(lambda conn: purge(conn, now_ms()))
            except (ApiError, ChainUnavailable, RpcError) as error:
                _log.warning("settlement_waits_for_the_chain", error=str(error))
            except Exception:  # noqa: BLE001 - whatever it is, the next look may succeed
                _log.exception("settlement_failed")
            await asyncio.sleep(self._interval)
            bound = max(bound, now_ms() - self._grace_ms)
