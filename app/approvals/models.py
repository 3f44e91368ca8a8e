"""Queries and response bodies of approvals."""

from typing import Annotated, Literal

from app.api.fields import (
    ApprovalId,
    Currency,
    EmptyBody,
    HexHash,
    ListResponse,
    Page,
    PolicyId,
    ReadFrom,
    RecipientShown,
    ResponseBody,
    Text,
    Time,
    Usdc,
    WalletId,
    WalletRef,
    example,
)
from app.core.actors import Actor
from app.core.transaction_types import Purpose

ApprovalStatus = Literal["pending", "approved", "rejected", "used", "expired"]


class ListApprovals(Page):
    """Query of the approvals. All given filters must match."""

    status: ApprovalStatus | None = None
    """The status of the approvals."""
    wallet_id: WalletRef | None = None
    """The wallet of the approvals."""


class EscrowTerms(ResponseBody):
    """The terms of an escrow that its approval covers, besides receiver and amount. `hash` is on the chain."""

    hash: HexHash
    """The hash of all these terms, which the approval on the chain contains."""
    task_description: Annotated[str, example("Translate the page")]
    """The task."""
    task_hash: HexHash
    """The hash of the task."""
    output_commitment: HexHash | None
    """The SHA-256 of the expected output hash; null if any output is accepted."""
    proof_types: Annotated[list[str], example(["output_hash"])]
    """The accepted proofs."""
    timeout_seconds: Annotated[int, example(3600)]
    """The seconds until the deadline, as requested. The chain adds the second that has already begun, and `hash` covers
    that sum, unless it exceeds the maximum.
    """
    verifier: Annotated[str, example("GPD3VD2ynJDPEhWeqQ6F9yUqX41bdAxNw1p84HoLQss2")]
    """The organisation's key for proofs at that time."""
    arbiter: Annotated[str, example("GPD3VD2ynJDPEhWeqQ6F9yUqX41bdAxNw1p84HoLQss2")]
    """The organisation's key for disputes at that time."""

    @property
    def digest(self) -> str:
        """The hash as hexadecimal digits alone."""
        return self.hash.removeprefix("sha256:")


class RejectApproval(EmptyBody):
    """Body of a rejection."""

    reason: Annotated[Text, example("Use the other supplier")] | None = None
    """The reason, shown to the agent."""


class PersonApproval(ResponseBody):
    """A person's approval. It lapses once the person is removed or becomes a viewer."""

    by: Actor
    """The person."""
    decided_at: Time
    """The time of the approval."""


class Approval(ResponseBody):
    """The approval of one payment, escrow or allowance; `type` tells which.

    While it is pending, `expires_at` ends the time to decide; once it is approved, the time to pay. Approving it
    creates the account at `chain_address`. `decided_by` is the actor that decided. `requested_by` sent the refused
    request, with this `memo`. `threshold` is the `requireCoSign` of the policy at that time, in version
    `policy_version`. An escrow's approval covers exactly its `escrow_terms`.
    """

    approval_id: ApprovalId
    """The approval's id, under both names. It begins with `apr_`."""
    id: Annotated[ApprovalId, ReadFrom("approval_id")]
    """The approval's id, under both names. It begins with `apr_`."""
    type: Annotated[Purpose, ReadFrom("purpose")]
    """The purpose that it approves: `payment`, `escrow` or `allowance`."""
    wallet_id: WalletId
    """The paying wallet."""
    recipient: RecipientShown
    """The recipient as named in the request."""
    recipient_address: RecipientShown
    """The recipient's address."""
    amount: Usdc
    """The amount."""
    currency: Currency
    """The currency, always `USDC`."""
    policy_id: PolicyId
    """The policy that refused the payment."""
    policy_version: Annotated[int, example(3)]
    """The version of the policy at that time. The approval is not valid under any other version."""
    threshold: Usdc | None
    """The policy's `requireCoSign` in that version. The amount exceeds it."""
    requested_by: Actor
    """The sender of the refused request. A later equal request does not change it."""
    memo: Annotated[str | None, example("Order 1024")]
    """The memo of the refused request. A later equal request does not change it."""
    escrow_terms: EscrowTerms | None
    """The terms that the approval of an escrow covers; null for other types."""
    status: ApprovalStatus
    """The status: `pending`, `approved`, `rejected`, `used` or `expired`."""
    chain_address: Annotated[str, ReadFrom("address"), example("GPD3VD2ynJDPEhWeqQ6F9yUqX41bdAxNw1p84HoLQss2")]
    """The on-chain address of the approval, once it is approved."""
    created_at: Time
    """The time of the refused payment."""
    expires_at: Time
    """The end of the time to decide while the approval is pending; afterwards, the end of the time to pay."""
    decided_by: Actor | None
    """The actor that decided. Null until then."""
    decided_at: Time | None
    """The time of the decision. Null until then."""
    approvals_required: Annotated[int, example(2)]
    """The number of people who must approve, by the policy's `approvals`. Zero if one operator or admin, or a key of
    that role, suffices.
    """
    approvals: list[PersonApproval]
    """The people who have approved, if the number is above zero."""
    reason: Annotated[str | None, example("Use the other supplier")]
    """The reason of the rejection, if one was given."""


class ApprovalPage(ListResponse[Approval]):
    """One page of approvals, newest first."""
