"""Settles the outstanding allowances of a vault or organisation once a transaction that invalidates them is sent.

A delegate can pay until its allowance is settled. Settlement therefore waits neither for the confirmation of that
transaction nor for the read models. The keeper later settles any allowance that is not settled here, such as after a
change to the policy's rules.
"""

import asyncio

import structlog

from app.chain.errors import ChainUnavailable, RpcError
from app.core.errors import UnavailableError
from app.keeper.jobs import send, settle
from app.store.allowances import AllowanceRecord, outstanding_allowances
from app.store.attempts import Attempt
from app.submission.context import Service

_log = structlog.get_logger(__name__)

#: Errors of a settlement that the keeper retries.
_FAULTS = (ChainUnavailable, RpcError, UnavailableError)


class AllowanceSettler:
    """Settles allowances when a freeze, a pause, a new session key or a newly attached policy is sent.

    Runs each settlement in a background task that no request waits for.
    """

    def __init__(self, service: Service) -> None:
        self._service = service
        self._running: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        """Start to listen for sent transactions."""
        self._service.submitter.subscribe(self._sent)

    async def stop(self) -> None:
        """Cancel the settlements under way. The keeper of this or another process completes them."""
        for task in self._running:
            task.cancel()
        await asyncio.gather(*self._running, return_exceptions=True)

    def _sent(self, attempt: Attempt) -> None:
        task = asyncio.create_task(self._settle_all(attempt), name="settler")
        self._running.add(task)
        task.add_done_callback(self._running.discard)

    async def _settle_all(self, attempt: Attempt) -> None:
        org, wallet_id = attempt.org, attempt.wallet_id
        try:
            found = await self._service.db.read(lambda conn: outstanding_allowances(conn, org, wallet_id))
        except UnavailableError as error:
            _log.warning("allowances_not_settled", org=org, wallet_id=wallet_id, error=str(error))
            return
        # Settle concurrently and independently, so that one failing settlement delays no other.
        await asyncio.gather(*(self._settle(one) for one in found))

    async def _settle(self, allowance: AllowanceRecord) -> None:
        job = settle(self._service, allowance)
        try:
            instruction = await job.build()
            if instruction is not None:
                signature = await send(self._service, instruction, job.signers)
                _log.info("allowance_settling", allowance_id=allowance.allowance_id, signature=signature)
        except _FAULTS as error:
            _log.warning("allowance_not_settled", allowance_id=allowance.allowance_id, error=str(error))
