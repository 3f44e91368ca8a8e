"""Carries out work that is due without a request: see ``app.keeper.jobs``.

Each round reads the due jobs from the read models. A restart therefore loses nothing, and a landed job is no longer due
once the indexer has seen it. If a job is not due on the chain, the program refuses it in the preflight, which costs no
fee. Several keepers, or a clock ahead of the node's, therefore do no harm.
"""

import asyncio
import time
from collections import deque
from collections.abc import Callable, Sequence

import structlog
from sqlalchemy import Connection

from app.allowances.service import OVERDUE_AFTER, report_overdue
from app.api.metrics import Metrics
from app.chain.errors import ChainUnavailable, RpcError
from app.chain.records import custom_error
from app.core.background import Periodic
from app.core.errors import UnavailableError
from app.keeper._backoff import Backoff
from app.keeper.jobs import Job, freeze, refund, send, settle, topup
from app.store.allowances import AllowanceRecord, due_allowances
from app.store.escrows import due as due_escrows
from app.store.expiries import expired_wallets
from app.store.topups import LowWallet, low_wallets
from app.submission.context import Service

_log = structlog.get_logger(__name__)

#: Transactions in flight at the same time, so that a slow node does not delay all of them.
_AT_ONCE = 8


class Keeper(Periodic):
    """Looks for due jobs at the start and every `interval` seconds.

    A failed job is retried after a pause and does not stop other jobs. If a transaction is lost, the keeper makes a new
    one. Should both land, the program accepts only one of them.
    """

    name = "keeper"
    outages = (ChainUnavailable,)

    def __init__(
        self,
        service: Service,
        *,
        interval: float = 1.0,
        clock: Callable[[], float] | None = None,
        timer: Callable[[], float] = time.monotonic,
    ) -> None:
        """`clock` replaces the chain's clock, which decides whether a job is due.

        `timer` returns seconds and times the retries.
        """
        super().__init__(interval)
        self._service = service
        self._metrics = service.part(Metrics)
        self._clock = clock or service.clock.now
        self._backoff = Backoff(timer)
        self._short: frozenset[str] = frozenset()
        self._overdue: frozenset[str] = frozenset()

    async def tick(self) -> int:
        """Run the due jobs once and return the number of transactions that the node accepted for sending.

        This takes one query per kind of job. Besides blockhashes, it takes one call to the chain per due job, or two if
        the job reads the chain first. If the chain does not answer, raise ChainUnavailable and leave the remaining jobs
        for the next tick.
        """
        due = await self._due()
        self._backoff.keep_only({job.key for job in due})
        queue = deque(job for job in due if self._backoff.is_due(job.key))
        workers = [self._work(queue) for _ in range(min(_AT_ONCE, len(queue)))]
        results = await asyncio.gather(*workers, return_exceptions=True)
        for result in results:
            if isinstance(result, BaseException):
                if isinstance(result, ChainUnavailable):
                    self._metrics.keeper_failed("chain_unavailable")
                raise result
        return sum(result for result in results if isinstance(result, int))

    async def _due(self) -> list[Job]:
        now = int(self._clock())

        def find(conn: Connection) -> tuple[list[LowWallet], list[AllowanceRecord], list[Job]]:
            freezes = [freeze(self._service, wallet) for wallet in expired_wallets(conn, now)]
            refunds = [refund(self._service, escrow) for escrow in due_escrows(conn, now)]
            return low_wallets(conn), due_allowances(conn, now), [*freezes, *refunds]

        low, ended, others = await self._service.db.read(find, in_thread=True)
        await self._report([one for one in ended if one.expires_at + OVERDUE_AFTER < now])
        settlements = [settle(self._service, one) for one in ended]
        # Settlements first, because a delegate can pay until then. Then top-ups, because payments may wait for them.
        return [*settlements, *(topup(self._service, wallet) for wallet in self._payable(low)), *others]

    async def _report(self, overdue: Sequence[AllowanceRecord]) -> None:
        """Report allowances that have become overdue: unsettled a minute after their expiry."""
        before, self._overdue = self._overdue, frozenset(one.address for one in overdue)
        if new := [one for one in overdue if one.address not in before]:
            await report_overdue(self._service, new)

    def _payable(self, low: Sequence[LowWallet]) -> list[LowWallet]:
        """Return the wallets that the reserve can refill.

        For each other wallet, write a log line once, when the reserve becomes too low for its top-up.
        """
        short = frozenset(wallet.wallet_id for wallet in low if wallet.topup_amount > wallet.reserve)
        for wallet_id in sorted(short - self._short):
            _log.warning("reserve_too_low_for_topup", wallet_id=wallet_id)
        self._short = short
        return [wallet for wallet in low if wallet.wallet_id not in short]

    async def _work(self, queue: deque[Job]) -> int:
        """Run jobs until none is left and return the number of jobs sent."""
        sent = 0
        while queue:
            job = queue.popleft()
            try:
                sent += await self._do(job)
            except ChainUnavailable:
                self._backoff.take_back(job.key)
                queue.clear()
                raise
            # Yield to other tasks here, because calls to the embedded chain never do.
            await asyncio.sleep(0)
        return sent

    async def _do(self, job: Job) -> bool:
        attempts = self._backoff.record(job.key)
        # One refusal of a job is normal: another keeper was faster, or the clock is a second ahead. Repeated refusals
        # are not.
        log = _log.info if attempts == 1 else _log.warning
        try:
            instruction = await job.build()
            if instruction is None:
                return False
            signature = await send(self._service, instruction, job.signers)
        except RpcError as error:
            if attempts > 1:
                self._metrics.keeper_failed("refused")
            log("job_refused", job=job.key, attempts=attempts, error=self._reason(error))
            return False
        except UnavailableError as error:
            # A hardware token that cannot sign delays only the jobs of its key.
            log("job_unsigned", job=job.key, attempts=attempts, error=str(error))
            return False
        except ChainUnavailable:
            raise
        except Exception:  # noqa: BLE001 - an error in one job must not stop the others
            self._metrics.keeper_failed("failed")
            _log.exception("job_failed", job=job.key, attempts=attempts)
            return False
        log("job_sent", job=job.key, attempts=attempts, signature=signature)
        return True

    def _reason(self, error: RpcError) -> str:
        """Return the program's name for the error, or else the node's message."""
        code = custom_error(error.data.get("err")) if isinstance(error.data, dict) else None
        return (None if code is None else self._service.codec.error_name(code)) or error.message
