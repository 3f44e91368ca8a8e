"""Request and response bodies of paid requests."""

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, StringConstraints, WithJsonSchema
from pydantic_core import PydanticCustomError

from app.api.fields import Amount, Body, IdempotencyKey, Identifier, ResponseBody, Time, Usdc, WalletId
from app.api.money_body import MoneyBody
from app.core.transaction_types import SettlementPath
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
    """Return a list of headers as an object. Raises ``headers`` for any other list or a repeated name."""
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
    """Check the type and length here, because the union below would word its errors in terms of its types."""
    if not isinstance(value, str | dict):
        raise PydanticCustomError("terms", "must be the value of the header PAYMENT-REQUIRED, or an object")
    if isinstance(value, str) and not 0 < len(value) <= _MOST_TERMS:
        raise PydanticCustomError("terms", f"must have 1 to {_MOST_TERMS} characters")
    return value


Terms = Annotated[
    Annotated[str, StringConstraints(min_length=1, max_length=_MOST_TERMS)] | dict[str, Any], BeforeValidator(_terms)
]


class QuotePaidResource(Body):
    """Body of a quote: the request to the resource, sent without a payment."""

    wallet_id: Identifier
    url: ResourceUrl
    method: Method = "GET"
    headers: RequestHeaders = Field(default={})
    body: Content | None = None
    body_encoding: Encoding = "text"


class FetchPaidResource(QuotePaidResource, MoneyBody):
    """Body of a paid request. `maxAmount` is the highest price to pay."""

    max_amount: Amount
    allow_unverified_recipient: bool = False
    idempotency_key: IdempotencyKey | None = None


class PayOffer(MoneyBody):
    """Body of a payment for a request that you send yourself. `paymentRequired` is the 402 response that you received.

    It is the value of the header PAYMENT-REQUIRED, or an object: the body of version 1, or the result or error that an
    MCP server returned for a call of a paid tool.
    """

    wallet_id: Identifier
    url: ResourceUrl
    payment_required: Terms
    max_amount: Amount
    allow_unverified_recipient: bool = False
    idempotency_key: IdempotencyKey | None = None


class PaidResource(ResponseBody):
    """The resource's response. `body` is text if it is UTF-8, else base64.

    `content_coding` names the content coding of a `body` that the service could not decode, and is null otherwise.
    """

    status: int
    headers: dict[str, str]
    body: str
    body_encoding: Encoding
    content_coding: str | None
    truncated: bool


class FetchedResource(ResponseBody):
    """The resource and its payment, if it took one.

    `resource` is null if no response to the payment came. It is also null if the resource was not sent the payment,
    because the payment had ended already, a freeze, pause or token rotation stopped it, or its allowance was not
    confirmed yet. `resource_expired` is true if the resource was stored for replays and has been dropped. `warnings`
    names skipped offers that are malformed or cannot be paid.
    """

    resource: PaidResource | None
    resource_expired: bool = False
    payment: Transaction | None
    warnings: list[str]


class HandedOut(ResponseBody):
    """A payment to send with your request: the name and value of a header, and the transaction that pays.

    `payload` is the same payment for a call of a paid tool. Put it into MCP's `_meta["x402/payment"]`. `warnings` names
    skipped offers that are malformed or cannot be paid.
    """

    header_name: str
    header_value: str
    payload: dict[str, Any]
    expires_at: Time
    payment: Transaction
    warnings: list[str]


class Quote(ResponseBody):
    """The cost of a request, and the policy's verdict on it. `price` is null if the resource asks for no payment.

    `allowed` does not consider outstanding payments, nor a `lane` that is `not_supported`.
    """

    wallet_id: WalletId
    url: str
    price: Usdc | None
    currency: str
    recipient: str | None
    network: str | None
    facilitator: str | None
    lane: SettlementPath | Literal["unknown", "not_supported"] | None
    allowed: bool
    retry_at: Time | None
    rules: list[RuleVerdict]
    warnings: list[str]
