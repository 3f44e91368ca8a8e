"""Submits transactions: simulates, stores, sends and confirms them, and waits for the read models.

The signed bytes are stored before the first send, and resends use exactly these bytes. An attempt stays `pending` while
it can still land, and no replacement is signed before then. The only exceptions are a freeze and a pause, because
landing twice does no harm. They are sent even if they cannot be stored, and are signed again after five seconds.
"""

import asyncio
import time
from collections.abc import Callable, Mapping
from dataclasses import replace

import structlog
from sqlalchemy import Connection

from app.chain.client import ChainClient
from app.chain.clock import ChainClock
from app.chain.errors import BlockhashNotFound, ChainUnavailable, RpcError
from app.chain.transactions import sign_for, sign_with_any
from app.core.errors import StorageDoubtError, UnavailableError
from app.database.interface import DUPLICATE_ERRORS, WRITE_ERRORS, Database
from app.projection.projector import Projector
from app.store.attempts import Attempt, insert_attempt, stopped_by
from app.store.attempts import attempt as attempt_of
from app.store.audit import append
from app.store.unsigned_transactions import AWAITING
from app.submission.brake import STOPPED, Brakes, stopped_error
from app.submission.claim import Claim
from app.submission.fee_payer import FeePayer
from app.submission.outcomes import Outcomes, ids_of, unavailable
from app.submission.plan import (
    AwaitingSignatureError,
    Outcome,
    Plan,
    PlanType,
    SimulationFailedError,
    attempt_for,
    with_random_compute_limit,
)
from indexer import Indexer

_log = structlog.get_logger(__name__)

#: Seconds to wait before polling the chain for a transaction's status. Most land and are applied within this time.
#: Earlier polling would only reveal failures sooner, and simulation has already filtered most of them.
_PROMPTLY = 1.0
#: Seconds that an urgent transaction waits for the database before it is sent without being stored.
_STORING = 1.0


