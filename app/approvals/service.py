"""Approvals: an agent's expense above its policy's threshold needs the operator's consent beforehand.

The refusal of a payment, escrow or allowance creates the request. After an operator's consent, the approval is on the
chain. The agent then sends the same request again, which uses the approval up.
"""

from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass
from typing import cast

from solders.instruction import Instruction
from solders.pubkey import Pubkey
from sqlalchemy import Connection

from app.access.keyring import Principal
from app.approvals.models import Approval, ApprovalPage, EscrowTerms, ListApprovals
from app.chain.payment_instructions import SpendingKind
from app.core.actors import Actor
from app.core.errors import BusinessError, ConflictError, NotFoundError
from app.core.identifiers import approval_id as id_of_approval
from app.core.identifiers import approval_reference, new_reference
from app.core.pages import RecordPage
from app.core.transaction_types import Purpose
from app.recipients.service import Payee
from app.store.approval_events import report_approval, shown_actor
from app.store.approval_requests import (
    LIFETIME,
    ApprovalRequest,
    NewRequest,
    add_request,
    approval_request,
    approval_requests_of,
    decide,
    reopen,
)
from app.store.approvals import approval, open_approval
from app.store.attempts import Attempt, pending_changes
from app.store.audit import append
from app.store.daily_counts import count_record
from app.store.read_tables import OnChainApproval
from app.store.wallets import WalletRecord
from app.submission.chain_state import current_account, require_no_gap
from app.submission.changes import earlier_outcome, submit_current
from app.submission.claim import Claim
from app.submission.context import Service
from app.submission.locks import LockScope
from app.submission.pending_changes import require_no_pending_change
from app.submission.plan import Plan, PlanType, SimulationFailedError
from app.submission.program_errors import business_error, error_name
from app.wallets import service as wallets

_DECISIONS = frozenset({"approve_payment", "close_approval"})
#: Program errors for an approval that does not fit the expense.
_UNUSABLE = frozenset({"WrongApproval", "ApprovalOutdated", "ApprovalExpired"})
_AT_ONCE = "The approval was changed concurrently. Retry."


def _reopen(conn: Connection, attempt: Attempt) -> None:
    assert attempt.recipient is not None
    reopen(conn, attempt.recipient)


_APPROVE = PlanType("approve_payment", resent=False, waits_for=_DECISIONS, on_failed=_reopen)
_CLOSE = PlanType("close_approval", resent=False, waits_for=_DECISIONS)
PLAN_TYPES = (_APPROVE, _CLOSE)


@dataclass(slots=True)
class Expense:
    """Money to be spent from a wallet: a payment, an escrow or an allowance. ``amount`` is in micro-USDC."""

    wallet: WalletRecord
    payee: Payee
    amount: int
    purpose: Purpose = "payment"
    memo: str | None = None
    terms: EscrowTerms | None = None


async def request(service: Service, by: Actor, refused: Expense, *, unusable: Collection[str] = ()) -> str:
    """Request the approval of an expense of ``by`` that `require_co_sign` refused, and return the approval's id.

    Returns the id of an equal pending or approved request instead, unless its approval's address is ``unusable``.
    """
    wallet = refused.wallet
    policy = (await wallets.find(service, wallet.org, wallet.wallet_id)).policy
    reference = new_reference()
    new = NewRequest(
        approval_id=id_of_approval(reference),
        org=wallet.org,
        wallet_id=wallet.wallet_id,
        address=str(service.addresses.approval(Pubkey.from_string(wallet.vault), reference)),
        recipient=refused.payee.name,
        recipient_address=str(refused.payee.owner),
        amount=refused.amount,
        purpose=refused.purpose,
        policy=policy.address,
        policy_id=policy.policy_id,
        policy_version=policy.version,
        threshold=policy.rules.require_co_sign,
        requested_by=by,
        memo=refused.memo,
        terms=None if refused.terms is None else refused.terms.digest,
        escrow_terms=None if refused.terms is None else refused.terms.model_dump(),
        created_at=service.clock.now_ms(),
    )

    def store(conn: Connection) -> str:
        identifier = add_request(conn, new, unusable=unusable)
        if identifier == new.approval_id and count_record(conn, new.wallet_id, "approval", new.created_at):
            report_approval(conn, "requested", new, new.created_at)
        return identifier

    return await service.db.write(store)


