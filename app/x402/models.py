"""Request and response bodies of paid requests."""

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, StringConstraints, WithJsonSchema
from pydantic_core import PydanticCustomError

from app.api.fields import (
    Amount,
    Body,
    Confirmation,
    Currency,
    RecipientShown,
    ResponseBody,
    Time,
    Usdc,
    WalletId,
    WalletRef,
    Warnings,
    example,
)
from app.api.money_body import MoneyBody
from app.core.transaction_types import ProtocolName, SettlementPath
from app.payments.models import RuleVerdict
from app.transactions.models import Transaction

Method = Literal["GET", "POST", "PUT", "PATCH", "DELETE", "HEAD"]
Encoding = Literal["text", "base64"]
ResourceUrl = Annotated[str, StringConstraints(min_length=1, max_length=2_048)]
_MOST_HEADERS = 16
_TEXT = {"type": "string"}
_NAMED = {"name": _TEXT, "value": _TEXT}
_HEADER = {"type": "object", "properties": _NAMED, "required": [*_NAMED], "additionalProperties": False}
_HEADER_LIST = {"type": "array", "items": _HEADER, "maxItems": _MOST_HEADERS}
_HEADER_OBJECT = {"type": "object", "additionalProperties": _TEXT, "maxProperties": _MOST_HEADERS}
_MOST_TERMS = 32_768
#: Content to send to a resource. Its limit is smaller than the default limit of a whole request body.
Content = Annotated[str, StringConstraints(max_length=49_152)]


def _by_name(value: object) -> object:
    """Return a list of headers as an object.

    Raises the validation error ``headers`` for any other list or a repeated name.
    """
    if not isinstance(value, list):
        return value
    named = [one for one in value if isinstance(one, dict) and one.keys() == _NAMED.keys()]
    found = {one["name"]: one["value"] for one in named if isinstance(one["name"], str)}
    if len(found) != len(value):
        raise PydanticCustomError("headers", "must have one object with name and value for each header")
    return found


#: Headers by name. They are sent as a list of names and values, or as an object.
RequestHeaders = Annotated[
    dict[str, str],
    Field(max_length=_MOST_HEADERS),
    BeforeValidator(_by_name),
    WithJsonSchema({"anyOf": [_HEADER_LIST, _HEADER_OBJECT]}),
]


def _terms(value: object) -> object:
    """Check the type and length here, because an error of the union below would mention the union's types."""
    if not isinstance(value, str | dict):
        raise PydanticCustomError(
            "terms", "must be the value of the header PAYMENT-REQUIRED or WWW-Authenticate, or an object"
        )
    if isinstance(value, str) and not 0 < len(value) <= _MOST_TERMS:
        raise PydanticCustomError("terms", f"must have 1 to {_MOST_TERMS} characters")
    return value


Terms = Annotated[
    Annotated[str, StringConstraints(min_length=1, max_length=_MOST_TERMS)] | dict[str, Any], BeforeValidator(_terms)
]


class QuotePaidResource(Body):
    """Body of a quote: the request to the resource, sent without a payment."""

    wallet_id: WalletRef
    """The paying wallet."""
    url: Annotated[ResourceUrl, example("https://example.com/agent-vault")]
    """The URL of the resource. It must use https on port 443, and the policy's `x402Hosts` must list its host. On a
    local network, http and this machine are also allowed.
    """
    method: Method = "GET"
    """The HTTP method of the request."""
    headers: Annotated[RequestHeaders, example([{"name": "Accept", "value": "application/json"}])] = Field(default={})
    """Headers to forward, as a list of objects with `name` and `value`, or as an object: `Accept`, `Accept-Language`,
    `Content-Type` and conditional headers.
    """
    body: Annotated[Content, example('{"city": "Bern"}')] | None = None
    """The body of the request as text, or as base64 if `bodyEncoding` is `base64`."""
    body_encoding: Encoding = "text"
    """The encoding of `body`."""


class FetchPaidResource(QuotePaidResource, MoneyBody):
    """Body of a paid request. `maxAmount` is the highest price to pay."""

    max_amount: Amount
    """The highest price to pay, in USDC."""
    allow_unverified_recipient: Confirmation = False
    """True to accept an address without a known owner. Such an address has no USDC account, so it can be paid only out
    of an allowance, and only if the policy has `opensAccounts`. With an agent's key, the policy's `allowedRecipients`
    must also list it.
    """


class PayOffer(MoneyBody):
    """Body of a payment for a request that you send yourself. `paymentRequired` is the 402 response that you received.

    It is the value of the header PAYMENT-REQUIRED or WWW-Authenticate, or an object: the body of x402 version 1, or the
    result or error that an MCP server returned for a call of a paid tool.
    """

    wallet_id: WalletRef
    """The paying wallet."""
    url: Annotated[ResourceUrl, example("https://example.com/agent-vault")]
    """The URL of the resource that you request yourself, or of the MCP server with the paid tool."""
    payment_required: Annotated[Terms, example("eyJ4NDAyVmVyc2lvbiI6MiwiYWNjZXB0cyI6W119")]
    """The 402 response that you received: the value of its header PAYMENT-REQUIRED or WWW-Authenticate, its body as an
    object, or the result or error from an MCP server's paid tool. Join several headers WWW-Authenticate by commas.
    """
    max_amount: Amount
    """The highest price to pay, in USDC."""
    allow_unverified_recipient: Confirmation = False
    """True to accept an address without a known owner. Such an address has no USDC account, so it can be paid only out
    of an allowance, and only if the policy has `opensAccounts`. With an agent's key, the policy's `allowedRecipients`
    must also list it.
    """


