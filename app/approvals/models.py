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
    """The terms of an escrow that its approval covers, in addition to receiver and amount.

    The approval on the chain contains only their `hash`.
    """

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
    """The seconds until the deadline, as requested. On the chain, the time is one second longer, up to the maximum,
    because the current second has already begun. `hash` covers the longer time.
    """
    verifier: Annotated[str, example("GPD3VD2ynJDPEhWeqQ6F9yUqX41bdAxNw1p84HoLQss2")]
    """The organisation's key for proofs at the time of the refused request."""
    arbiter: Annotated[str, example("GPD3VD2ynJDPEhWeqQ6F9yUqX41bdAxNw1p84HoLQss2")]
    """The organisation's key for disputes at the time of the refused request."""

    @property
    def digest(self) -> str:
        """The hash as hexadecimal digits, without the prefix `sha256:`."""
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
    """The approval of one payment, escrow or allowance, according to `type`.

    While the approval is pending, `expires_at` is the deadline for the decision; once it is approved, the deadline for
    the payment. Approving creates the account at `chain_address`. `decided_by` is the actor that decided.
    `requested_by` is the sender of the refused request, and `memo` is its memo. `threshold` is the `requireCoSign` of
    the policy version that refused the request, `policy_version`. An escrow's approval covers exactly its
    `escrow_terms`.
    """

    approval_id: ApprovalId
    """The approval's id, under both names. It begins with `apr_`."""
    id: Annotated[ApprovalId, ReadFrom("approval_id")]
    """The approval's id, under both names. It begins with `apr_`."""
    type: Annotated[Purpose, ReadFrom("purpose")]
    """The kind of the approved expense: `payment`, `escrow` or `allowance`."""
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
    """The version of the policy that refused the request. The approval is valid only under this version."""
    threshold: Usdc | None
    """The policy's `requireCoSign` in the version `policy_version`. The amount exceeds it."""
    requested_by: Actor
    """The sender of the refused request. A later equal request does not change this field."""
    memo: Annotated[str | None, example("Order 1024")]
    """The memo of the refused request. A later equal request does not change this field."""
    escrow_terms: EscrowTerms | None
    """The terms that the approval of an escrow covers; null for other types."""
    status: ApprovalStatus
    """The status: `pending`, `approved`, `rejected`, `used` or `expired`."""
    outdated: bool
    """True if the approval can no longer be given or used, because the wallet has another policy or another version of
    it than at the request. Send the refused request again. Always false once the approval is used, rejected or expired.
    """
    chain_address: Annotated[str, ReadFrom("address"), example("GPD3VD2ynJDPEhWeqQ6F9yUqX41bdAxNw1p84HoLQss2")]
    """The on-chain address of the approval, once it is approved."""
    created_at: Time
    """The time of the refused payment."""
    expires_at: Time
    """The end of the time to decide while the approval is pending; afterwards, the end of the time to pay."""
    decided_by: Actor | None
    """The actor that decided. Null until the decision."""
    decided_at: Time | None
    """The time of the decision. Null before it."""
    approvals_required: Annotated[int, example(2)]
    """The number of people who must approve, according to the policy's `approvals`. Zero if one operator or admin
    suffices, as a person or as an API key with that role.
    """
    approvals: list[PersonApproval]
    """The approvals that people have given so far. Empty if `approvals_required` is zero."""
    reason: Annotated[str | None, example("Use the other supplier")]
    """The reason of the rejection, if one was given."""


class ApprovalPage(ListResponse[Approval]):
    """One page of approvals, newest first."""