async def find_usable(service: Service, expense: Expense, *, unusable: Collection[str] = ()) -> OnChainApproval | None:
    """Return an on-chain approval for an agent's expense, or None. Approvals at ``unusable`` addresses are skipped.

    Only a simulation shows if the approval is really usable; see `is_unusable`.
    """
    org, vault, payee = expense.wallet.org, expense.wallet.vault, str(expense.payee.owner)
    amount, purpose, now = expense.amount, expense.purpose, service.clock.now()
    terms = None if expense.terms is None else expense.terms.digest
    return await service.db.read(
        lambda conn: open_approval(conn, org, vault, payee, amount, purpose, now, terms=terms, unusable=unusable)
    )


def is_unusable(service: Service, refused: SimulationFailedError) -> bool:
    """Return True if a simulation failed as it does for an approval that does not fit, is outdated, expired or gone."""
    return refused.lacks_account or error_name(service.codec, refused) in _UNUSABLE


async def get(service: Service, principal: Principal, approval_id: str) -> Approval:
    """Return an approval. Raises ``approval_not_found``, for an agent also if it belongs to another wallet."""
    return _shown(await _find(service, principal, approval_id))


async def page(service: Service, principal: Principal, query: ListApprovals) -> ApprovalPage:
    """Return one page of approvals, newest first. An agent sees only its wallet's. Raises ``wallet_not_found``."""
    if query.wallet_id is not None:
        await wallets.require(service, principal.org, query.wallet_id)

    now = service.clock.now_ms()

    def read(conn: Connection) -> RecordPage[ApprovalRequest]:
        return approval_requests_of(
            conn,
            principal.org,
            now,
            wallet_id=query.wallet_id or principal.wallet_id,
            status=query.status,
            limit=query.limit,
            cursor=query.cursor,
        )

    # A status depends on the chain and has no index, so a search for a rare status may be slow.
    return ApprovalPage.showing(await service.db.read(read, in_thread=query.status is not None), _shown)


async def approve(service: Service, principal: Principal, claim: Claim, approval_id: str) -> Approval:
    """Put the approval on the chain for 24 hours. An approved one stays approved.

    Raises ``approval_not_pending`` if it was used or rejected, or has expired. Raises ``approval_outdated`` if the
    policy that refused the payment is no longer the wallet's policy, or has changed.
    """
    wallet_id = (await _find(service, principal, approval_id)).wallet_id
    async with service.locks.hold(LockScope.APPROVAL, wallet_id):
        if await earlier_outcome(service, claim) is None:
            found = await _up_to_date(service, principal, approval_id)
            if found.status == "pending":
                await _submit(service, principal, claim, found, _approval)
            elif found.status != "approved":
                raise BusinessError("approval_not_pending", f"The approval is {found.status}.")
    return await get(service, principal, approval_id)


async def reject(service: Service, principal: Principal, claim: Claim, approval_id: str) -> Approval:
    """Record the rejection of a payment, or withdraw its unused approval from the chain.

    Raises ``approval_not_pending`` if the approval was used, or if it expired without a decision.
    """
    wallet_id = (await _find(service, principal, approval_id)).wallet_id
    async with service.locks.hold(LockScope.APPROVAL, wallet_id):
        if await earlier_outcome(service, claim) is None:
            found = await _up_to_date(service, principal, approval_id)
            if found.on_chain == "open":
                await _submit(service, principal, claim, found, _withdrawal)
            elif found.status == "pending":
                now = service.clock.now_ms()
                await claim.store(lambda conn: _reject(conn, principal, found, now))
            elif found.status != "rejected":
                raise BusinessError("approval_not_pending", f"The approval is {found.status}.")
    return await get(service, principal, approval_id)


async def _find(service: Service, principal: Principal, approval_id: str) -> ApprovalRequest:
    now = service.clock.now_ms()
    found = await service.db.read(lambda conn: approval_request(conn, principal.org, approval_id, now))
    if found is None or principal.wallet_id not in (None, found.wallet_id):
        raise NotFoundError("approval_not_found")
    return found


async def _up_to_date(service: Service, principal: Principal, approval_id: str) -> ApprovalRequest:
    """Return the approval in its on-chain state, once no earlier decision about it can land any more."""
    await require_no_pending_change(
        service, principal.org, _DECISIONS, where=lambda earlier: earlier.recipient == approval_id
    )
    wallet_id = (await _find(service, principal, approval_id)).wallet_id
    await require_no_gap(service, (await wallets.find(service, principal.org, wallet_id)).vault)
    return await _find(service, principal, approval_id)


