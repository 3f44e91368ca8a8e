"""API keys: their format, recognition and records."""

import asyncio
import hashlib
import hmac
import secrets
import string
import time
import zlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

from sqlalchemy import Connection

from app.access.sealing import ResponseSeal
from app.core.actors import Actor
from app.core.errors import AuthenticationError, BusinessError, NotFoundError
from app.core.identifiers import random_id
from app.database.interface import Database
from app.store.audit import NewLogEntry, append
from app.store.audit_actions import Action
from app.store.keys import (
    ApiKey,
    api_key,
    api_key_by_digest,
    api_key_made_under,
    api_keys,
    has_other_admin_key,
    insert_api_key,
    replace_digest,
    revoke_api_key,
    touch_api_keys,
)

Role = Literal["viewer", "agent", "operator", "admin"]
ROLES: tuple[Role, ...] = get_args(Role)
KeyStatus = Literal["active", "rotated", "revoked"]

_ALPHABET = string.digits + string.ascii_uppercase + string.ascii_lowercase
_RANDOM, _CHECKSUM = 30, 6
_PREFIXES = ("avk_live_", "avk_test_")
COMMAND_LINE = "command_line"
"""Actor id of `agent-vault` commands run on the service's own machine."""


@dataclass(frozen=True, slots=True)
class Principal:
    """The caller: its actor, organisation, role and, for agents, wallet.

    ``address`` and ``request_id`` come from the request, if there is one.
    """

    actor: Actor
    org: str
    role: Role
    wallet_id: str | None
    address: str | None = None
    request_id: str | None = None

    @property
    def key_id(self) -> str:
        """The id of the API key, or of the actor if the caller has no key."""
        return self.actor.id

    def entry(self, action: Action, about: str | None = None, **details: Any) -> NewLogEntry:
        """Return an audit log entry for an action of this caller. ``about`` is the id of the affected object."""
        return NewLogEntry(self.org, action, self.actor, about, self.address, self.request_id, details)


def system(org: str, part: str) -> Principal:
    """Return the principal of a part of the service. It acts for the organisation as an admin, without an API key."""
    return Principal(Actor("system", part), org, "admin", None)


def unauthenticated() -> AuthenticationError:
    """Return the error for a caller without a valid key."""
    return AuthenticationError("authentication_failed", headers={"WWW-Authenticate": "Bearer"})


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


@dataclass(frozen=True, slots=True)
class IssuedKey:
    """A new API key and its record. Of the key's text, the record holds only a digest and the last four characters."""

    key: str
    record: ApiKey


@dataclass(frozen=True, slots=True, eq=False)
class _Reading:
    """A read of a key's record that is under way.

    ``changes`` is the number of key changes known before the read. ``until`` is the end of the period in which the
    result may be used, in seconds of the key ring's timer.
    """

    changes: int
    until: float
    record: asyncio.Task[ApiKey | None]


