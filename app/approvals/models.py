"""Approvals as queried and shown."""

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
    """The approval of one payment, escrow or allowance, as its `type` says.

    While it is pending, `expires_at` ends the time to decide; afterwards, the time to pay. `chain_address` is its
    address on the chain once it is approved; `decided_by` is who decided. `requested_by` sent the request that was
    refused, with this `memo`; `threshold` is the policy's `requireCoSign` at that time, of version `policy_version`.
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
