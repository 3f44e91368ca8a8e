"""Takes a transaction to the chain: simulates, stores, sends and confirms it, and waits for the read models.

The signed transaction is stored before it is sent, and only these stored bytes are ever sent again. As long as it can
still land, it stays `pending`, and nothing else is signed in its place.
"""

import asyncio
import sqlite3
import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import structlog
from sqlalchemy import Connection

from app.chain.client import COMMITMENT, ChainClient
from app.chain.clock import ChainClock
from app.chain.errors import BlockhashNotFound, ChainUnavailable, RpcError
from app.chain.records import SignatureStatus
from app.chain.transactions import Signed, sign_with_any
from app.core.actors import Actor
from app.core.errors import UnavailableError
from app.core.identifiers import transaction_id
from app.core.signers import Signer
from app.projection.projector import Projector
from app.store.attempts import Attempt, insert_attempt, is_stopped, record_outcome
from app.store.attempts import attempt as attempt_of
from app.store.audit import NewLogEntry, append
from app.store.database import WRITE_ERRORS, Database
from app.store.unsigned_transactions import AWAITING
from app.store.wallets import vault_of
from app.submission.brake import STOPPED, Brake, stopped_error
from app.submission.expiry import over_since
from app.submission.idempotency import Claim
from app.submission.plan import AwaitingSignatureError, Outcome, Plan, PlanType, RefusedError, distinct
from idl.transactions import message_hash
from indexer import Indexer

_log = structlog.get_logger(__name__)

#: Seconds that an urgent transaction waits for the database before it is sent all the same.
_STORING = 1.0


