"""Verifies that a webhook's request comes from the service and is recent."""

import base64
import hashlib
import hmac
import json
import time
from collections.abc import Mapping
from typing import Any, cast

from agent_vault_client.errors import SignatureInvalid

TOLERANCE = 300.0
"""Seconds that a request's time may differ from the receiver's clock."""


def verify_webhook(
    body: bytes, headers: Mapping[str, str], secret: str, *, tolerance: float = TOLERANCE, now: float | None = None
) -> dict[str, Any]:
    """Return the event of a request, given the body's bytes as received, or raise SignatureInvalid.

    `secret` is the webhook's `signing_secret`. `headers` has the headers of Standard Webhooks, in upper or lower case.
    Handle each `event_id` once, because an event may arrive twice.
    """
    given = {name.lower(): value for name, value in headers.items()}
    stamp, signatures = given.get("webhook-timestamp", ""), given.get("webhook-signature", "")
    if not (stamp.isascii() and stamp.isdigit()):
        raise SignatureInvalid("The request has no valid header webhook-timestamp.")
    signed = f"{given.get('webhook-id', '')}.{stamp}.".encode() + body
    key = base64.b64decode(secret.removeprefix("whsec_"), validate=True)
    expected = b"v1," + base64.b64encode(hmac.new(key, signed, hashlib.sha256).digest())
    if not any(hmac.compare_digest(expected, one.encode()) for one in signatures.split(" ")):
        raise SignatureInvalid("No signature of the request is valid.")
    if abs((time.time() if now is None else now) - int(stamp)) > tolerance:
        raise SignatureInvalid("The time of the request differs too much from this machine's clock.")
    return cast(dict[str, Any], json.loads(body))
