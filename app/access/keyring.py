"""API keys: recognises, creates, rotates and revokes them."""

import hashlib
import hmac
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from sqlalchemy import Connection

from app.access.credential_events import report
from app.access.key_format import generate, well_formed
from app.access.key_records import KeyRecords
from app.access.networks import allow, is_narrow
from app.access.sealing import ResponseSeal
from app.core.actors import Actor, Role
from app.core.errors import AuthenticationError, BusinessError, NotFoundError, RequestError
from app.core.identifiers import random_id
from app.core.timestamps import iso_ms, now_seconds
from app.database.interface import Database
from app.store.audit import NewLogEntry, append
from app.store.audit_actions import Action
from app.store.keys import (
    ApiKey,
    api_key,
    api_key_by_id,
    api_key_made_under,
    has_admin_key,
    insert_api_key,
    replace_digest,
    revoke_api_key,
    touch_api_keys,
)
from app.store.organisations import organisation
from app.store.people import end_sessions

_OUTLIVES = "expiresAt: must not be later than the end of the API key that sends the request."
_RESTRICTED = (
    "expiresAt, allowedAddresses: the organisation requires both for new keys, and permits no network wider "
    "than /8 (IPv4) or /32 (IPv6)."
)

COMMAND_LINE = "command_line"
"""Actor id of `agent-vault` commands run on the service's own machine."""


@dataclass(frozen=True, slots=True)
class Principal:
    """The caller: its actor, organisation, role and, for agents, wallet.

    ``address`` and ``request_id`` come from the request, if there is one. ``outside`` is True for an API key used
    outside its allowed addresses. Such a caller may only freeze and pause.
    """

    actor: Actor
    org: str
    role: Role
    wallet_id: str | None
    address: str | None = None
    request_id: str | None = None
    outside: bool = False

    @property
    def key_id(self) -> str:
        """The id of the API key, or of the actor if the caller has no key."""
        return self.actor.id

    @property
    def owner(self) -> tuple[str, str]:
        """The owner of request slots: the organisation, and the agent's wallet or else the key or person."""
        return self.org, self.wallet_id or self.key_id

    def entry(self, action: Action, about: str | None = None, **details: Any) -> NewLogEntry:
        """Return an audit log entry for an action of this caller. ``about`` is the id of the affected object."""
        return NewLogEntry(self.org, action, self.actor, about, self.address, self.request_id, details)


def system(org: str, part: str) -> Principal:
    """Return the principal of a part of the service, which acts for the organisation as an admin without an API key."""
    return Principal(Actor("system", part), org, "admin", None)


def unauthenticated() -> AuthenticationError:
    """Return the error for a caller without a valid key."""
    return AuthenticationError("authentication_failed", headers={"WWW-Authenticate": "Bearer"})


@dataclass(frozen=True, slots=True)
class KeyTerms:
    """The terms of a new key.

    ``live`` selects the prefix `avk_live_`. ``expires_at`` is the key's end in Unix milliseconds, or None for a key
    without an end. ``allowed_addresses`` are networks in CIDR notation, or None if the key works from any address.
    ``idempotency_key`` comes from the request.
    """

    role: Role
    wallet_id: str | None = None
    name: str = ""
    live: bool = False
    expires_at: int | None = None
    allowed_addresses: list[str] | None = None
    idempotency_key: str | None = None


@dataclass(frozen=True, slots=True)
class IssuedKey:
    """A new API key and its record. Of the key's text, the record holds only a digest and the last four characters."""

    key: str
    record: ApiKey


