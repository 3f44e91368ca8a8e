"""Approvals: an agent's expense above its policy's threshold needs the operator's consent beforehand.

The refusal of a payment, escrow or allowance creates the request. The operator's consent puts the approval on the
chain. The agent then sends the refused request again, which uses the approval up.
"""

from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any, cast

from solders.instruction import Instruction
from solders.pubkey import Pubkey
from sqlalchemy import Connection

from app.access.keyring import Principal
from app.approvals.models import Approval, ApprovalPage, EscrowTerms, ListApprovals, PersonApproval
from app.chain.payment_instructions import SpendingKind
from app.core.errors import BusinessError, ConflictError, NotFoundError
from app.core.identifiers import approval_reference
from app.core.pages import RecordPage
from app.core.transaction_types import Purpose
from app.policies import consent
from app.policies import service as policies
from app.recipients.service import Payee
from app.store.approval_decisions import ApprovalDecision
from app.store.approval_events import report_approval, shown_actor
from app.store.approval_requests import (
    LIFETIME,
    ApprovalRequest,
    approval_request,
    approval_requests_of,
    decide,
    reopen,
)
from app.store.approvals import approval, details, open_approval
from app.store.attempts import Attempt, pending_changes
from app.store.audit import NewLogEntry, append
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


async def required_for(service: Service, payer: WalletRecord, amount: int) -> int:
    """Return the number of people who must approve an expense of ``amount`` micro-USDC under the policy, or 0."""
    policy = await policies.find(service, payer.org, payer.policy.policy_id)
    return consent.required_for(consent.in_force(policy), amount)


async def find_usable(service: Service, expense: Expense, *, unusable: Collection[str] = ()) -> OnChainApproval | None:
    """Return an on-chain approval for an agent's expense, or None. Approvals at ``unusable`` addresses are skipped.

    Only a simulation shows if the approval is really usable; see `is_unusable`.
    """
    org, vault, payee = expense.wallet.org, expense.wallet.vault, str(expense.payee.owner)
    amount, purpose, now = expense.amount, expense.purpose, service.clock.now()
    terms = None if expense.terms is None else expense.terms.digest
    needed = await required_for(service, expense.wallet, expense.amount)

    def read(conn: Connection) -> OnChainApproval | None:
        return open_approval(
            conn, org, vault, payee, amount, purpose, now, required=needed, terms=terms, unusable=unusable
        )

    return await service.db.read(read)


def is_unusable(service: Service, refused: SimulationFailedError) -> bool:
    """Return True if a simulation failed because the approval does not fit, is outdated, expired or gone."""
    return refused.lacks_account or error_name(service.codec, refused) in _UNUSABLE


async def get(service: Service, principal: Principal, approval_id: str) -> Approval:
    """Return an approval. Raises ``approval_not_found``, to agents also for approvals of other wallets."""
    found = await _find(service, principal, approval_id)
    return _shown(found, *await service.db.read(lambda conn: details(conn, [found])))


async def page(service: Service, principal: Principal, query: ListApprovals) -> ApprovalPage:
    """Return one page of approvals, newest first, to agents only their wallet's. Raises ``wallet_not_found``."""
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

    # No index covers the status, which depends on the chain. A search for a rare status may be slow.
    found = await service.db.read(read, in_thread=query.status is not None)
    facts = await service.db.read(lambda conn: details(conn, found.data))
    return ApprovalPage.showing(found, lambda one: _shown(one, *facts))


async def approve(service: Service, principal: Principal, claim: Claim, approval_id: str) -> Approval:
    """Put the approval on the chain for 24 hours. Does nothing if it is already approved.

    Raises ``approval_not_pending`` if the approval was used or rejected, or has expired. Raises ``approval_outdated``
    if the policy that refused the payment is no longer the wallet's policy, or has changed. If people must approve,
    records the caller's consent. Only the last required consent puts the approval on the chain. Raises the errors of
    ``consent.approve``.
    """
    wallet_id = (await _find(service, principal, approval_id)).wallet_id
    async with service.locks.hold(LockScope.APPROVAL, wallet_id):
        if await earlier_outcome(service, claim) is None:
            found = await _up_to_date(service, principal, approval_id)
            enough = found.status == "pending" and await _approve_as_person(service, principal, found)
            if enough and found.on_chain is None:
                await _submit(service, principal, claim, found, _approval)
            elif found.status not in {"pending", "approved"}:
                raise BusinessError("approval_not_pending", f"The approval is {found.status}.")
    return await get(service, principal, approval_id)