async def _approval(service: Service, found: ApprovalRequest) -> Instruction:
    wallet = await wallets.find_living(service, found.org, found.wallet_id)
    if (wallet.policy.address, wallet.policy.version) != (found.policy, found.policy_version):
        raise BusinessError("approval_outdated")
    vault = await current_account(service, wallet.vault, "Vault", sequence=wallet.sequence)
    return service.instructions(found.org).approve_payment(
        payer=service.signers.fee_payer_address,
        operator=service.signers.operator_address,
        vault=Pubkey.from_string(wallet.vault),
        policy=Pubkey.from_string(found.policy),
        reference=approval_reference(found.approval_id),
        recipient=Pubkey.from_string(found.recipient_address),
        amount=found.amount,
        expires_at=await _chain_time(service) + LIFETIME // 1000,
        kind=cast(SpendingKind, found.purpose.capitalize()),
        terms=bytes(32) if found.terms is None else bytes.fromhex(found.terms),
        policy_version=found.policy_version,
        expected_approvals=vault["approvals"],
    )


async def _withdrawal(service: Service, found: ApprovalRequest) -> Instruction:
    on_chain = await service.db.read(lambda conn: approval(conn, found.org, found.address))
    assert on_chain is not None
    return service.instructions(found.org).close_approval(
        signer=service.signers.operator_address,
        vault=Pubkey.from_string(on_chain.vault),
        approval=Pubkey.from_string(on_chain.address),
        rent_receiver=Pubkey.from_string(on_chain.payer),
    )


def _plan(
    service: Service, principal: Principal, found: ApprovalRequest, instruction: Instruction, *, rejects: bool = False
) -> Plan:
    by, now = principal.actor, service.clock.now_ms()

    def store(conn: Connection, attempt: Attempt) -> None:
        _require_undecided(conn, found, now, attempt)
        decide(conn, found.approval_id, by=by, now=now, rejected=rejects)

    return Plan(
        org=found.org,
        type=_CLOSE if rejects else _APPROVE,
        instructions=[instruction],
        signers=[service.signers.operator],
        wallet_id=found.wallet_id,
        recipient=found.approval_id,
        amount=found.amount,
        policy_id=found.policy_id,
        entry=principal.entry("approval.reject" if rejects else "approval.approve", found.approval_id),
        on_store=store,
    )


def _reject(conn: Connection, principal: Principal, found: ApprovalRequest, now: int) -> None:
    _require_undecided(conn, found, now)
    decide(conn, found.approval_id, by=principal.actor, now=now, rejected=True)
    append(conn, principal.entry("approval.reject", found.approval_id))
    by = shown_actor(principal.actor)
    report_approval(conn, "decided", found, now, decision="rejected", decided_by=by)


def _require_undecided(conn: Connection, found: ApprovalRequest, now: int, mine: Attempt | None = None) -> None:
    """Raise a conflict if the approval has changed since it was read, or another decision about it is pending.

    This check is needed because the lock does not bind other nodes.
    """
    now_found = approval_request(conn, found.org, found.approval_id, now)
    deciding = [
        one
        for one in pending_changes(conn, found.org, _DECISIONS, found.wallet_id)
        if one.recipient == found.approval_id and (mine is None or one.tx_id != mine.tx_id)
    ]
    if deciding or now_found is None or _state(now_found) != _state(found):
        raise ConflictError("idempotency_in_progress", _AT_ONCE)


def _state(found: ApprovalRequest) -> tuple[str, str | None]:
    return found.status, found.on_chain


async def _submit(
    service: Service,
    principal: Principal,
    claim: Claim,
    found: ApprovalRequest,
    build: Callable[[Service, ApprovalRequest], Awaitable[Instruction]],
) -> None:
    async def plan() -> Plan:
        return _plan(service, principal, found, await build(service, found), rejects=build is _withdrawal)

    try:
        await submit_current(service, plan, claim)
    except SimulationFailedError as refused:
        if refused.lacks_account:
            # A payment has just used the approval up.
            raise ConflictError("idempotency_in_progress", _AT_ONCE) from None
        await service.catch_up()
        now = service.clock.now_ms()
        await service.db.read(lambda conn: _require_undecided(conn, found, now))
        raise business_error(service.codec, refused) from None


async def _chain_time(service: Service) -> int:
    """Return the time of the last finalized block. The program refuses an expiry over 24 hours after its own clock."""
    return await service.chain.block_time(await service.chain.slot("finalized"))


def _shown(found: ApprovalRequest) -> Approval:
    # A decision does not count if its transaction failed.
    decided = found.on_chain is not None or found.status == "rejected"
    return Approval.of(found) if decided else Approval.of(found, decided_by=None, decided_at=None)
