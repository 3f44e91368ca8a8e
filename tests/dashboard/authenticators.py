"""Authenticators without a browser, which answer what they like."""

import json
import secrets
import struct
from collections.abc import Callable
from hashlib import sha256
from typing import Any

from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from webauthn.helpers import bytes_to_base64url, encode_cbor

Json = dict[str, Any]
_PRESENT_AND_VERIFIED, _ATTESTED = 0x05, 0x40


class Authenticator:
    """A passkey of P-256 for `http://localhost`, with a random id unless another is given."""

    def __init__(self, credential_id: bytes | None = None) -> None:
        self.credential_id = credential_id or secrets.token_bytes(32)
        self._key = ec.generate_private_key(ec.SECP256R1())

    @property
    def cose(self) -> dict[int, Any]:
        """The public key."""
        point = self._key.public_key().public_numbers()
        return {1: 2, 3: -7, -1: 1, -2: point.x.to_bytes(32, "big"), -3: point.y.to_bytes(32, "big")}

    def made(
        self, options: Json, *, cose: object = None, fmt: str = "none", statement: Callable[[bytes], Json] | None = None
    ) -> Json:
        """What it answers when a passkey is to be made; a `statement` is made of what it attests."""
        key = encode_cbor(self.cose if cose is None else cose)
        length = struct.pack(">H", len(self.credential_id))
        attested = self._data(_PRESENT_AND_VERIFIED | _ATTESTED) + bytes(16) + length + self.credential_id + key
        client = _client_data("webauthn.create", options["challenge"])
        proof = {} if statement is None else statement(attested + sha256(client).digest())
        attestation = encode_cbor({"fmt": fmt, "attStmt": proof, "authData": attested})
        return self._answer(client, attestationObject=bytes_to_base64url(attestation))

    def signed(self, options: Json) -> Json:
        """What it answers when it is to sign."""
        client, data = _client_data("webauthn.get", options["challenge"]), self._data(_PRESENT_AND_VERIFIED)
        signature = self.sign(data + sha256(client).digest())
        return self._answer(client, authenticatorData=bytes_to_base64url(data), signature=bytes_to_base64url(signature))

    def sign(self, data: bytes) -> bytes:
        """Sign by ES256."""
        return self._key.sign(data, ec.ECDSA(hashes.SHA256()))

    def _data(self, flags: int) -> bytes:
        return sha256(b"localhost").digest() + bytes([flags]) + bytes(4)

    def _answer(self, client: bytes, **response: str) -> Json:
        own = bytes_to_base64url(self.credential_id)
        answered = {"clientDataJSON": bytes_to_base64url(client), **response}
        return {"id": own, "rawId": own, "type": "public-key", "response": answered, "clientExtensionResults": {}}


def _client_data(kind: str, challenge: str) -> bytes:
    return json.dumps({"type": kind, "challenge": challenge, "origin": "http://localhost"}).encode()
