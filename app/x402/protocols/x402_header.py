"""The header that carries an issued payment, in the x402 version of the offer."""

import base64
import json

from x402.extensions.payment_identifier import PAYMENT_IDENTIFIER

from app.core.identifiers import derived_id
from app.x402.offers import Json

SCHEME = "exact"
HEADERS = {1: "X-PAYMENT", 2: "PAYMENT-SIGNATURE"}
"""Header that carries a payment, by x402 version."""


def header_of(
    transaction: bytes, key: str, *, version: int, accepted: Json, resource: Json | None, extensions: Json
) -> str:
    """Return the value of the header that pays with a transaction. ``key`` identifies the payment to the resource.

    ``accepted`` is the payment requirement, unchanged.
    """
    payload: Json = {"transaction": base64.b64encode(transaction).decode()}
    if version == 1:
        content: Json = {"x402Version": 1, "scheme": SCHEME, "network": accepted["network"], "payload": payload}
    else:
        content = {"x402Version": 2, "payload": payload, "accepted": accepted}
        if resource is not None:
            content["resource"] = resource
        if PAYMENT_IDENTIFIER in extensions:
            content["extensions"] = {PAYMENT_IDENTIFIER: _identified(extensions[PAYMENT_IDENTIFIER], key)}
    return base64.b64encode(json.dumps(content, separators=(",", ":")).encode()).decode()


def _identified(declared: object, key: str) -> Json:
    """Return the extension `payment-identifier` with an id derived from the key. The key itself stays secret."""
    extension = dict(declared) if isinstance(declared, dict) else {}
    info = extension.get("info")
    known = info if isinstance(info, dict) else {"required": False}
    return {**extension, "info": {**known, "id": derived_id("x402_", key)}}