class Submitter:
    """Sends transactions and determines their outcome. ``types`` are the types of all plans, by name."""

    def __init__(
        self,
        *,
        db: Database,
        chain: ChainClient,
        indexer: Indexer,
        projector: Projector,
        fee_payer: Signer,
        confirm_timeout: float,
        types: Mapping[str, PlanType],
        brake: Brake,
        clock: ChainClock,
    ) -> None:
        self._db = db
        self._chain = chain
        self._indexer = indexer
        self._projector = projector
        self._fee_payer = fee_payer
        self._confirm_timeout = confirm_timeout
        self._types = types
        self._brake = brake
        self._clock = clock

    def type_of(self, attempt: Attempt) -> PlanType:
        """Return the plan type of an attempt."""
        return self._types[attempt.type]

    async def _sign(self, plan: Plan, *, fresh: bool) -> tuple[Signed, int]:
        blockhash = await self._chain.blockhash(fresh=fresh)
        instructions = plan.instructions if plan.reference else distinct(plan.instructions)
        authority = plan.authority.key if plan.authority else None
        signers = plan.signers if authority is None else [*plan.signers, authority]
        signed = await sign_with_any(instructions, payer=self._fee_payer, signers=signers, blockhash=blockhash.hash)
        return signed, blockhash.last_valid_block_height

    async def send(self, plan: Plan, claim: Claim) -> Outcome:
        """Simulate, store and send, without waiting for the confirmation.

        Raises RefusedError if the simulation fails; then nothing is stored. Raises ``chain_unavailable`` if the chain
        does not answer; once the transaction is stored, the error names its id. Raises the error of a brake that stops
        it; then nothing was sent, and what was stored is recorded as failed. Raises what ``claim.admit`` raises.
        """
        claim.admit()
        self._brake.check(plan.type, plan.org, plan.wallet_id, attested=plan.attested)
        attempt = await self._prepare(plan)
        await self._store(plan, attempt, claim)
        stopped = self._brake.stops(plan.type, plan.org, plan.wallet_id, attested=plan.attested)
        if stopped is not None:
            claim.resolve(lasts=False)
            await self.fail(attempt, STOPPED[stopped][1])
            raise stopped_error(plan.type, stopped)
        return await self._post(attempt)

    async def send_urgently(self, plan: Plan, claim: Claim) -> Outcome:
        """Submit a transaction that must reach the chain at once, also when the database cannot be written.

        It is stored later then, if that is possible once the chain has answered. Raises RefusedError as ``send`` does,
        and ``storage_unavailable`` for a transaction that was sent and cannot be stored.
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
            f"The transaction was sent to the chain and {fate}, but the service's database cannot be written, so it "
            "is not recorded yet.",
            fields={"tx_id": attempt.tx_id, "tx_signature": attempt.signature},
            headers={"Retry-After": "1"},
        )

    async def submit(self, plan: Plan, claim: Claim) -> Outcome:
        """Send and wait for the outcome; see ``send`` and ``wait``."""
        return await self.wait(await self.send(plan, claim), claim)

    async def resume(self, claim: Claim) -> Outcome | None:
        """Return the outcome of the attempt that an earlier run of the same request left; resends it if needed.

        None if there is no such attempt, or if it failed for good: then the request starts anew.
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
        """Wait until the transaction is confirmed and in the read models, or the timeout has passed."""
        if outcome.status != "pending":
            return outcome
        attempt = outcome.attempt
        assert attempt.signature is not None
        deadline = time.monotonic() + self._confirm_timeout
        try:
            status = await self._chain.confirm(attempt.signature, timeout=self._confirm_timeout)
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
            if not await self._projector.wait(attempt.signature, max(0.05, deadline - time.monotonic())):
                return outcome
        return await self.succeed(attempt, status.slot)

    async def look(self, attempt: Attempt) -> Outcome:
        """Ask the chain for the outcome of a pending attempt; records it if it is final."""
        if attempt.status != "pending" or attempt.signature is None:
            return Outcome(attempt, attempt.status, attempt.slot, error=attempt.error)
        try:
            return await self._look(attempt, attempt.signature)
        except ChainUnavailable:
            raise unavailable(attempt) from None

    async def _look(self, attempt: Attempt, signature: str) -> Outcome:
        # Read first: a transaction that is absent afterwards and too old for it cannot land any more.
        over = await over_since(self._chain, attempt)
        seen = await self._chain.statuses([signature], search_history=True)
        [status] = seen.found
        if status is not None:
            # A failure in an unconfirmed block is not final: it may succeed in another. Nor is one that the transaction
            # itself does not show.
            failed = status.err is not None and status.is_confirmed
            if failed and await self._chain.confirms(signature, status):
                return await self.fail(attempt, status.err, slot=status.slot, custom_error=status.custom_error)
            return await self._landed(attempt, status)
        # One address may lead to several nodes: one that has not seen the block cannot prove the absence.
        if over is None or seen.slot < over:
            return Outcome(attempt, "pending")
        # A node without the history does not know what landed, but the changed account counts its events.
        account = await self._counted_by(attempt)
        whole = account is not None and await self._indexer.holds_all(account, over)
        slot = await self._indexer.slot_of(signature)
        if slot is not None:
            return await self._landed(attempt, SignatureStatus(slot, None, COMMITMENT))
        if whole:
            found = await self._db.read(lambda conn: attempt_of(conn, attempt.tx_id))
            stopped = None if found is None else found.stopped_by
            return await self.fail(attempt, "expired" if stopped is None else STOPPED[stopped][1])
        _log.warning("expiry_waits_for_missing_events", tx_id=attempt.tx_id, account=account)
        return Outcome(attempt, "pending", sendable=False)

    async def _counted_by(self, attempt: Attempt) -> str | None:
        """Return the account that counts the attempt's event if it landed; None if not known yet."""
        wallet_id = attempt.wallet_id
        if wallet_id is None:
            return attempt.org
        return await self._db.read(lambda conn: vault_of(conn, wallet_id))

    async def _landed(self, attempt: Attempt, status: SignatureStatus) -> Outcome:
        # An earlier process may have applied its events already, so do not wait for them.
        pending = Outcome(attempt, "pending", status.slot, sendable=False)
        if not status.is_confirmed:
            return pending
        if not self.type_of(attempt).indexed:
            return await self.succeed(attempt, status.slot)
        assert attempt.signature is not None
        try:
            await self._indexer.catch_up()
        except RpcError:
            raise unavailable(attempt) from None
        await self._projector.catch_up()
        if await self._indexer.slot_of(attempt.signature) is None:
            # The node knows the transaction but does not list it yet, so the read models lack it.
            self._indexer.wake(attempt.signature)
            return pending
        if not self.type_of(attempt).projected:
            return await self.succeed(attempt, status.slot)
        found = await self._db.read(lambda conn: attempt_of(conn, attempt.tx_id))
        return Outcome(found, found.status, found.slot) if found and found.status != "pending" else pending

    async def succeed(self, attempt: Attempt, slot: int) -> Outcome:
        """Record that an attempt is confirmed, unless the projector records it with its event."""
        if not self.type_of(attempt).projected:
            await self._db.write(
                lambda conn: record_outcome(conn, attempt.tx_id, "confirmed", now=self._clock.seen_ms(), slot=slot)
            )
        return Outcome(attempt, "confirmed", slot)

    async def fail(
        self, attempt: Attempt, error: Any, *, slot: int | None = None, custom_error: int | None = None
    ) -> Outcome:
        """Record that an attempt failed for good; returns an outcome recorded earlier instead, if there is one."""
        text = str(error)

        def record(conn: Connection) -> Attempt | None:
            if not record_outcome(conn, attempt.tx_id, "failed", now=self._clock.seen_ms(), slot=slot, error=text):
                return attempt_of(conn, attempt.tx_id)
            self.type_of(attempt).on_failed(conn, attempt)
            if attempt.subject is not None:
                details = {**_ids(attempt), "type": attempt.type, "error": text}
                actor = Actor("system", "submitter")
                append(conn, NewLogEntry(attempt.org, "transaction.failed", actor, attempt.subject, details=details))
            return None

        known = await self._db.write(record)
        if known is not None and known.status != "failed":
            return Outcome(known, known.status, known.slot)
        _log.info("transaction_failed", tx_id=attempt.tx_id, type=attempt.type, error=text)
        return Outcome(replace(attempt, status="failed", error=text), "failed", slot, error, custom_error)

    async def _prepare(self, plan: Plan) -> Attempt:
        """Sign and simulate, and return the attempt to store. Raises RefusedError."""
        signed, last_height = await self._sign(plan, fresh=False)
        try:
            simulation = await self._chain.simulate(signed.raw)
        except BlockhashNotFound:
            signed, last_height = await self._sign(plan, fresh=True)
            simulation = await self._chain.simulate(signed.raw)
        if simulation.err is not None:
            raise RefusedError(simulation)
        message = message_hash(signed.raw)
        tx_id = transaction_id(message, plan.event_instruction, plan.event_inner, plan.type.name)
        return Attempt(
            tx_id=tx_id,
            org=plan.org,
            wallet_id=plan.wallet_id,
            type=plan.type.name,
            status="pending",
            recipient=plan.recipient,
            recipient_address=plan.recipient_address,
            amount=plan.amount,
            policy_id=plan.policy_id,
            policy_triggered=plan.policy_triggered,
            memo=plan.memo,
            actor=plan.actor if plan.entry is None else plan.entry.actor,
            subject=None if plan.entry is None else plan.entry.object,
            reference=plan.reference,
            signature=signed.signature,
            instruction_index=plan.event_instruction,
            inner_index=plan.event_inner,
            raw=signed.raw,
            last_valid_block_height=last_height,
            attestation_hash=f"sha256:{message}" if plan.attested else None,
            created_at=await self._clock.moment_ms(),
        )

    async def _store(self, plan: Plan, attempt: Attempt, claim: Claim) -> None:
        def store(conn: Connection) -> None:
            self._brake.check_rows(conn, plan.type, plan.org, plan.wallet_id, attested=plan.attested)
            insert_attempt(conn, attempt)
            plan.on_store(conn, attempt)
            if plan.entry is not None:
                append(conn, plan.entry.about(**_ids(attempt)))

        await claim.store(store, tx_id=attempt.tx_id)

    async def _stored_soon(self, plan: Plan, attempt: Attempt, claim: Claim) -> bool:
        """Store an attempt and return whether that was possible in time."""
        try:
            async with asyncio.timeout(_STORING):
                await self._store(plan, attempt, claim)
        except sqlite3.IntegrityError:
            return True  # The first try was committed after its time.
        except (*WRITE_ERRORS, TimeoutError) as error:
            _log.warning("urgent_transaction_not_stored", tx_id=attempt.tx_id, type=attempt.type, error=str(error))
            return False
        return True

    async def resend(self, attempt: Attempt) -> Outcome:
        """Send the stored bytes of a pending attempt again, unless a brake overtook it."""
        kind, attested = self.type_of(attempt), attempt.attestation_hash is not None
        stopped = self._brake.stops(kind, attempt.org, attempt.wallet_id, attested=attested)
        if stopped is not None or await self._db.read(lambda conn: is_stopped(conn, attempt.tx_id)):
            return Outcome(attempt, "pending")
        return await self._post(attempt)

    async def _post(self, attempt: Attempt) -> Outcome:
        assert attempt.raw is not None
        try:
            await self._chain.send(attempt.raw)
        except ChainUnavailable:
            raise unavailable(attempt) from None
        except RpcError as error:
            # This node refuses it now (already processed, unknown blockhash), but it may still have landed.
            _log.warning("send_refused", tx_id=attempt.tx_id, code=error.code, message=error.message)
        return Outcome(attempt, "pending")


def _ids(attempt: Attempt) -> dict[str, str | None]:
    """Return what names an attempt in the audit log."""
    return {"tx_id": attempt.tx_id, "tx_signature": attempt.signature}


def unavailable(attempt: Attempt) -> UnavailableError:
    """Return the error for a transaction whose outcome is unknown because the chain does not answer."""
    return UnavailableError("chain_unavailable", fields={"tx_id": attempt.tx_id})
