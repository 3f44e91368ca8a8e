"""Request and response bodies of allowances."""

from typing import Annotated, Literal

from pydantic import Field, StringConstraints

from app.api.fields import (
    Address,
    AllowanceId,
    Amount,
    ChainTime,
    Confirmation,
    Currency,
    ListResponse,
    Page,
    ReadFrom,
    RecipientText,
    ResponseBody,
    Signature,
    Time,
    TransactionId,
    Usdc,
    WalletId,
    example,
)
from app.api.money_body import MoneyBody

#: Minimum, maximum and default of the time until an allowance expires, in seconds. The program has the same maximum.
MIN_SECONDS, MAX_SECONDS, DEFAULT_SECONDS = 5, 180, 60

AllowanceStatus = Literal["pending", "outstanding", "settled"]
_REFERENCE = "3f2504e04f8911d39a0c0305e82c3301"
#: The 16-byte reference in a grant. The events of the allowance repeat it.
Reference = Annotated[str, StringConstraints(pattern=r"^[0-9a-fA-F]{32}$"), example(_REFERENCE)]


class GrantAllowance(MoneyBody):
    """Body of a request for an allowance. `destination` is an existing token account, or the owner of one.

    `delegate` is the address of the key that will sign the transfer. The delegate can transfer the money anywhere.
    """

    amount: Amount
    """The maximum that the delegate can transfer."""
    destination: RecipientText
    """The USDC account to pay, or the address of its owner. The account must exist. The delegate can still pay others.
    """
    delegate: Annotated[RecipientText, example("DqNMcDg7pgHmpJmTqmyRqDD2rVJUbfCmnpKjG5uTAPGN")]
    """The address of the key that will sign the transfer. It must not be the operator, the authority, the wallet's
    session key or an account of the program.
    """
    expires_in: Annotated[int, Field(ge=MIN_SECONDS, le=MAX_SECONDS), example(60)] = DEFAULT_SECONDS
    """Seconds until the service settles the allowance, 5 to 180. The time is shortened if the session or
    the policy ends earlier.
    """
    reference: Reference | None = None
    """16 bytes in hex, stored with the grant on the chain; random by default."""
    allow_unverified_recipient: Confirmation = False
    """True to accept an address without a known owner. The address still needs a USDC account, because an allowance
    never opens one.
    """


class ListAllowances(Page):
    """Query of a wallet's allowances."""

    status: AllowanceStatus | None = None
    """The status of the allowances: `pending`, `outstanding` or `settled`."""


class Allowance(ResponseBody):
    """An allowance. Until its settlement, the delegate can transfer its money.

    `spent_amount` and `returned_amount` are null until the settlement. `transfers` lists the signatures of the
    delegate's transfers; it is null until they have been read from the chain.
    """

    allowance_id: AllowanceId
    """The allowance's id, under both names. It begins with `alw_`."""
    id: Annotated[AllowanceId, ReadFrom("allowance_id")]
    """The allowance's id, under both names. It begins with `alw_`."""
    wallet_id: WalletId
    """The wallet that owns the money."""
    amount: Usdc
    """The amount set aside."""
    currency: Currency
    """The currency, always `USDC`."""
    status: AllowanceStatus
    """The status: `pending`, `outstanding` or `settled`."""
    recipient: Annotated[Address, example("9xQeWvG816bUx9EPjHmaT23yvVM2ZWbrrpZb9PusVFin")]
    """The intended payee: the owner of the account at `destination`."""
    destination: Annotated[Address, example("9xQeWvG816bUx9EPjHmaT23yvVM2ZWbrrpZb9PusVFin")]
    """The address of the token account that the delegate should pay."""
    delegate: Annotated[Address, example("DqNMcDg7pgHmpJmTqmyRqDD2rVJUbfCmnpKjG5uTAPGN")]
    """The address that can transfer the money until the settlement."""
    reference: Annotated[str, example(_REFERENCE)]
    """The 16-byte reference of the grant in hex."""
    chain_address: Annotated[Address, ReadFrom("address"), example("GPD3VD2ynJDPEhWeqQ6F9yUqX41bdAxNw1p84HoLQss2")]
    """The allowance's address on the chain."""
    token_account: Annotated[Address, ReadFrom("tokens"), example("GPD3VD2ynJDPEhWeqQ6F9yUqX41bdAxNw1p84HoLQss2")]
    """The token account that the delegate pays from."""
    expires_at: ChainTime
    """The time from which anyone may settle the allowance. Until it is settled, the delegate can pay."""
    created_at: Time
    """The time of the request."""
    tx_id: TransactionId | None
    """The transaction of the grant, which is listed as a payment."""
    tx_signature: Annotated[Signature | None, ReadFrom("signature")]
    """The signature of the grant's transaction."""
    spent_amount: Annotated[Usdc | None, ReadFrom("spent")]
    """The amount that the delegate spent. Null until the settlement."""
    returned_amount: Annotated[Usdc | None, ReadFrom("returned")]
    """The amount that returned to the wallet. Null until the settlement."""
    settled_at: Time | None
    """The time of the settlement."""
    settlement_signature: Signature | None
    """The signature of the settlement."""
    transfers: list[Signature] | None
    """The signatures of the delegate's transfers. Null until they have been read from the chain."""


class AllowancePage(ListResponse[Allowance]):
    """One page of allowances, newest first."""