class KeyRing:
    """The API keys of a database, recognised by their HMAC-SHA256 under ``secret``.

    The record of a recognised key is cached for ``cache_seconds``, which saves a database read per request. A key
    revoked by another process therefore stops working here within that time. The time of each key's last use stays in
    memory until ``note_use`` stores it. ``clock`` returns the Unix time in seconds. ``timer`` returns seconds, by which
    the age of cached records is measured.
    """

    def __init__(
        self,
        db: Database,
        secret: bytes,
        *,
        cache_seconds: float = 0.0,
        clock: Callable[[], float] = now_seconds,
        timer: Callable[[], float] = time.monotonic,
    ) -> None:
        self._db = db
        self._secret = secret
        self._clock = clock
        self._records = KeyRecords(db, cache_seconds, timer)
        self._used: dict[str, int] = {}

    def digest(self, key: str) -> str:
        """Return the digest under which a key's record is stored. The record does not contain the text of the key."""
        return hmac.new(self._secret, key.encode(), hashlib.sha256).hexdigest()

    def seal(self, key: str) -> ResponseSeal:
        """Return the seal for responses to requests made with this key."""
        return ResponseSeal(key, self.digest(key))

    async def recognise(self, key: str, address: str | None) -> Principal | None:
        """Return the key's principal at the client's address, or None for a malformed, unknown or ended key."""
        digest = self.digest(key)
        record, now = await self._records.find(digest) if well_formed(key) else None, self._now()
        if record is None or not hmac.compare_digest(record.digest, digest) or record.ended(now):
            return None
        self._used[record.key_id] = now
        outside = not allow(record.allowed_addresses, address)
        return Principal(Actor("key", record.key_id), record.org, record.role, record.wallet_id, outside=outside)

    async def note_use(self) -> None:
        """Store the time of the last use of each key that was used since the previous call."""
        used, self._used = self._used, {}
        if used:
            await self._db.write(lambda conn: touch_api_keys(conn, used))

    def _add(self, conn: Connection, by: Principal, terms: KeyTerms, replaces: str | None = None) -> IssuedKey:
        if (terms.role == "agent") != (terms.wallet_id is not None):
            raise ValueError("an agent's key requires a wallet; a key of another role must not have one")
        key, now, owner = generate(live=terms.live), self._now(), organisation(conn, by.org)
        record = ApiKey(
            key_id=random_id("key_"),
            org=by.org,
            role=terms.role,
            wallet_id=terms.wallet_id,
            name=terms.name,
            digest=self.digest(key),
            hint=key[-4:],
            created_at=now,
            expires_at=terms.expires_at,
            allowed_addresses=terms.allowed_addresses,
            created_by=by.actor,
            replaces=replaces,
        )
        if record.ended(now):
            raise RequestError("invalid_request", "expiresAt: must be in the future.")
        creator = api_key_by_id(conn, by.actor.id) if by.actor.type == "key" else None
        latest = None if creator is None else creator.end
        if latest is not None and (terms.expires_at is None or terms.expires_at > latest):
            raise RequestError("invalid_request", f"{_OUTLIVES} That key ends at {iso_ms(latest)}.")
        narrow = terms.allowed_addresses and all(map(is_narrow, terms.allowed_addresses))
        if owner is not None and owner.restricts_keys and not (terms.expires_at and narrow):
            raise RequestError("invalid_request", _RESTRICTED)
        insert_api_key(conn, record, idempotency_key=terms.idempotency_key)
        return IssuedKey(key, record)

    def make(self, conn: Connection, by: Principal, terms: KeyTerms) -> IssuedKey:
        """Create a key for the organisation of ``by`` and store its record.

        Raises ValueError if an agent's key has no wallet, or a key of another role has one. Raises ``invalid_request``
        if the new key's end is in the past or after the end of the caller's key, or if the key lacks the restrictions
        that the organisation requires.
        """
        made = self._add(conn, by, terms)
        entry = by.entry("key.create", made.record.key_id, role=terms.role, wallet_id=terms.wallet_id)
        report(conn, entry, "key.issued", made.record)
        return made

    def reissue(self, conn: Connection, by: Principal, idempotency_key: str, *, live: bool) -> IssuedKey | None:
        """Replace the text of the key created under this idempotency key. Return None if there is no such key.

        Use this method when a client repeats a request because a crash prevented its response. The client never
        received the key's text, and the service does not store the text. The earlier text stops working.
        """
        made = api_key_made_under(conn, by.org, idempotency_key)
        if made is None:
            return None
        key = generate(live=live)
        record = replace(made, digest=self.digest(key), hint=key[-4:])
        replace_digest(conn, record.key_id, digest=record.digest, hint=record.hint)
        append(conn, by.entry("key.reissue", record.key_id))
        return IssuedKey(key, record)

    def create(self, *, org: str, by: str = COMMAND_LINE, **terms: Any) -> str:
        """Create a key on these ``KeyTerms``, store its record and return the key. Raises the errors of ``make``.

        ``by`` is the part of the service that creates the key. That part needs no API key of its own.
        """
        return self._db.write_now(lambda conn: self.make(conn, system(org, by), KeyTerms(**terms))).key

    def revoke(self, conn: Connection, by: Principal, key_id: str, *, again: bool = False) -> ApiKey:
        """Revoke a key of the caller's organisation. The caller is ``by``.

        With ``again``, accept a key that has already ended, and return it unchanged.

        Raises ``key_not_found``, ``last_admin_key`` for the organisation's last active admin key and, unless ``again``
        is given, ``key_not_active`` for a revoked or expired key.
        """
        now = self._now()
        found = _found(conn, by.org, key_id)
        if found.ended(now):
            if again:
                return found
            raise BusinessError("key_not_active")
        self.end(conn, by, found, now)
        if found.role == "admin" and found.revoked_at is None:
            self.require_admin_key(conn, by)
        return replace(found, revoked_at=now)

    def end(self, conn: Connection, by: Principal, key: ApiKey, now: int) -> None:
        """Revoke a key in force and end its sessions, even if it is the last admin key."""
        revoke_api_key(conn, key.org, key.key_id, now)
        end_sessions(conn, key.org, Actor("key", key.key_id), now)
        entry = by.entry("key.revoke", key.key_id, role=key.role, wallet_id=key.wallet_id)
        report(conn, entry, "key.revoked", key, revoked_at=iso_ms(now))

    def rotate(self, conn: Connection, by: Principal, key_id: str, *, overlap: int, **changes: Any) -> IssuedKey:
        """Store a replacement for a key. The old key works for ``overlap`` more seconds.

        The replacement has the terms of the old key, except the ``changes``. Raises the errors of ``make``,
        ``key_not_found``, ``key_not_active`` for a rotated or ended key, and the error of ``require_admin_key``.
        """
        now, old = self._now(), _found(conn, by.org, key_id)
        if old.revoked_at is not None or old.ended(now):
            raise BusinessError("key_not_active")
        kept = {"expires_at": old.expires_at, "allowed_addresses": old.allowed_addresses}
        made = self._add(conn, by, KeyTerms(old.role, old.wallet_id, old.name, **(kept | changes)), key_id)
        until = now + overlap * 1000
        revoke_api_key(conn, by.org, key_id, until)
        entry = by.entry("key.rotate", made.record.key_id, replaces=key_id, overlap_seconds=overlap)
        report(conn, entry, "key.issued", made.record, replaces=key_id, replaced_until=iso_ms(until))
        if old.role == "admin":
            self.require_admin_key(conn, by)
        return made

    def require_admin_key(self, conn: Connection, by: Principal) -> None:
        """Raise ``last_admin_key`` if ``has_admin_key`` is False for the caller's organisation.

        A key with allowed networks counts only if they contain the caller's address, or if the caller is the service or
        its command line.
        """

        def reachable(networks: list[str] | None) -> bool:
            return by.actor.type == "system" or allow(networks, by.address)

        if not has_admin_key(conn, by.org, self._now(), reachable):
            raise BusinessError("last_admin_key")

    def forget(self) -> None:
        """Empty the cache. Call this method after a change of a key is committed."""
        self._records.forget()

    def _now(self) -> int:
        return int(self._clock() * 1000)


def _found(conn: Connection, org: str, key_id: str) -> ApiKey:
    found = api_key(conn, org, key_id)
    if found is None:
        raise NotFoundError("key_not_found")
    return found
