"""Requests for approvals, made by refused expenses."""

from collections.abc import Collection
from dataclasses import asdict

from solders.pubkey import Pubkey
from sqlalchemy import Connection

from app.approvals.facts import facts_of
from app.approvals.service import Expense, required_for
from app.core.actors import Actor
from app.core.identifiers import approval_id as id_of_approval
from app.core.identifiers import new_reference
from app.core.money import format_usdc
from app.store.approval_events import report_approval
from app.store.approval_requests import NewRequest, add_request
from app.store.daily_counts import count_record
from app.submission.context import Service
from app.wallets import service as wallets


async def request(service: Service, by: Actor, refused: Expense, *, unusable: Collection[str] = ()) -> str:
    """Request the approval of an expense that a rule refused to ``by`` without it, and return the approval's id.

    If an equal request is pending or approved, returns its id instead, unless its approval's address is in
    ``unusable``.
    """
    wallet = await wallets.find(service, refused.wallet.org, refused.wallet.wallet_id)
    policy = wallet.policy
    reference, about = new_reference(), await facts_of(service, wallet, str(refused.payee.owner))
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
        approvals_required=await required_for(service, wallet, refused.amount),
        created_at=service.clock.now_ms(),
    )

    def store(conn: Connection) -> str:
        identifier = add_request(conn, new, unusable=unusable)
        if identifier == new.approval_id and count_record(conn, new.wallet_id, "approval", new.created_at):
            threshold = None if new.threshold is None else format_usdc(new.threshold)
            report_approval(conn, "requested", new, new.created_at, threshold=threshold, **asdict(about))
        return identifier

    return await service.db.write(store)
