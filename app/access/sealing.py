"""Seals stored answers with secrets under the API key that asked for them."""

import base64

from cryptography.fernet import Fernet, InvalidToken
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

_PURPOSE = b"agent-vault secret answer\0"


class ResponseSeal:
    """Encrypts a stored answer under a key derived from an API key, of which the service keeps only a digest.

    What is on the disk therefore opens none. ``owner`` is the digest; it says whose answer a record holds.
    """

    def __init__(self, api_key: str, owner: str) -> None:
        self._api_key = api_key.encode()
        self.owner = owner

    def seal(self, answer: bytes, record: str) -> str:
        """Return an answer as it is stored in the named record."""
        return self._cipher(record).encrypt(answer).decode()

    def open(self, stored: str, record: str) -> bytes | None:
        """Return a stored answer; None if it was sealed under another API key or for another record."""
        try:
            return self._cipher(record).decrypt(stored.encode())
        except InvalidToken:
            return None

    def _cipher(self, record: str) -> Fernet:
        # No salt: with the service's secret as the salt, the first step of HKDF would yield the digest that is stored.
        # An API key has enough randomness of its own.
        derived = HKDF(algorithm=SHA256(), length=32, salt=None, info=_PURPOSE + record.encode()).derive(self._api_key)
        return Fernet(base64.urlsafe_b64encode(derived))
