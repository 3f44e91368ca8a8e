"""Request and response bodies of allowances."""

from typing import Annotated, Literal

from pydantic import Field, StringConstraints

from app.api.fields import (
    Address,
    AllowanceId,
    Amount,
    ChainTime,
    IdempotencyKey,
    ListResponse,
    Page,
    ReadFrom,
    RecipientText,
    ResponseBody,
    Time,
    TransactionId,
    Usdc,
    WalletId,
)
from app.api.money_body import MoneyBody

#: Minimum, maximum and default of the time until an allowance expires, in seconds. The program has the same maximum.
MIN_SECONDS, MAX_SECONDS, DEFAULT_SECONDS = 5, 180, 60

AllowanceStatus = Literal["pending", "outstanding", "settled"]
#: The 16-byte reference in a grant. The events of the allowance repeat it.
Reference = Annotated[str, StringConstraints(pattern=r"^[0-9a-fA-F]{32}$")]


class GrantAllowance(MoneyBody):
    """Body of an allowance. `destination` is an existing token account or the owner of one.

    `delegate` is the address of the key that will sign the transfer. Nothing binds the delegate to the destination.
    """

    amount: Amount
    destination: RecipientText
    delegate: RecipientText
    expires_in: Annotated[int, Field(ge=MIN_SECONDS, le=MAX_SECONDS)] = DEFAULT_SECONDS
    reference: Reference | None = None
    allow_unverified_recipient: bool = False
    idempotency_key: IdempotencyKey | None = None


class ListAllowances(Page):
    """Query of a wallet's allowances."""

    status: AllowanceStatus | None = None


class Allowance(ResponseBody):
    """An allowance. Until it is settled, the delegate can transfer its money.

    `spent_amount` and `returned_amount` are null until the settlement. `transfers` lists the signatures of the
    delegate's transfers; it is null until they have been read from the chain.
    """

    allowance_id: AllowanceId
    id: Annotated[AllowanceId, ReadFrom("allowance_id")]
    wallet_id: WalletId
    amount: Usdc
    currency: str
    status: AllowanceStatus
    recipient: Address
    destination: Address
    delegate: Address
    reference: str
    chain_address: Annotated[Address, ReadFrom("address")]
    token_account: Annotated[Address, ReadFrom("tokens")]
    expires_at: ChainTime
    created_at: Time
    tx_id: TransactionId | None
    tx_signature: Annotated[str | None, ReadFrom("signature")]
    spent_amount: Annotated[Usdc | None, ReadFrom("spent")]
    returned_amount: Annotated[Usdc | None, ReadFrom("returned")]
    settled_at: Time | None
    settlement_signature: str | None
    transfers: list[str] | None


class AllowancePage(ListResponse[Allowance]):
    """One page of allowances, newest first."""
