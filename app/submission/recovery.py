"""Finds out what became of transactions whose requests ended before the chain had answered."""

import asyncio

import structlog

from app.chain.errors import ChainUnavailable, RpcError
from app.core.background import Background
from app.core.errors import ApiError
from app.core.timestamps import now_ms
from app.store.attempts import Attempt, pending_attempts
from app.store.database import Database
from app.store.idempotency import purge
from app.submission.submitter import CHANGES, Submitter

_log = structlog.get_logger(__name__)


class Settlement(Background):
    """Looks at pending attempts at the start and every ``interval`` seconds.

    A confirmed or failed one is settled. One that has not landed is sent again, always the same signed bytes, until
    its last valid block height has passed at finalized commitment; it failed once no event is missing that could be
    its own. Changes that could undo a newer one are not sent again (see ``app.submission.ordering``). Attempts younger
    than ``grace`` seconds belong to requests that still wait for them.
    """

    name = "settlement"

    def __init__(self, db: Database, submitter: Submitter, *, interval: float, grace: float) -> None:
        self._db = db
        self._submitter = submitter
        self._interval = interval
        self._grace_ms = int(grace * 1000)

    async def settle(self, *, created_before: int | None = None) -> int:
        """Look once at the pending attempts that are older; returns how many are settled now.

        When the chain does not answer for one, the others are looked at all the same; then its ApiError,
        ChainUnavailable or RpcError is raised.
        """
        settled = 0
        failure: Exception | None = None
        for attempt in await self._db.read(lambda conn: pending_attempts(conn, created_before=created_before)):
            try:
                settled += await self._settle(attempt)
            except Exception as error:  # noqa: BLE001 - raised below, once every attempt was looked at
                failure = failure or error
        if failure is not None:
            raise failure
        return settled

    async def _settle(self, attempt: Attempt) -> bool:
        outcome = await self._submitter.look(attempt)
        if outcome.status != "pending":
            return True
        if outcome.sendable and attempt.type not in CHANGES:
            await self._submitter.resend(attempt)
        return False

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
