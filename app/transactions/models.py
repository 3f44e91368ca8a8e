"""Transactions in requests and responses."""

from typing import Annotated

from pydantic import Field

from app.api.error_bodies import Violation
from app.api.fields import (
    BudgetRef,
    Category,
    Currency,
    Digest,
    End,
    Identifier,
    ListResponse,
    Moment,
    Page,
    PolicyId,
    ReadFrom,
    RecipientShown,
    RecipientText,
    ResponseBody,
    Signature,
    Tag,
    Time,
    TransactionId,
    Usdc,
    WalletId,
    WalletRef,
    example,
)
from app.api.hosts import Host
from app.core.transaction_types import ProtocolName, SettlementPath, TransactionStatus, TransactionType


class ListWalletTransactions(Page):
    """Query of a wallet's transactions; `from` is inclusive, `to` exclusive."""

    status: TransactionStatus | None = None
    """The status of the transactions. All given filters must match."""
    type: TransactionType | None = None
    """The type of the transactions."""
    from_: Annotated[Moment | None, Field(alias="from")] = None
    """The start of the period. It belongs to the period."""
    to: End | None = None
    """The end of the period, after its start. It does not belong to the period."""
    x402_host: Host | None = None
    """The host of the resource that a payment is for, by x402 or MPP; `*` for any host. With this filter, `status`
    refers to the payment itself. Without it, a payment out of an allowance counts as `confirmed` as soon as the
    allowance is granted.
    """


class ListTransactions(ListWalletTransactions):
    """Query of the organisation's transactions."""

    wallet_id: WalletRef | None = None
    """The wallet of the transactions."""
    recipient: RecipientText | None = None
    """The recipient: an address, or a domain as the payment named it."""
    tag: Tag | None = None
    """A tag that the wallet had when it made the payment or escrow."""
    budget_id: BudgetRef | None = None
    """The budget of the wallet when it made the payment or escrow."""
    category: Category | None = None
    """The registered category of the recipient when the payment or escrow was made."""
    rule: Annotated[Identifier, example("max_per_tx")] | None = None
    """The rule that refused the payment or escrow."""
    spending: bool = False
    """True to list only the transactions that `GET /v1/insights/spending` counts: confirmed payments and escrows, and
    refusals.
    """


class Payment(ResponseBody):
    """A payment in the response to its request."""

    tx_id: TransactionId
    """The transaction's id, which begins with `tx_`. `id` and `tx_id` are equal."""
    id: Annotated[TransactionId, ReadFrom("tx_id")]
    """The transaction's id, which begins with `tx_`. `id` and `tx_id` are equal."""
    wallet_id: WalletId
    """The paying wallet."""
    recipient: RecipientShown
    """The recipient as in the request. A wallet is shown by its address."""
    amount: Usdc
    """The amount."""
    currency: Currency
    """The currency, always `USDC`."""
    status: TransactionStatus
    """The status of the payment. `/docs/reference` explains each status."""
    tx_signature: Annotated[Signature | None, ReadFrom("signature")]
    """The signature of the transaction on the chain. Null if nothing was sent."""
    on_chain_slot: Annotated[int | None, ReadFrom("slot"), example(312345678)]
    """The slot that confirmed the payment. Null until then."""
    policy_triggered: bool
    """True if the policy refused the payment, or an operator co-signed or approved it."""
    memo: Annotated[str | None, example("Order 1024")]
    """The memo as sent. It is not stored on the chain."""
    timestamp: Time
    """The time of the request."""


class PaidFor(ResponseBody):
    """The resource that an x402 payment is for.

    `resource_status` is the status of the resource's response, or null if it is unknown.
    """

    url: Annotated[str, example("https://example.com/agent-vault")]
    """The URL of the resource."""
    scheme: Annotated[str, example("exact")]
    """The payment scheme, as named by the protocol."""
    network: Annotated[str, example("solana:5eykt4UsFv8P8NJdTREpY1vzqKqZKvdp")]
    """The network, as named by the protocol."""
    pay_to: RecipientShown
    """The address that is paid."""
    facilitator: Annotated[str, example("3h1zGmCwsRJnVk5BuRNMLsPaQu1y2aqXqXDWYCgrp5UG")]
    """The address that pays the fee: the facilitator that settles the payment, the MPP server or the service."""
    lane: SettlementPath
    """The settlement path: `enforced` if the program judges the payment when it is settled, `allowance` if a delegate
    pays it out of an allowance. With `allowance`, the transaction's `status`, `tx_signature` and `on_chain_slot`
    describe the delegate's transfer.
    """
    resource_status: Annotated[int | None, example(200)]
    """The status of the resource's response to the payment. Null if it is unknown."""


class PaidRequest(PaidFor):
    """The resource that a payment is for, and the protocol of the paid request."""

    protocol: ProtocolName
    """The protocol of the paid request: `x402` or `mpp`."""


class Transaction(Payment):
    """A transaction in lists and lookups.

    If the transaction pays for a resource, `paid_request` describes it; if the payment is by x402, so does `x402`.
    Otherwise these fields are null. `refusals` is the number of refusals that a blocked row stands for, and null for
    other rows.
    """

    type: TransactionType
    """The type of the transaction. `/docs/reference` explains each type."""
    policy_id: PolicyId | None
    """The policy that judged the transaction. For a single funding or withdrawal, it is the wallet's policy at the
    time. Null if none judged it.
    """
    agent_attestation_hash: Annotated[Digest | None, ReadFrom("attestation_hash")]
    """`sha256:` and the hash of the message that the agent's session signed. Null if an operator signed."""
    explorer_url_1: Annotated[
        str | None,
        example(
            "https://explorer.solana.com/tx/GSVddtw6XXirvwr1T9Ncu189Cupiqg9SVbQZn5waWQg9R2vZ4aawVtCwYpCzNa7pstBu79s3s9LT2fwkX3hv3fX"
        ),
    ]
    """Link to the transaction in an explorer."""
    explorer_url_2: Annotated[
        str | None,
        example(
            "https://solscan.io/tx/GSVddtw6XXirvwr1T9Ncu189Cupiqg9SVbQZn5waWQg9R2vZ4aawVtCwYpCzNa7pstBu79s3s9LT2fwkX3hv3fX"
        ),
    ]
    """Link to the transaction in another explorer."""
    violation: Violation | None
    """The rule that a refused transaction broke."""
    refusals: Annotated[int | None, example(1)]
    """The number of refusals that a `blocked` row stands for: 1, or more if the row counts equal refusals within an
    hour. Null for other rows, and for refusals that were recorded before this field was introduced.
    """
    x402: PaidFor | None
    """The paid resource without the protocol, if this is an x402 payment; null otherwise."""
    paid_request: PaidRequest | None
    """The paid resource and its protocol, if this payment is for a resource; null otherwise."""


class TransactionPage(ListResponse[Transaction]):
    """One page of transactions, newest first."""