class KeyRing:
    """The API keys of a database, recognised by their HMAC-SHA256 under ``secret``.

    The record of a recognised key is cached for ``cache_seconds``, which saves a database read per request. A key that
    another process revokes stops working here within that time. The times at which keys were used stay in memory until
    ``note_use`` stores them. ``clock`` returns the Unix time in seconds. ``timer`` returns the seconds that measure the
    age of the cache.
    """

    def __init__(
        self,
        db: Database,
        secret: bytes,
        *,
        cache_seconds: float = 0.0,
        clock: Callable[[], float] = time.time,
        timer: Callable[[], float] = time.monotonic,
    ) -> None:
        self._db = db
        self._secret = secret
        self._cache_seconds = cache_seconds
        self._clock = clock
        self._timer = timer
        self._cache: dict[str, tuple[float, ApiKey, Principal]] = {}
        self._readings: dict[str, _Reading] = {}
        self._changes = 0
        self._used: dict[str, int] = {}

    def digest(self, key: str) -> str:
        """Return the digest under which a key's record is stored. The record does not contain the text of the key."""
        return hmac.new(self._secret, key.encode(), hashlib.sha256).hexdigest()

    def seal(self, key: str) -> ResponseSeal:
        """Return the seal for responses to requests made with this key."""
        return ResponseSeal(key, self.digest(key))

    async def recognise(self, key: str) -> Principal | None:
        """Return the key's principal, or None for a malformed, unknown or revoked key."""
        digest = self.digest(key)
        cached = self._cache.get(digest)
        if cached is None or self._timer() >= cached[0]:
            self._cache.pop(digest, None)
            reading = self._reading_of(digest) if well_formed(key) else None
            found = None if reading is None else await asyncio.shield(reading.record)
            if reading is None or found is None or not hmac.compare_digest(found.digest, digest):
                return None
            principal = Principal(Actor("key", found.key_id), found.org, _role(found), found.wallet_id)
            cached = (reading.until, found, principal)
            # Do not cache a record if keys changed during the read: this one may have been revoked.
            if reading.changes == self._changes:
                self._cache[digest] = cached
        _, record, principal = cached
        now = self._now()
        if record.revoked_at is not None and record.revoked_at <= now:
            return None
        self._used[record.key_id] = now
        return principal

    def _reading_of(self, digest: str) -> _Reading:
        """Return the running read of a key's record, or start one.

        Concurrent requests share a read for the cache time, but not after a key has changed.
        """
        running = self._readings.get(digest)
        if running is not None and running.changes == self._changes and self._timer() < running.until:
            return running
        record = asyncio.create_task(self._db.read(lambda conn: api_key_by_digest(conn, digest)))
        # The cache time counts from before the read. So a key that another node revokes during the read still stops
        # working within that time.
        reading = _Reading(self._changes, self._timer() + self._cache_seconds, record)
        self._readings[digest] = reading

        def ended(done: asyncio.Task[ApiKey | None]) -> None:
            if self._readings.get(digest) is reading:
                del self._readings[digest]
            # Retrieve the exception, because all requests waiting for the read may be gone.
            if not done.cancelled():
                done.exception()

        record.add_done_callback(ended)
        return reading

    async def note_use(self) -> None:
        """Store the time of the last use of each key that was used since the previous call."""
        used, self._used = self._used, {}
        if used:
            await self._db.write(lambda conn: touch_api_keys(conn, used))

    def issue(self, *, org: str, role: Role, wallet_id: str | None, name: str, live: bool) -> IssuedKey:
        """Return a new key. It works once the caller has stored its record.

        Raises ValueError if an agent's key has no wallet, or a key of another role has one.
        """
        if (role == "agent") != (wallet_id is not None):
            raise ValueError("an agent key requires a wallet, keys of other roles must not have one")
        key = generate(live=live)
        record = ApiKey(
            key_id=random_id("key_"),
            org=org,
            role=role,
            wallet_id=wallet_id,
            name=name,
            digest=self.digest(key),
            hint=key[-4:],
            created_at=self._now(),
        )
        return IssuedKey(key, record)

    def make(
        self,
        conn: Connection,
        by: Principal,
        role: Role,
        wallet_id: str | None,
        name: str,
        *,
        live: bool,
        idempotency_key: str | None = None,
    ) -> IssuedKey:
        """Create a key for the organisation of ``by`` and store its record. Raises ValueError like ``issue``."""
        made = self.issue(org=by.org, role=role, wallet_id=wallet_id, name=name, live=live)
        insert_api_key(conn, made.record, idempotency_key=idempotency_key)
        append(conn, by.entry("key.create", made.record.key_id, role=role, wallet_id=wallet_id))
        return made

    def reissue(self, conn: Connection, by: Principal, idempotency_key: str, *, live: bool) -> IssuedKey | None:
        """Replace the text of the key created under this idempotency key. Return None if there is no such key.

        Used when a request is repeated because a crash prevented its response: the client never received the key's
        text, and the service does not store it. The earlier text no longer works.
        """
        made = api_key_made_under(conn, by.org, idempotency_key)
        if made is None:
            return None
        key = generate(live=live)
        record = replace(made, digest=self.digest(key), hint=key[-4:])
        replace_digest(conn, record.key_id, digest=record.digest, hint=record.hint)
        append(conn, by.entry("key.reissue", record.key_id))
        return IssuedKey(key, record)

    def create(
        self, *, org: str, role: Role, wallet_id: str | None, name: str, live: bool, by: str = COMMAND_LINE
    ) -> str:
        """Create a key, store its record and return the key. Its text is not stored. Raises ValueError like ``issue``.

        ``by`` is the part of the service that creates it without an API key of its own.
        """
        maker = system(org, by)
        return self._db.write_now(lambda conn: self.make(conn, maker, role, wallet_id, name, live=live)).key

    async def list(self, org: str) -> list[ApiKey]:
        """Return all keys of an organisation, including revoked ones, oldest first."""
        return await self._db.read(lambda conn: api_keys(conn, org))

    def revoke(self, conn: Connection, by: Principal, key_id: str, *, again: bool = False) -> ApiKey:
        """Revoke a key of the caller's organisation. The caller is ``by``.

        With ``again``, accept a key that an earlier run of the request may have revoked already.

        Raises ``key_not_found``, ``last_admin_key`` for the organisation's last active admin key and, unless ``again``
        is given, ``key_not_active`` for a revoked key.
        """
        org, now = by.org, self._now()
        found = _found(conn, org, key_id)
        if found.role == "admin" and found.revoked_at is None and not has_other_admin_key(conn, org, key_id):
            raise BusinessError("last_admin_key")
        if revoke_api_key(conn, org, key_id, now):
            append(conn, by.entry("key.revoke", key_id, role=found.role, wallet_id=found.wallet_id))
            return replace(found, revoked_at=now)
        if again:
            return found
        raise BusinessError("key_not_active")

    def rotate(
        self,
        conn: Connection,
        by: Principal,
        key_id: str,
        *,
        overlap: int,
        live: bool,
        idempotency_key: str | None = None,
    ) -> IssuedKey:
        """Store a replacement for a key. The old key works for ``overlap`` more seconds.

        Raises ``key_not_found`` and, if the key was already revoked or rotated, ``key_not_active``.
        """
        org = by.org
        old = _found(conn, org, key_id)
        if old.revoked_at is not None:
            raise BusinessError("key_not_active")
        made = self.issue(org=org, role=_role(old), wallet_id=old.wallet_id, name=old.name, live=live)
        insert_api_key(conn, made.record, idempotency_key=idempotency_key)
        revoke_api_key(conn, org, key_id, self._now() + overlap * 1000)
        append(conn, by.entry("key.rotate", made.record.key_id, replaces=key_id, overlap_seconds=overlap))
        return made

    def forget(self) -> None:
        """Empty the cache. Call this method after a change of a key is committed."""
        self._cache.clear()
        self._changes += 1

    def _now(self) -> int:
        return int(self._clock() * 1000)


def status_of(record: ApiKey, now: int) -> KeyStatus:
    """Return a key's status at the Unix millisecond ``now``. A rotated key works until its ``revoked_at``."""
    if record.revoked_at is None:
        return "active"
    return "revoked" if record.revoked_at <= now else "rotated"


def _role(record: ApiKey) -> Role:
    return next(role for role in ROLES if role == record.role)


def _found(conn: Connection, org: str, key_id: str) -> ApiKey:
    found = api_key(conn, org, key_id)
    if found is None:
        raise NotFoundError("key_not_found")
    return found
