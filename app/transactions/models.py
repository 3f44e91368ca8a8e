"""Transactions in requests and responses."""

from typing import Annotated

from pydantic import Field

from app.api.error_bodies import Violation
from app.api.fields import (
    End,
    Identifier,
    ListResponse,
    Moment,
    Page,
    PolicyId,
    ReadFrom,
    RecipientText,
    ResponseBody,
    Time,
    TransactionId,
    Usdc,
    WalletId,
)
from app.api.hosts import Host
from app.core.transaction_types import SettlementPath, TransactionStatus, TransactionType


class ListWalletTransactions(Page):
    """Query of a wallet's transactions; `from` is inclusive, `to` exclusive."""

    status: TransactionStatus | None = None
    type: TransactionType | None = None
    from_: Annotated[Moment | None, Field(alias="from")] = None
    to: End | None = None
    x402_host: Host | None = None


class ListTransactions(ListWalletTransactions):
    """Query of the organisation's transactions."""

    wallet_id: Identifier | None = None
    recipient: RecipientText | None = None


class Payment(ResponseBody):
    """A payment in the response to its request."""

    tx_id: TransactionId
    id: Annotated[TransactionId, ReadFrom("tx_id")]
    wallet_id: WalletId
    recipient: str
    amount: Usdc
    currency: str
    status: TransactionStatus
    tx_signature: Annotated[str | None, ReadFrom("signature")]
    on_chain_slot: Annotated[int | None, ReadFrom("slot")]
    policy_triggered: bool
    memo: str | None
    timestamp: Time


class PaidFor(ResponseBody):
    """The resource that an x402 payment is for. `resource_status` is the status of its response, null if unknown."""

    url: str
    scheme: str
    network: str
    pay_to: str
    facilitator: str
    lane: SettlementPath
    resource_status: int | None


class Transaction(Payment):
    """A transaction in lists and lookups. `x402` is null unless the transaction pays for a resource.

    `refusals` is the number of refusals that a blocked row stands for, and null for other rows.
    """

    type: TransactionType
    policy_id: PolicyId | None
    agent_attestation_hash: Annotated[str | None, ReadFrom("attestation_hash")]
    explorer_url_1: str | None
    explorer_url_2: str | None
    violation: Violation | None
    refusals: int | None
    x402: PaidFor | None


class TransactionPage(ListResponse[Transaction]):
    """One page of transactions, newest first."""
