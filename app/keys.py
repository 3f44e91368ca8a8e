"""API keys: their form, how they are recognised and what is stored of them."""

import hashlib
import hmac
import secrets
import string
import time
import zlib
from dataclasses import dataclass
from typing import Literal, get_args

from app.identifiers import random_id
from app.store.database import Database
from app.store.keys import ApiKey, api_key_by_digest, api_keys, insert_api_key, revoke_api_key

Role = Literal["viewer", "agent", "operator", "admin"]
ROLES: tuple[Role, ...] = get_args(Role)

_ALPHABET = string.digits + string.ascii_uppercase + string.ascii_lowercase
_RANDOM, _CHECKSUM = 30, 6
_PREFIXES = ("avk_live_", "avk_test_")


@dataclass(frozen=True, slots=True)
class Principal:
    """Who asks: the organisation, the role and, for agents, the one wallet."""

    key_id: str
    org: str
    role: Role
    wallet_id: str | None


def _checksum(text: str) -> str:
    number = zlib.crc32(text.encode())
    digits = ""
    for _ in range(_CHECKSUM):
        number, digit = divmod(number, len(_ALPHABET))
        digits = _ALPHABET[digit] + digits
    return digits


def generate(*, live: bool) -> str:
    """Return a new key: prefix, 30 random base62 characters (178 bits) and a checksum against typing errors."""
    body = _PREFIXES[0 if live else 1] + "".join(secrets.choice(_ALPHABET) for _ in range(_RANDOM))
    return body + _checksum(body)


def well_formed(key: str) -> bool:
    """Whether a text has the form of a key, checksum included."""
    if not key.isascii() or not key.startswith(_PREFIXES):
        return False
    body, checksum = key[:-_CHECKSUM], key[-_CHECKSUM:]
    return len(key) == len(_PREFIXES[0]) + _RANDOM + _CHECKSUM and hmac.compare_digest(checksum, _checksum(body))


class KeyRing:
    """API keys of a database, recognised by their HMAC-SHA256 under ``secret``.

    A recognised key is remembered for ``cache_seconds``, so that not every request asks the database;
    a revoked one stops working within that time.
    """

    def __init__(self, db: Database, secret: bytes, *, cache_seconds: float = 0.0) -> None:
        self._db = db
        self._secret = secret
        self._cache_seconds = cache_seconds
        self._cache: dict[str, tuple[float, Principal]] = {}

    def digest(self, key: str) -> str:
        """Return what is stored of a key."""
        return hmac.new(self._secret, key.encode(), hashlib.sha256).hexdigest()

    def recognise(self, key: str) -> Principal | None:
        """Whose key this is; None for a malformed, unknown or revoked one."""
        digest = self.digest(key)
        now = time.monotonic()
        remembered = self._cache.get(digest)
        if remembered is not None and now < remembered[0]:
            return remembered[1]
        if not well_formed(key):
            return None
        self._cache.pop(digest, None)
        found = self._db.read(lambda conn: api_key_by_digest(conn, digest))
        if found is None or found.revoked_at is not None or not hmac.compare_digest(found.digest, digest):
            return None
        role = next(role for role in ROLES if role == found.role)
        principal = Principal(found.key_id, found.org, role, found.wallet_id)
        self._cache[digest] = (now + self._cache_seconds, principal)
        return principal

    def create(self, *, org: str, role: Role, wallet_id: str | None, name: str, live: bool) -> str:
        """Make a key and store its digest; returns the key, which is not kept.

        Raises ValueError when an agent's key names no wallet, or another role's key names one.
        """
        if (role == "agent") != (wallet_id is not None):
            raise ValueError("an agent key belongs to one wallet, other keys to none")
        key = generate(live=live)
        stored = ApiKey(
            key_id=random_id("key_"),
            org=org,
            role=role,
            wallet_id=wallet_id,
            name=name,
            digest=self.digest(key),
            hint=key[-_CHECKSUM:][-4:],
            created_at=int(time.time() * 1000),
            revoked_at=None,
            last_used_at=None,
        )
        self._db.write_now(lambda conn: insert_api_key(conn, stored))
        return key

    def list(self, org: str) -> list[ApiKey]:
        """All keys of an organisation, revoked ones too."""
        return self._db.read(lambda conn: api_keys(conn, org))

    def revoke(self, org: str, key_id: str) -> bool:
        """Revoke a key; False when there is none to revoke."""
        now = int(time.time() * 1000)
        return self._db.write_now(lambda conn: revoke_api_key(conn, org, key_id, now))
