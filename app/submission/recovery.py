"""Recovers pending transactions of requests that ended before the chain answered."""

from collections.abc import Callable

from app.chain.clock import ChainClock
from app.chain.errors import ChainUnavailable, RpcError
from app.core.background import Periodic
from app.core.errors import ApiError
from app.core.timestamps import now_ms
from app.database.interface import Database
from app.store.attempts import Attempt, pending_attempts
from app.store.idempotency import purge
from app.submission.submitter import Submitter


class Recovery(Periodic):
    """Checks pending attempts at the start and every ``interval`` seconds.

    Records confirmed and failed attempts. Resends the same signed bytes of attempts that have not landed, until the
    finalized chain is more than 30 blocks past their last valid block height, or has advanced their nonce. After that,
    an attempt counts as failed once no event is missing that it could have caused. Three kinds of attempts are not
    resent: transactions that a third party sends, attempts that a brake stops, and changes that could undo a newer one
    (see ``app.submission.pending_changes``). Attempts younger than ``grace`` seconds are skipped, because their
    requests may still be waiting. Attempts from before the start are never skipped.
    """

    name = "recovery"
    outages = (ApiError, ChainUnavailable, RpcError)

    def __init__(self, db: Database, submitter: Submitter, clock: ChainClock, *, interval: float, grace: float) -> None:
        """`clock` is the chain's clock, which also dates the attempts."""
        super().__init__(interval)
        self._db = db
        self._submitter = submitter
        self._clock = clock
        self._grace_ms = int(grace * 1000)
        self._earlier: frozenset[str] = frozenset()

    async def start(self) -> None:
        """Start, and remember the attempts that are pending now.

        On a single node, no request waits for them. Another node's request may, but resending equal bytes is harmless.
        """
        left = await self._db.look_up(pending_attempts)
        self._earlier = frozenset(one.tx_id for one in left)
        await super().start()

    async def recover(self, where: Callable[[Attempt], bool] = lambda _attempt: True) -> int:
        """Check once each pending attempt that ``where`` selects. Return the number that now have an outcome.

        If the check of an attempt fails, checks the others before raising the first error, such as ApiError,
        ChainUnavailable or RpcError.
        """
        recovered = 0
        failure: Exception | None = None
        for attempt in filter(where, await self._db.look_up(pending_attempts)):
            try:
                recovered += await self._recover(attempt)
            except Exception as error:  # noqa: BLE001 - raised below, after every attempt was checked
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
        """Recover the attempts that no request waits for, and delete expired idempotency keys."""
        bound = await self._clock.moment_ms() - self._grace_ms
        recovered = await self.recover(lambda one: one.tx_id in self._earlier or one.created_at < bound)
        await self._db.write(lambda conn: purge(conn, now_ms()))
        return recovered