async def _approve_as_person(service: Service, principal: Principal, found: ApprovalRequest) -> bool:
    """Record the caller's consent if people must approve. Return True if no more consent is required."""
    wallet = await wallets.find_living(service, found.org, found.wallet_id)
    required = await required_for(service, wallet, found.amount)
    if required != found.approvals_required:
        raise BusinessError("approval_outdated")
    if not required:
        return True
    given = await consent.approve(
        service,
        principal,
        found.approval_id,
        found.approval_id,
        requester=found.requested_by,
        # With one approval, the creator of an agent's key could request and approve alone.
        agents=required == 1,
    )
    by, now = shown_actor(principal.actor), service.clock.now_ms()
    told = {"approvals_given": given, "given_by": by}
    await service.db.write(lambda conn: report_approval(conn, "given", found, now, **told))
    return given >= required


async def reject(
    service: Service, principal: Principal, claim: Claim, approval_id: str, *, reason: str | None = None
) -> Approval:
    """Record the rejection of a payment, or withdraw its unused approval from the chain.

    Raises ``approval_not_pending`` if the approval was used, or if it expired without a decision.
    """
    wallet_id = (await _find(service, principal, approval_id)).wallet_id
    async with service.locks.hold(LockScope.APPROVAL, wallet_id):
        if await earlier_outcome(service, claim) is None:
            found = await _up_to_date(service, principal, approval_id)
            if found.on_chain == "open":
                await _submit(service, principal, claim, found, _withdrawal, reason=reason)
            elif found.status == "pending":
                now = service.clock.now_ms()
                await claim.store(lambda conn: _reject(conn, principal, found, now, reason))
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
    """Return the approval as on the chain. Raises ``chain_unavailable`` while an earlier decision can still land."""
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
    service: Service,
    principal: Principal,
    found: ApprovalRequest,
    instruction: Instruction,
    reason: str | None,
    *,
    rejects: bool,
) -> Plan:
    by, now = principal.actor, service.clock.now_ms()

    def store(conn: Connection, attempt: Attempt) -> None:
        _require_undecided(conn, found, now, attempt)
        decide(conn, found.approval_id, by=by, now=now, rejected=rejects, reason=reason)

    entry: NewLogEntry | None = principal.entry("approval.reject" if rejects else "approval.approve", found.approval_id)
    if found.approvals_required and not rejects:
        # The audit log already has an entry for each person's consent.
        entry = None
    return Plan(
        org=found.org,
        type=_CLOSE if rejects else _APPROVE,
        instructions=[instruction],
        signers=[service.signers.operator],
        wallet_id=found.wallet_id,
        recipient=found.approval_id,
        amount=found.amount,
        policy_id=found.policy_id,
        actor=by,
        entry=entry,
        on_store=store,
    )


def _reject(conn: Connection, principal: Principal, found: ApprovalRequest, now: int, reason: str | None) -> None:
    _require_undecided(conn, found, now)
    decide(conn, found.approval_id, by=principal.actor, now=now, rejected=True, reason=reason)
    append(conn, principal.entry("approval.reject", found.approval_id))
    by = shown_actor(principal.actor)
    report_approval(conn, "decided", found, now, decision="rejected", decided_by=by, reason=reason)


def _require_undecided(conn: Connection, found: ApprovalRequest, now: int, mine: Attempt | None = None) -> None:
    """Raise a conflict if the approval has changed since it was read, or another decision about it is pending.

    The check is needed because the lock of this node does not stop other nodes.
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
    *,
    reason: str | None = None,
) -> None:
    async def plan() -> Plan:
        rejects = build is _withdrawal
        return _plan(service, principal, found, await build(service, found), reason=reason, rejects=rejects)

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
    """Return the last finalized block's time. The program refuses approvals that last over 24 hours by its clock."""
    return await service.chain.block_time(await service.chain.slot("finalized"))


def _shown(found: ApprovalRequest, given: Sequence[ApprovalDecision], void: Collection[str]) -> Approval:
    # A decision does not count if its transaction failed.
    decided = found.on_chain is not None or found.status == "rejected"
    shown: dict[str, Any] = {} if decided else {"decided_by": None, "decided_at": None}
    people = [PersonApproval.of(one) for one in given if one.subject == found.approval_id]
    return Approval.of(found, approvals=people, outdated=found.approval_id in void, **shown)
