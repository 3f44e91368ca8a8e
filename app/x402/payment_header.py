"""The header that carries an issued payment, in the x402 version of the offer."""

import base64
import json

from x402.extensions.payment_identifier import PAYMENT_IDENTIFIER

from app.core.identifiers import derived_id
from app.x402.offers import SCHEME, Json, Offer

HEADERS = {1: "X-PAYMENT", 2: "PAYMENT-SIGNATURE"}
"""Header that carries a payment, by x402 version."""


def header_of(offer: Offer, transaction: bytes, key: str) -> str:
    """Return the value of the header that pays with a transaction. ``key`` identifies the payment to the resource."""
    payload: Json = {"transaction": base64.b64encode(transaction).decode()}
    if offer.version == 1:
        content: Json = {"x402Version": 1, "scheme": SCHEME, "network": offer.network, "payload": payload}
    else:
        content = {"x402Version": 2, "payload": payload, "accepted": offer.accepted}
        if offer.resource is not None:
            content["resource"] = offer.resource
        if PAYMENT_IDENTIFIER in offer.extensions:
            content["extensions"] = {PAYMENT_IDENTIFIER: _identified(offer.extensions[PAYMENT_IDENTIFIER], key)}
    return base64.b64encode(json.dumps(content, separators=(",", ":")).encode()).decode()


def content_of(header: str) -> Json:
    """Decode the payment from the value of its header."""
    content: Json = json.loads(base64.b64decode(header))
    return content


def transaction_of(header: str) -> bytes:
    """Decode the transaction from the value of a payment's header. It lacks the fee payer's signature."""
    return base64.b64decode(content_of(header)["payload"]["transaction"])


def _identified(declared: object, key: str) -> Json:
    """Return the extension `payment-identifier` with an id derived from the key. The key itself stays secret."""
    extension = dict(declared) if isinstance(declared, dict) else {}
    info = extension.get("info")
    known = info if isinstance(info, dict) else {"required": False}
    return {**extension, "info": {**known, "id": derived_id("x402_", key)}}
