"""Issued payments as credentials: the header to send, and its content."""

import json

from app.core.text import decode_base64
from app.store.x402 import IssuedPayment
from app.x402.offers import Json
from app.x402.protocols.mpp import CREDENTIAL_HEADER
from app.x402.protocols.x402_header import HEADERS


def header_name(issued: IssuedPayment) -> str:
    """Return the name of the header that carries an issued payment."""
    if issued.protocol == "x402":
        return HEADERS[issued.version]
    return str(content_of(issued.header)["challenge"].get("header", CREDENTIAL_HEADER))


def content_of(header: str) -> Json:
    """Decode the payment from the value of its header."""
    content: Json = json.loads(decode_base64(header.rpartition(" ")[2]))
    return content


def transaction_of(header: str) -> bytes:
    """Decode the transaction from the value of a payment's header. It may lack the fee payer's signature."""
    return decode_base64(content_of(header)["payload"]["transaction"])
