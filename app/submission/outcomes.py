"""Determines the outcomes of transactions, and records all but pending ones."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import structlog
from sqlalchemy import Connection

from app.chain.client import COMMITMENT, ChainClient
from app.chain.clock import ChainClock
from app.chain.errors import ChainUnavailable, RpcError
from app.chain.nonces import NonceAccount
from app.chain.records import SignatureStatus
from app.core.actors import Actor
from app.core.errors import UnavailableError
from app.database.interface import Database
from app.projection.projector import Projector
from app.store.attempts import Attempt, record_outcome
from app.store.attempts import attempt as attempt_of
from app.store.audit import NewLogEntry, append
from app.store.wallets import vault_of
from app.submission.brake import STOPPED
from app.submission.plan import Outcome, PlanType
from indexer import Indexer

_log = structlog.get_logger(__name__)
#: Number of blocks to wait after a transaction's last valid block height. If it is still absent then, it has expired.
_MARGIN = 30


class Outcomes:
    """Determines the outcome of attempts. ``types`` are the types of all plans, by name."""

    def __init__(
        self,
        *,
        db: Database,
        chain: ChainClient,
        indexer: Indexer,
        projector: Projector,
        types: Mapping[str, PlanType],
        clock: ChainClock,
    ) -> None:
        self._db = db
        self._chain = chain
        self._indexer = indexer
        self._projector = projector
        self._types = types
        self._clock = clock

    def type_of(self, attempt: Attempt) -> PlanType:
        """Return the plan type of an attempt."""
        return self._types[attempt.type]

    async def look(self, attempt: Attempt) -> Outcome:
        """Return an attempt's outcome. If the attempt is pending, ask the chain, and record a success or failure.

        Raises ``chain_unavailable`` if the chain does not answer.
        """
        if attempt.status != "pending":
            return Outcome(attempt, attempt.status, attempt.slot, error=attempt.error)
        try:
            return await self._look(attempt, attempt.signature)
        except ChainUnavailable:
            raise unavailable(attempt) from None

    async def _look(self, attempt: Attempt, signature: str | None) -> Outcome:
        # Read this before the status: a transaction that is absent afterwards and too old by then can no longer land.
        over = await _over_since(self._chain, attempt)
        if signature is None:
            return await self._look_for_event(attempt, over)
        seen = await self._chain.statuses([signature], search_history=True)
        [status] = seen.found
        if status is not None:
            # A failure in an unconfirmed block is not final, because the transaction may succeed in another block. A
            # failure that the transaction itself does not show is not believed either.
            failed = status.err is not None and status.is_confirmed
            if failed and await self._chain.confirms(signature, status):
                return await self.fail(attempt, status.err, slot=status.slot, custom_error=status.custom_error)
            return await self._landed(attempt, status)
        # One address may lead to several nodes. A node that has not reached the slot cannot prove that the transaction
        # is absent.
        if over is None or seen.slot < over:
            return Outcome(attempt, "pending")
        # A node without the full history may not know a transaction that landed. But the changed account counts its
        # events, so a gap in the stored events reveals it.
        whole = await self._holds_all(attempt, over)
        slot = await self._indexer.slot_of(signature)
        if slot is not None:
            return await self._landed(attempt, SignatureStatus(slot, None, COMMITMENT))
        return await self._expire(attempt) if whole else Outcome(attempt, "pending", sendable=False)

    async def _look_for_event(self, attempt: Attempt, over: int | None) -> Outcome:
        """Determine from its event the outcome of an attempt that a third party sends under an unknown signature."""
        pending = Outcome(attempt, "pending", sendable=False)
        if over is None:
            return pending
        whole = await self._holds_all(attempt, over)
        await self._projector.catch_up()
        found = await self._db.read(lambda conn: attempt_of(conn, attempt.tx_id))
        if found is not None and found.status != "pending":
            return Outcome(found, found.status, found.slot)
        return await self._expire(attempt) if whole else pending

    async def _expire(self, attempt: Attempt) -> Outcome:
        found = await self._db.read(lambda conn: attempt_of(conn, attempt.tx_id))
        stopped = None if found is None else found.stopped_by
        return await self.fail(attempt, "expired" if stopped is None else STOPPED[stopped][1])

    async def _holds_all(self, attempt: Attempt, slot: int) -> bool:
        """Return True if, up to this slot, no event is missing that the attempt could have caused."""
        account = await self._counted_by(attempt)
        if account is not None and await self._indexer.holds_all(account, slot):
            return True
        _log.warning("expiry_waits_for_missing_events", tx_id=attempt.tx_id, account=account)
        return False

    async def _counted_by(self, attempt: Attempt) -> str | None:
        """Return the vault or organisation that would count the attempt's event, or None for a vault not known yet."""
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
            # The node knows the transaction but does not list it in the program's history yet, so the read models lack
            # it.
            self._indexer.wake(attempt.signature)
            return pending
        if not self.type_of(attempt).projected:
            return await self.succeed(attempt, status.slot)
        found = await self._db.read(lambda conn: attempt_of(conn, attempt.tx_id))
        return Outcome(found, found.status, found.slot) if found and found.status != "pending" else pending

    async def succeed(self, attempt: Attempt, slot: int) -> Outcome:
        """Return the outcome of a confirmed attempt. Record it, unless the projector records it with the event."""
        if not self.type_of(attempt).projected:
            await self._db.write(
                lambda conn: record_outcome(conn, attempt.tx_id, "confirmed", now=self._clock.seen_ms(), slot=slot)
            )
        return Outcome(attempt, "confirmed", slot)

    async def fail(
        self, attempt: Attempt, error: Any, *, slot: int | None = None, custom_error: int | None = None
    ) -> Outcome:
        """Record that an attempt failed permanently. Return its outcome, or a different outcome recorded earlier."""
        text = str(error)

        def record(conn: Connection) -> Attempt | None:
            if not record_outcome(conn, attempt.tx_id, "failed", now=self._clock.seen_ms(), slot=slot, error=text):
                return attempt_of(conn, attempt.tx_id)
            self.type_of(attempt).on_failed(conn, attempt)
            if attempt.subject is not None:
                details = {**ids_of(attempt), "type": attempt.type, "error": text}
                actor = Actor("system", "submitter")
                append(conn, NewLogEntry(attempt.org, "transaction.failed", actor, attempt.subject, details=details))
            return None

        known = await self._db.write(record)
        if known is not None and known.status != "failed":
            return Outcome(known, known.status, known.slot)
        _log.info("transaction_failed", tx_id=attempt.tx_id, type=attempt.type, error=text)
        return Outcome(replace(attempt, status="failed", error=text), "failed", slot, error, custom_error)


def ids_of(attempt: Attempt) -> dict[str, str | None]:
    """Return the ids that identify an attempt in the audit log."""
    return {"tx_id": attempt.tx_id, "tx_signature": attempt.signature}


def unavailable(attempt: Attempt) -> UnavailableError:
    """Return the error for a transaction with an unknown outcome. The node gave no response, or only an error."""
    return UnavailableError("chain_unavailable", fields={"tx_id": attempt.tx_id})


async def _over_since(chain: ChainClient, attempt: Attempt) -> int | None:
    """Return a finalized slot after which a transaction can no longer land, or None while it can still land."""
    if attempt.nonce_account is not None:
        account = await chain.account(attempt.nonce_account, "finalized")
        found = NonceAccount.of(account)
        return account.slot if account and found and str(found.nonce) != attempt.nonce else None
    block, last_height = await chain.last_finalized_block(), attempt.last_valid_block_height
    return block.slot if last_height is not None and block.height > last_height + _MARGIN else None
