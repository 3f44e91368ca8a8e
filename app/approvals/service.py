"""Approvals: an agent's payment or escrow above its policy's threshold waits for the operator's word, given before.

The refusal of such a payment asks for the approval. Once an operator has approved it stands on the chain, where the
same payment, sent again, uses it up.
"""

import time
from collections.abc import Collection
from typing import cast

from solders.pubkey import Pubkey
from sqlalchemy import Connection

from app.access.keyring import Principal
from app.approvals.models import Approval, ApprovalPage, ApprovalStatus, ListApprovals
from app.chain.errors import ChainUnavailable
from app.core.errors import BusinessError, ConflictError, NotFoundError
from app.core.identifiers import approval_id as id_of_approval
from app.core.identifiers import approval_reference, new_reference
from app.core.money import format_usdc
from app.core.timestamps import iso_ms, now_ms
from app.store.approval_requests import (
    LIFETIME,
    ApprovalRequest,
    NewRequest,
    add_request,
    approval_request,
    approval_requests_of,
    decide,
)
from app.store.approvals import OnChainApproval, approval, open_approval
from app.store.paging import RecordPage
from app.store.wallets import WalletRecord
from app.submission.changes import resumed, submit
from app.submission.context import Service
from app.submission.idempotency import Claim
from app.submission.locks import LockScope
from app.submission.ordering import wait_for_earlier
from app.submission.plan import Plan, PlanType, RefusedError
from app.submission.refusals import business_error, error_name
from app.wallets import service as wallets

_DECISIONS = frozenset({"approve_payment", "close_approval"})
_APPROVE = PlanType("approve_payment", resent=False, waits_for=_DECISIONS)
_CLOSE = PlanType("close_approval", resent=False, waits_for=_DECISIONS)
PLAN_TYPES = (_APPROVE, _CLOSE)


async def request(
    service: Service,
    wallet: WalletRecord,
    payee_address: Pubkey,
    recipient_name: str,
    amount: int,
    *,
    for_escrow: bool,
    unusable: Collection[str] = (),
) -> str:
    """Ask for the approval of a payment, or an escrow, that `require_co_sign` refused, and return the approval's id.

    While an equal payment waits for its approval or has it, that one's id is returned; unless the address of its
    Approval is among those that the chain has found ``unusable``.
    """
    refusing = (await wallets.find(service, wallet.org, wallet.wallet_id)).policy
    reference = new_reference()
    new = NewRequest(
        approval_id=id_of_approval(reference),
        org=wallet.org,
        wallet_id=wallet.wallet_id,
        address=str(service.addresses.approval(Pubkey.from_string(wallet.vault), reference)),
        recipient=recipient_name,
        recipient_address=str(payee_address),
        amount=amount,
        for_escrow=for_escrow,
        policy=refusing.address,
        policy_id=refusing.policy_id,
        policy_version=refusing.version,
        created_at=now_ms(),
    )
    return await service.db.write(lambda conn: add_request(conn, new, unusable=unusable))


async def given(
    service: Service,
    wallet: WalletRecord,
    payee_address: Pubkey,
    amount: int,
    *,
    for_escrow: bool,
    unusable: Collection[str] = (),
) -> OnChainApproval | None:
    """Return an approval on the chain that lets the agent do this; None when there is none but ``unusable``.

    The rehearsal tells whether it is usable: see `is_unusable`.
    """
    org, vault, payee, now = wallet.org, wallet.vault, str(payee_address), int(time.time())
    return await service.db.read(
        lambda conn: open_approval(conn, org, vault, payee, amount, for_escrow, now, unusable=unusable)
    )


def is_unusable(service: Service, refused: RefusedError) -> bool:
    """Whether a rehearsal blames the approval: it has ended in a way the read models do not show, or is used up."""
    return _is_gone(refused) or error_name(service.codec, refused) == "WrongApproval"


def _is_gone(refused: RefusedError) -> bool:
    """Whether an instruction failed without an error of a program's own, as for an account that is not there."""
    return refused.simulation.failed_instruction is not None and refused.simulation.custom_error is None


async def get(service: Service, principal: Principal, approval_id: str) -> Approval:
    """Return an approval. Raises ``approval_not_found``, for an agent also when it is another wallet's."""
    return _shown(await _find(service, principal, approval_id))


async def page(service: Service, principal: Principal, query: ListApprovals) -> ApprovalPage:
    """One page of approvals, newest first; an agent sees its own wallet's."""
    if query.wallet_id is not None:
        await wallets.require(service, principal.org, query.wallet_id)

    def read(conn: Connection) -> RecordPage[ApprovalRequest]:
        return approval_requests_of(
            conn,
            principal.org,
            now_ms(),
            wallet_id=query.wallet_id or principal.wallet_id,
            status=query.status,
            limit=query.limit,
            cursor=query.cursor,
        )

    # What follows from the chain has no index: to find a page of few among many may take a while.
    found = await service.db.read(read) if query.status is None else await service.db.read(read, in_thread=True)
    return ApprovalPage(
        data=[_shown(one) for one in found.data], has_more=found.has_more, next_cursor=found.next_cursor
    )


async def approve(service: Service, principal: Principal, claim: Claim, approval_id: str) -> Approval:
    """Leave the approval on the chain, for 24 hours; what is approved already stays so.

    Raises ``approval_not_pending`` when it can no longer be decided, and ``approval_outdated`` when the wallet's policy
    is another than the one that refused the payment.
    """
    await _find(service, principal, approval_id)
    async with service.locks.hold(LockScope.APPROVAL, approval_id):
        if await resumed(service, claim) is None:
            found = await _up_to_date(service, principal, approval_id)
            if found.status == "pending":
                await _submit(service, claim, await _approval(service, principal, found))
            elif found.status != "approved":
                raise BusinessError("approval_not_pending", f"The approval is {found.status}.")
    return await get(service, principal, approval_id)


