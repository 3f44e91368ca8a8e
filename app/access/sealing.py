"""Encrypts stored responses that contain secrets, under the API key or session token that requested them."""

import base64

from cryptography.fernet import Fernet, InvalidToken
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

_PURPOSE = b"agent-vault secret answer\0"


class ResponseSeal:
    """Encrypts a stored response under a key derived from an API key, or from a browser's session token.

    The service stores only a digest of this API key or token, so the data on the disk cannot decrypt a response.
    ``owner`` is the digest. It identifies the API key or session that may read the response.
    """

    def __init__(self, api_key: str, owner: str) -> None:
        self._api_key = api_key.encode()
        self.owner = owner

    def seal(self, answer: bytes, record: str) -> str:
        """Return a response encrypted for storage in the record with this name."""
        return self._cipher(record).encrypt(answer).decode()

    def open(self, stored: str, record: str) -> bytes | None:
        """Decrypt a stored response. Return None if it was sealed under another secret or for another record."""
        try:
            return self._cipher(record).decrypt(stored.encode())
        except InvalidToken:
            return None

    def _cipher(self, record: str) -> Fernet:
        # No salt is used. With the service's secret as the salt, HKDF's first step (RFC 5869) would yield the stored
        # digest. An API key has enough randomness of its own.
        derived = HKDF(algorithm=SHA256(), length=32, salt=None, info=_PURPOSE + record.encode()).derive(self._api_key)
        return Fernet(base64.urlsafe_b64encode(derived))
