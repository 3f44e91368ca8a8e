"""Payments and transactions."""

from typing import Annotated, Literal

from pydantic import ConfigDict, Field

from app.models.base import (
    Amount,
    Answer,
    ApprovalId,
    Body,
    End,
    ErrorBody,
    IdempotencyKey,
    Identifier,
    Memo,
    Moment,
    Page,
    PolicyId,
    Recipient,
    RecipientText,
    Time,
    TransactionId,
    Usdc,
    WalletId,
    without_defaults,
)

TransactionStatus = Literal["pending", "confirmed", "blocked", "failed"]
TransactionType = Literal[
    "payment", "funding", "withdrawal", "a2a_send", "a2a_receive", "escrow_lock", "escrow_release", "escrow_refund"
]


class PayFromWallet(Body):
    """Body of a payment whose wallet stands in the path."""

    to: Recipient
    amount: Amount
    currency: Literal["USDC"]
    memo: Memo | None = None
    idempotency_key: IdempotencyKey | None = None


class CreatePayment(PayFromWallet):
    """Body of a payment."""

    wallet_id: Identifier


class SimulatePayment(Body):
    """Body of a payment's rehearsal: that of the payment, whose memo and idempotency key have no effect here."""

    wallet_id: Identifier
    to: Recipient
    amount: Amount
    currency: Literal["USDC"] = "USDC"
    memo: Memo | None = None
    idempotency_key: IdempotencyKey | None = None


class ListWalletTransactions(Page):
    """Query of a wallet's transactions; `from` is inclusive, `to` exclusive."""

    status: TransactionStatus | None = None
    type: TransactionType | None = None
    from_: Annotated[Moment | None, Field(alias="from")] = None
    to: End | None = None


class ListTransactions(ListWalletTransactions):
    """Query of the organisation's transactions."""

    wallet_id: Identifier | None = None
    recipient: RecipientText | None = None


class Payment(Answer):
    """A payment as its request answers it."""

    tx_id: TransactionId
    id: TransactionId
    wallet_id: WalletId
    recipient: str
    amount: Usdc
    currency: str
    status: TransactionStatus
    tx_signature: str | None
    on_chain_slot: int | None
    policy_triggered: bool
    memo: str | None
    timestamp: Time


class QuickPayment(Payment):
    """The same with the quick start's name of the signature."""

    signature: str | None


class Violation(Answer):
    """The rule that refused, its limit and what the payment would have made of it."""

    rule: str
    limit: str
    attempted: str


class PolicyViolationBody(ErrorBody):
    """The error of a payment or an escrow that the wallet's policy refused.

    `approval_id` is that of the approval with which it would pass, where there is one.
    """

    model_config = ConfigDict(extra="allow", json_schema_extra=without_defaults)

    code: Literal["policy_violation"]
    violation: Violation
    wallet_id: WalletId
    policy_id: PolicyId
    approval_id: ApprovalId = ""


class PolicyViolationEnvelope(Answer):
    """What a refusal by the policy answers."""

    error: PolicyViolationBody


class Transaction(Payment):
    """A transaction with all that is known of it."""

    type: TransactionType
    policy_id: PolicyId | None
    agent_attestation_hash: str | None
    explorer_url_1: str | None
    explorer_url_2: str | None
    violation: Violation | None


class TransactionPage(Answer):
    """One page of transactions, newest first."""

    data: list[Transaction]
    has_more: bool
    next_cursor: str | None


class RuleVerdict(Answer):
    """What one rule says; money as decimal strings, counts and codes as their digits."""

    rule: str
    set: bool
    passed: bool
    limit: str | None
    attempted: str | None
    headroom: str | None
    retry_at: Time | None


class Simulation(Answer):
    """The verdict of every rule on a payment that is not made."""

    wallet_id: WalletId
    recipient: str
    amount: Usdc
    currency: str
    allowed: bool
    usdc_balance: Usdc
    retry_at: Time | None
    rules: list[RuleVerdict]
