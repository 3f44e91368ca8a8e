"""The format of API keys."""

import hmac
import secrets
import string
import zlib

_ALPHABET = string.digits + string.ascii_uppercase + string.ascii_lowercase
_RANDOM, _CHECKSUM = 30, 6
_PREFIXES = ("avk_live_", "avk_test_")


def _checksum(text: str) -> str:
    number = zlib.crc32(text.encode())
    digits = ""
    for _ in range(_CHECKSUM):
        number, digit = divmod(number, len(_ALPHABET))
        digits = _ALPHABET[digit] + digits
    return digits


def generate(*, live: bool) -> str:
    """Return a new API key: prefix, 30 random base62 characters (178 bits) and a checksum against typing errors."""
    body = _PREFIXES[0 if live else 1] + "".join(secrets.choice(_ALPHABET) for _ in range(_RANDOM))
    return body + _checksum(body)


def well_formed(key: str) -> bool:
    """Return True if a text has the format of an API key and a matching checksum."""
    if not key.isascii() or not key.startswith(_PREFIXES):
        return False
    body, checksum = key[:-_CHECKSUM], key[-_CHECKSUM:]
    return len(key) == len(_PREFIXES[0]) + _RANDOM + _CHECKSUM and hmac.compare_digest(checksum, _checksum(body))