async def reject(service: Service, principal: Principal, claim: Claim, approval_id: str) -> Approval:
    """Reject a payment: record it, or withdraw from the chain what was approved there and not used.

    Raises ``approval_not_pending`` when it was used, or its time passed without a decision.
    """
    await _find(service, principal, approval_id)
    async with service.locks.hold(LockScope.APPROVAL, approval_id):
        if await resumed(service, claim) is None:
            found = await _up_to_date(service, principal, approval_id)
            if found.on_chain == "open":
                await _submit(service, claim, await _withdrawal(service, principal, found))
            elif found.status == "pending":
                by, now = principal.key_id, now_ms()
                await service.db.write(lambda conn: decide(conn, approval_id, by=by, now=now, rejected=True))
            elif found.status != "rejected":
                raise BusinessError("approval_not_pending", f"The approval is {found.status}.")
    return await get(service, principal, approval_id)


async def _find(service: Service, principal: Principal, approval_id: str) -> ApprovalRequest:
    found = await service.db.read(lambda conn: approval_request(conn, principal.org, approval_id, now_ms()))
    if found is None or principal.wallet_id not in (None, found.wallet_id):
        raise NotFoundError("approval_not_found")
    return found


async def _up_to_date(service: Service, principal: Principal, approval_id: str) -> ApprovalRequest:
    """Return the approval as the chain has it, when no earlier decision on it can land any more."""
    await wait_for_earlier(service, principal.org, _DECISIONS, where=lambda earlier: earlier.recipient == approval_id)
    await service.catch_up()
    return await _find(service, principal, approval_id)


async def _approval(service: Service, principal: Principal, found: ApprovalRequest) -> Plan:
    wallet = await wallets.find_living(service, found.org, found.wallet_id)
    if (wallet.policy.address, wallet.policy.version) != (found.policy, found.policy_version):
        raise BusinessError("approval_outdated")
    instruction = service.instructions(found.org).approve_payment(
        payer=service.signers.fee_payer_address,
        operator=service.signers.operator_address,
        vault=Pubkey.from_string(wallet.vault),
        policy=Pubkey.from_string(found.policy),
        reference=approval_reference(found.approval_id),
        recipient=Pubkey.from_string(found.recipient_address),
        amount=found.amount,
        expires_at=await _chain_time(service) + LIFETIME // 1000,
        for_escrow=found.for_escrow,
    )
    now = now_ms()
    return Plan(
        org=found.org,
        type=_APPROVE,
        instructions=[instruction],
        signers=[service.signers.operator],
        wallet_id=found.wallet_id,
        recipient=found.approval_id,
        amount=found.amount,
        policy_id=found.policy_id,
        on_store=lambda conn, _attempt: decide(conn, found.approval_id, by=principal.key_id, now=now, rejected=False),
    )


async def _withdrawal(service: Service, principal: Principal, found: ApprovalRequest) -> Plan:
    given = await service.db.read(lambda conn: approval(conn, found.org, found.address))
    assert given is not None
    instruction = service.instructions(found.org).close_approval(
        signer=service.signers.operator_address,
        vault=Pubkey.from_string(given.vault),
        approval=Pubkey.from_string(given.address),
        rent_receiver=Pubkey.from_string(given.payer),
    )
    now = now_ms()
    return Plan(
        org=found.org,
        type=_CLOSE,
        instructions=[instruction],
        signers=[service.signers.operator],
        wallet_id=found.wallet_id,
        recipient=found.approval_id,
        amount=found.amount,
        policy_id=found.policy_id,
        on_store=lambda conn, _attempt: decide(conn, found.approval_id, by=principal.key_id, now=now, rejected=True),
    )


async def _submit(service: Service, claim: Claim, plan: Plan) -> None:
    try:
        await submit(service, plan, claim)
    except RefusedError as refused:
        if _is_gone(refused):
            # A payment has just used the approval.
            raise ConflictError(
                "idempotency_in_progress", "It was used at the same time. Repeat the request."
            ) from None
        raise business_error(service.codec, refused) from None


async def _chain_time(service: Service) -> int:
    """Return the time of the last finalized block: from later than 24 h after its own clock the program refuses."""
    slot = await service.chain.call("getSlot", [{"commitment": "finalized"}])
    moment = await service.chain.call("getBlockTime", [slot])
    if not isinstance(moment, int):
        raise ChainUnavailable("the node does not tell the time of its last finalized block")
    return moment


def _shown(found: ApprovalRequest) -> Approval:
    # A decision whose transaction failed is none.
    decided_at = found.decided_at if found.on_chain is not None or found.status == "rejected" else None
    return Approval(
        approval_id=found.approval_id,
        id=found.approval_id,
        type="escrow" if found.for_escrow else "payment",
        wallet_id=found.wallet_id,
        recipient=found.recipient,
        recipient_address=found.recipient_address,
        amount=format_usdc(found.amount),
        currency="USDC",
        policy_id=found.policy_id,
        policy_version=found.policy_version,
        status=cast(ApprovalStatus, found.status),
        chain_address=found.address,
        created_at=iso_ms(found.created_at),
        expires_at=iso_ms(found.expires_at),
        decided_by=None if decided_at is None else found.decided_by,
        decided_at=None if decided_at is None else iso_ms(decided_at),
    )
