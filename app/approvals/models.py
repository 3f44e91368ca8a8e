"""Queries and response bodies of approvals."""

from typing import Annotated, Literal

from app.api.fields import (
    ApprovalId,
    Identifier,
    ListResponse,
    Page,
    PolicyId,
    ReadFrom,
    ResponseBody,
    Time,
    Usdc,
    WalletId,
)
from app.core.actors import Actor
from app.core.transaction_types import Purpose

ApprovalStatus = Literal["pending", "approved", "rejected", "used", "expired"]


class ListApprovals(Page):
    """Query of the approvals."""

    status: ApprovalStatus | None = None
    wallet_id: Identifier | None = None


class Approval(ResponseBody):
    """The approval of one payment, escrow or allowance; `type` tells which.

    While it is pending, `expires_at` ends the time to decide; once it is approved, the time to pay. Approving it
    creates the account at `chain_address`. `decided_by` is the actor that decided. `requested_by` sent the refused
    request, with this `memo`. `threshold` is the `requireCoSign` of the policy at that time, in version
    `policy_version`.
    """

    approval_id: ApprovalId
    id: Annotated[ApprovalId, ReadFrom("approval_id")]
    type: Annotated[Purpose, ReadFrom("purpose")]
    wallet_id: WalletId
    recipient: str
    recipient_address: str
    amount: Usdc
    currency: str
    policy_id: PolicyId
    policy_version: int
    threshold: Usdc | None
    requested_by: Actor
    memo: str | None
    status: ApprovalStatus
    chain_address: Annotated[str, ReadFrom("address")]
    created_at: Time
    expires_at: Time
    decided_by: Actor | None
    decided_at: Time | None


class ApprovalPage(ListResponse[Approval]):
    """One page of approvals, newest first."""
