"""Signing secrets, and the headers that prove an event's origin."""

import base64
import hashlib
import hmac
import secrets
from collections.abc import Mapping, Sequence

SECRET_PREFIX = "whsec_"  # noqa: S105 - a prefix
ROTATION_OVERLAP = 24 * 60 * 60 * 1000
"""Milliseconds for which a replaced secret continues to sign, unless a further rotation ends this earlier."""
_SECRET_BYTES = 32


def new_secret() -> str:
    """Return a new signing secret."""
    return SECRET_PREFIX + base64.b64encode(secrets.token_bytes(_SECRET_BYTES)).decode()


def signature_headers(body: bytes, *, message_id: str, timestamp: int, keys: Sequence[str]) -> Mapping[str, str]:
    """Return the signature headers. `keys` are the current secrets, newest first; `timestamp` is in Unix seconds.

    Service-Signature is the lower-case hex HMAC-SHA256 of the body, keyed with the whole text of the newest secret.
    This header holds a single value, because receivers compare the header as a whole. Service-Signature-Previous is the
    same with the replaced secret. The headers of Standard Webhooks sign `id.timestamp.body`. Their key is the bytes
    that the secret encodes after its prefix, and webhook-signature lists one signature per secret.
    """
    signed = f"{message_id}.{timestamp}.".encode() + body
    standard = (base64.b64encode(_hmac(_standard_key(key), signed)).decode() for key in keys)
    found = {
        "Service-Signature": _hmac(keys[0].encode(), body).hex(),
        "webhook-id": message_id,
        "webhook-timestamp": str(timestamp),
        "webhook-signature": " ".join(f"v1,{signature}" for signature in standard),
    }
    if len(keys) > 1:
        found["Service-Signature-Previous"] = _hmac(keys[1].encode(), body).hex()
    return found


def _standard_key(secret: str) -> bytes:
    return base64.b64decode(secret.removeprefix(SECRET_PREFIX))


def _hmac(key: bytes, message: bytes) -> bytes:
    return hmac.new(key, message, hashlib.sha256).digest()