class PaidResource(ResponseBody):
    """The resource's response. `body` is text if it is UTF-8, else base64.

    `content_coding` names the content coding of a `body` that the service could not decode, and is null otherwise.
    """

    status: Annotated[int, example(200)]
    """The status of the resource's response."""
    headers: Annotated[dict[str, str], example({"content-type": "application/json"})]
    """The headers of the resource's response, without cookies."""
    body: Annotated[str, example('{"temperature": 21}')]
    """The decoded body of the response, as text if it is UTF-8, else as base64."""
    body_encoding: Encoding
    """The encoding of `body`: `text` if it is UTF-8, else `base64`."""
    content_coding: Annotated[str | None, example(None)]
    """The content coding of a `body` that could not be decoded and is therefore as received; otherwise null."""
    truncated: bool
    """True if the body was longer than the part shown, or did not arrive completely."""


class FetchedResource(ResponseBody):
    """The resource, and the payment for it, if there was one.

    `resource` is null if no response to the payment came. It is also null if the payment was not sent to the resource,
    because the payment had ended already, a freeze, pause or token rotation stopped it, or its allowance was not
    confirmed yet. `resource_expired` is true if the resource was stored for replays and has been dropped. `warnings`
    names skipped offers that are malformed or cannot be paid.
    """

    resource: PaidResource | None
    """The resource's final response. Null if no response to the payment came, or if the payment was not sent to the
    resource.
    """
    resource_expired: bool = False
    """True if the service received the resource earlier and no longer stores it. `resource` is then null."""
    payment: Transaction | None
    """The payment for the resource. Null if nothing was paid."""
    warnings: Annotated[list[str], example(["accepts[0] was skipped: payTo must be an address."])]
    """A warning for each skipped offer that is malformed or cannot be paid. Empty if an earlier run of the request
    issued the payment.
    """


class HandedOut(ResponseBody):
    """A payment to send with your request: the name and value of a header, and the transaction that pays.

    `payload` is the same payment for a call of a paid tool. Its place in MCP depends on the protocol:
    `_meta["x402/payment"]` for x402, `_meta["org.paymentauth/credential"]` for MPP. `warnings` names skipped offers
    that are malformed or cannot be paid.
    """

    header_name: Annotated[str, example("PAYMENT-SIGNATURE")]
    """The name of the header to send with your request."""
    header_value: Annotated[str, example("eyJ4NDAyVmVyc2lvbiI6Mn0=")]
    """The value of the header."""
    payload: Annotated[dict[str, Any], example({"x402Version": 2})]
    """The same payment for the call of a paid tool. Its place in MCP depends on the protocol: `_meta["x402/payment"]`
    for x402, `_meta["org.paymentauth/credential"]` for MPP.
    """
    expires_at: Time
    """The approximate time until which the payment can be settled."""
    payment: Transaction
    """The payment's transaction. Its `tx_signature` is null until it is settled."""
    warnings: Annotated[list[str], example(["accepts[0] was skipped: payTo must be an address."])]
    """A warning for each skipped offer that is malformed or cannot be paid. Empty if an earlier run of the request
    issued the payment.
    """


class Quote(ResponseBody):
    """The cost of a request, and the policy's verdict on it. `price` is null if the resource asks for no payment.

    `allowed` does not consider outstanding payments.
    """

    wallet_id: WalletId
    """The wallet from the request."""
    url: Annotated[str, example("https://example.com/agent-vault")]
    """The URL from the request."""
    price: Usdc | None
    """The price in USDC of the cheapest offer that can be paid, or else of the cheapest. Null if the resource asks for
    no payment.
    """
    currency: Currency
    """The currency, always `USDC`."""
    protocol: ProtocolName | None
    """The protocol of the offer: `x402` or `mpp`."""
    recipient: RecipientShown | None
    """The recipient of the payment."""
    network: Annotated[str | None, example("solana:5eykt4UsFv8P8NJdTREpY1vzqKqZKvdp")]
    """The chain of the recipient."""
    facilitator: Annotated[str | None, example("3h1zGmCwsRJnVk5BuRNMLsPaQu1y2aqXqXDWYCgrp5UG")]
    """The address that would pay the fee: the facilitator, the MPP server or the service."""
    lane: SettlementPath | Literal["unknown", "not_supported"] | None
    """The settlement path: `enforced` if the facilitator is known to settle payments by the program. If it is known not
    to, `allowance` if the policy permits allowances, else `not_supported`. `unknown` in all other cases.
    """
    allowed: bool
    """True if the program would allow the price, as in a simulation. If the offer cannot be paid, it is false."""
    error: Annotated[str | None, example("x402_wallet_not_supported")]
    """The code of the error that would stop the payment although it breaks no rule. Null if there is none."""
    retry_at: Time | None
    """The earliest time to retry, as in a simulation."""
    rules: list[RuleVerdict]
    """The program's verdict on each rule, as in a simulation."""
    warnings: Warnings
    """The warnings of a simulation, the reason if the offer cannot be paid, and a warning for each skipped offer that
    is malformed or cannot be paid.
    """