class Submitter(Outcomes):
    """Sends transactions, and then determines their outcomes."""

    def __init__(
        self,
        *,
        db: Database,
        chain: ChainClient,
        indexer: Indexer,
        projector: Projector,
        fee_payer: FeePayer,
        confirm_timeout: float,
        types: Mapping[str, PlanType],
        brake: Brakes,
        clock: ChainClock,
    ) -> None:
        super().__init__(db=db, chain=chain, indexer=indexer, projector=projector, types=types, clock=clock)
        self._fee_payer = fee_payer
        self._confirm_timeout = confirm_timeout
        self._brake = brake
        self._listeners: list[Callable[[Attempt], None]] = []

    def subscribe(self, listener: Callable[[Attempt], None]) -> None:
        """Call `listener` with each sent attempt of a `PlanType` that ``stops`` allowances.

        The listener must not block.
        """
        self._listeners.append(listener)

    async def _sign(self, plan: Plan, *, fresh: bool) -> tuple[bytes, str | None, int]:
        """Return the signed bytes, the signature if it is known already, and the last valid block height."""
        # A third party that sends the transaction later needs the full lifetime of a blockhash.
        blockhash = await self._chain.blockhash(fresh=fresh or plan.fee_payer is not None)
        until = blockhash.last_valid_block_height
        if plan.fee_payer is not None:
            raw = await sign_for(
                plan.instructions, payer=plan.fee_payer, signers=plan.signers, blockhash=blockhash.hash
            )
            return raw, None, until
        instructions = plan.instructions if plan.reference else with_random_compute_limit(plan.instructions)
        authority = plan.authority.key if plan.authority else None
        signers = plan.signers if authority is None else [*plan.signers, authority]
        signed = await sign_with_any(
            instructions, payer=self._fee_payer.signer, signers=signers, blockhash=blockhash.hash
        )
        return signed.raw, signed.signature, until

    async def send(self, plan: Plan, claim: Claim) -> Outcome:
        """Simulate, store and send, without waiting for the confirmation.

        Raises SimulationFailedError if the simulation fails; then nothing is stored. Raises ``chain_unavailable`` if
        the chain does not answer; once the transaction is stored, the error names its id. Raises the error of a brake
        that stops the transaction; then nothing was sent, and an attempt that was already stored is recorded as failed.
        Raises the plan's ``refusal`` after a successful simulation, and the errors of ``claim.admit`` and ``FeePayer``.
        """
        claim.admit()
        self._brake.check(plan.type, plan.org, plan.wallet_id, attested=plan.attested)
        attempt = await self._prepare(plan)
        await self._store(plan, attempt, claim, charged=True)
        stopped = await self._brake.blocking_kind(plan.type, attempt)
        if stopped is not None:
            claim.resolve(lasts=False)
            await self.fail(attempt, STOPPED[stopped][1])
            raise stopped_error(plan.type, stopped)
        return await self._post(attempt) if plan.fee_payer is None else Outcome(attempt, "pending", sendable=False)

    async def send_urgently(self, plan: Plan, claim: Claim) -> Outcome:
        """Submit an urgent transaction even if the database cannot be written to.

        In that case, the attempt is stored after the chain has responded, if possible. Raises SimulationFailedError
        like ``send``, and ``storage_unavailable`` if the transaction was sent but cannot be stored.
        """
        attempt = await self._prepare(plan)
        stored = await self._stored_soon(plan, attempt, claim)
        outcome = await self._post(attempt)
        if stored:
            return await self.wait(outcome, claim)
        assert attempt.signature is not None
        status = await self._chain.confirm(attempt.signature, timeout=self._confirm_timeout)
        if await self._stored_soon(plan, attempt, claim):
            return await self.wait(outcome, claim)
        fate = "is not confirmed yet" if status is None else "failed there" if status.err else "is confirmed there"
        raise UnavailableError(
            "storage_unavailable",
            f"The transaction was sent to the chain and {fate}. It could not be recorded, because the service's "
            "database cannot be written to.",
            fields={"tx_id": attempt.tx_id, "tx_signature": attempt.signature},
            headers={"Retry-After": "1"},
        )

    async def submit(self, plan: Plan, claim: Claim) -> Outcome:
        """Send and wait for the outcome; see ``send`` and ``wait``."""
        return await self.wait(await self.send(plan, claim), claim)

    async def resume(self, claim: Claim) -> Outcome | None:
        """Return the outcome of the attempt of an earlier run of the same request. Resend the attempt if needed.

        Returns None if there is no such attempt or it failed permanently. The request may then start over. Raises
        AwaitingSignatureError if the attempt still awaits an offline signature.
        """
        if claim.attempt is None:
            return None
        if claim.attempt.status == AWAITING:
            raise AwaitingSignatureError(claim.attempt)
        outcome = await self.look(claim.attempt)
        if outcome.status == "pending":
            outcome = await self.wait(await self.resend(outcome.attempt) if outcome.sendable else outcome, claim)
        lasts = outcome.status != "failed"
        claim.resolve(lasts=lasts)
        return outcome if lasts else None

    async def wait(self, outcome: Outcome, claim: Claim) -> Outcome:
        """Wait for the outcome of a sent transaction, and return it: confirmed, failed, or pending after the timeout.

        A transaction that the indexer finds counts as confirmed once the read models show it.
        """
        if outcome.status != "pending":
            return outcome
        attempt = outcome.attempt
        deadline = time.monotonic() + self._confirm_timeout
        if attempt.signature is None:
            return await self._projected(attempt, deadline) or outcome
        if self.type_of(attempt).indexed and self._projector.prompt():
            slot = await self._projector.wait(attempt.message, min(_PROMPTLY, self._confirm_timeout))
            if slot is not None:
                return await self.succeed(attempt, slot)
        try:
            status = await self._chain.confirm(attempt.signature, timeout=max(0.05, deadline - time.monotonic()))
        except ChainUnavailable:
            raise unavailable(attempt) from None
        if status is None:
            return outcome
        if status.err is not None:
            failed = await self.fail(attempt, status.err, slot=status.slot, custom_error=status.custom_error)
            claim.resolve(lasts=failed.status != "failed")
            return failed
        if self.type_of(attempt).indexed:
            self._indexer.wake(attempt.signature)
            if await self._projector.wait(attempt.message, max(0.05, deadline - time.monotonic())) is None:
                return outcome
        return await self.succeed(attempt, status.slot)

    async def _projected(self, attempt: Attempt, deadline: float) -> Outcome | None:
        """Wait for the outcome of an attempt with an unknown signature; None if the read models lack its event."""
        await self._projector.wait(attempt.message, max(0.05, deadline - time.monotonic()))
        found = await self._db.read(lambda conn: attempt_of(conn, attempt.tx_id))
        return Outcome(found, found.status, found.slot) if found and found.status != "pending" else None

    async def _prepare(self, plan: Plan) -> Attempt:
        """Sign and simulate the plan, and return its attempt. Raises SimulationFailedError or the plan's refusal."""
        raw, signature, last_height = await self._sign(plan, fresh=False)
        try:
            simulation = await self._chain.simulate(raw, lamports_of=self._fee_payer.address)
        except BlockhashNotFound:
            raw, signature, last_height = await self._sign(plan, fresh=True)
            simulation = await self._chain.simulate(raw, lamports_of=self._fee_payer.address)
        if simulation.err is not None:
            raise SimulationFailedError(simulation)
        self._fee_payer.require_reserve(plan, simulation.lamports)
        if plan.refusal is not None:
            raise plan.refusal
        attempt = attempt_for(plan, raw, status="pending", created_at=await self._clock.moment_ms())
        return replace(attempt, signature=signature, last_valid_block_height=last_height)

    async def _store(
        self, plan: Plan, attempt: Attempt, claim: Claim, *, charged: bool = False, brakes: bool = False
    ) -> None:
        def store(conn: Connection) -> None:
            if plan.asked_by is None and not brakes:
                claim.authorise(conn)
            self._brake.check_rows(
                conn, plan.type, plan.org, plan.wallet_id, attested=plan.attested, asked_by=plan.asked_by
            )
            if charged:
                self._fee_payer.charge(conn, plan, attempt)
            insert_attempt(conn, attempt)
            plan.on_store(conn, attempt)
            if plan.entry is not None:
                append(conn, plan.entry.about(**ids_of(attempt)))

        server = self._db.server
        await claim.store(store, tx_id=attempt.tx_id, repeatable=True)
        self._db.remember(attempt.tx_id, attempt.org)
        if self._db.server != server:
            # A failover may have lost the attempt, if the commit log was compared before this entry was added to it.
            raise StorageDoubtError

    async def _stored_soon(self, plan: Plan, attempt: Attempt, claim: Claim) -> bool:
        """Store an attempt and return True if that succeeded in time."""
        try:
            async with asyncio.timeout(_STORING):
                await self._store(plan, attempt, claim, brakes=True)
        except DUPLICATE_ERRORS:
            return True  # The first write was committed after its timeout.
        except (*WRITE_ERRORS, TimeoutError) as error:
            _log.warning("urgent_transaction_not_stored", tx_id=attempt.tx_id, type=attempt.type, error=str(error))
            return False
        return True

    async def resend(self, attempt: Attempt) -> Outcome:
        """Resend the stored bytes of a pending attempt, unless a brake stops it or a third party sends it."""
        if attempt.signature is None:
            return Outcome(attempt, "pending", sendable=False)
        if await self._db.read(lambda conn: stopped_by(conn, attempt.tx_id)):
            return Outcome(attempt, "pending")
        # Check the in-memory brakes last: a brake may be engaged while the row is read.
        kind, attested = self.type_of(attempt), attempt.attestation_hash is not None
        stopped = self._brake.stops(kind, attempt.org, attempt.wallet_id, attested=attested)
        if stopped is not None:
            return Outcome(attempt, "pending")
        self._db.remember(attempt.tx_id, attempt.org)
        return await self._post(attempt)

    async def _post(self, attempt: Attempt) -> Outcome:
        assert attempt.raw is not None
        try:
            await self._chain.send(attempt.raw)
        except ChainUnavailable:
            raise unavailable(attempt) from None
        except RpcError as error:
            # The node refuses the transaction now (already processed, unknown blockhash), but it may have landed
            # anyway.
            _log.warning("send_refused", tx_id=attempt.tx_id, code=error.code, message=error.message)
        if self._types[attempt.type].stops:
            for listener in self._listeners:
                listener(attempt)
        return Outcome(attempt, "pending")
