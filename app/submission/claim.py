"""A request's claim of its idempotency key, and the fingerprint that identifies its replays."""

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from sqlalchemy import Connection

from app.core.errors import ConflictError, StorageDoubtError
from app.core.timestamps import now_ms
from app.database.interface import Database
from app.database.records import columns_of
from app.store.attempts import Attempt
from app.store.idempotency import (
    LIFETIME,
    IdempotencyRecord,
    Reducible,
    attach_transaction,
    find,
    finish,
    keep_partial,
    keep_within,
    release,
    runs_on,
)
from app.store.idempotency import claim as claim_key

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """Identifies a request by organisation, scope and key, and holds the properties that its replays must match.

    ``sealed_for`` is the digest of the API key that seals a secret response. ``scope`` is an agent's wallet, a
    viewer's API key, or empty for operators and admins, who share their idempotency keys.
    """

    org: str
    key: str
    method: str
    path: str
    body_hash: str
    sealed_for: str | None = None
    scope: str = ""

    @property
    def record(self) -> str:
        """Name of the idempotency record. A sealed response is bound to this name."""
        return f"{self.org} {self.key}"


def body_hash(body: dict[str, Any], bound_to: str | None = None) -> str:
    """Return the digest of a parsed body. Its amounts and times are already normalised.

    The digest includes ``bound_to``, the wallet that the API key is bound to, so that no other wallet's agent can get
    the response.
    """
    bound = {} if bound_to is None else {"": bound_to}
    return hashlib.sha256(json.dumps(body | bound, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def _admit() -> None:
    """Admit every request."""


def _authorise(_conn: Connection) -> None:
    """Authorise every change, because the service itself makes the change."""


def in_progress() -> ConflictError:
    """Return the error for a key that another request holds."""
    return ConflictError("idempotency_in_progress", headers={"Retry-After": "1"})


class Claim:
    """A request's claim of its idempotency key. A request without a key claims nothing.

    ``attempt`` is the transaction of an earlier run of the same request, if that run ended without a response.
    """

    def __init__(
        self,
        db: Database,
        fingerprint: Fingerprint | None = None,
        attempt: Attempt | None = None,
        *,
        partial: str | None = None,
        repeats: bool = False,
        sign_offline: bool = False,
        first_called_at: int | None = None,
    ) -> None:
        self.attempt = attempt
        #: The partial result that an earlier run of the request has stored. It is empty once it was dropped to keep the
        #: quota.
        self.partial = partial
        #: True if the response must not be replayed, because the attempt's outcome is not known yet.
        self.open_ended = False
        #: Callback that raises an error if the request must not send a new transaction now.
        self.admit: Callable[[], None] = _admit
        #: Callback that raises an error if the caller's credential has ended since the request was authenticated.
        self.authorise: Callable[[Connection], None] = _authorise
        #: True if the organisation's authority signs this request's transaction offline.
        self.sign_offline = sign_offline
        #: True if an earlier run of the request claimed the key and stored its effect, but sent no final response.
        self.repeats = repeats
        #: Time of the first request in Unix milliseconds, if it was answered and its brake is now checked again.
        self.first_called_at = first_called_at
        #: The smaller form of the response, which replaces it once the wallet's quota is full; None if there is none.
        self.reducible: Reducible | None = None
        #: True if another request already held the key when this request tried to claim it.
        self.lost = False
        self._db = db
        self._fingerprint = fingerprint
        #: True if this request holds the key.
        self.held = repeats
        #: True if a lasting effect was stored or sent. An error then does not free the key, because no request may take
        # effect twice. A transaction that failed permanently has no effect.
        self.effective = attempt is not None

    @property
    def key(self) -> str | None:
        """The idempotency key in its stored form, unique in the organisation; None if the request has no key."""
        return self._fingerprint.key if self._fingerprint else None

    @property
    def record(self) -> str:
        """Name of the idempotency record that the request holds."""
        assert self._fingerprint is not None
        return self._fingerprint.record

    @property
    def scope(self) -> tuple[str, str]:
        """The organisation and the idempotency key, which together identify the claim."""
        assert self._fingerprint is not None
        return self._fingerprint.org, self._fingerprint.key

    @property
    def releasable(self) -> bool:
        """True if the key was claimed without a lasting effect, so that an error frees it."""
        return self.held and not self.effective

    async def earlier(self, find: Callable[[Connection, str], T | None]) -> T | None:
        """Return the object that an earlier run of the request stored under its key, or None on the first run."""
        return await self._db.read(lambda conn: self.earlier_in(conn, find)) if self.repeats else None

    def earlier_in(self, conn: Connection, find: Callable[[Connection, str], T | None]) -> T | None:
        """Return the object that an earlier run of the request stored under its key, or None. See ``earlier``."""
        return find(conn, self.key) if self.repeats and self.key is not None else None

    async def is_taken(self) -> bool:
        """Return True if another node has claimed the same idempotency key.

        A refusal of this request may then be caused by the changes that the other node's run has made. Always returns
        False on a single node, because duplicates within a process wait for the first request.
        """
        if self._fingerprint is None or self.held or not self._db.node:
            return False
        return await self._db.look_up(lambda conn: find(conn, *self.scope, now_ms())) is not None

    async def require_free(self) -> None:
        """Raise ``idempotency_in_progress`` if the key is taken. Call this before recording a refusal."""
        if await self.is_taken():
            raise in_progress()

    async def store(
        self,
        effect: Callable[[Connection], T],
        *,
        tx_id: str | None = None,
        lasts: bool = True,
        repeatable: bool = False,
    ) -> T:
        """Store an effect and claim the key in one database transaction. Return the effect's result.

        ``tx_id`` names the attempt that the effect stores, if any; ``admit`` is then called again. Any other effect is
        stored only if ``authorise`` raises no error. ``lasts=False`` marks an effect that may be stored again, so that
        a later error frees the key. ``repeatable`` is passed on to `Database.write`. Raises ``idempotency_in_progress``
        if another process holds the key.
        """

        def claim_and_store(conn: Connection) -> T:
            if tx_id is not None:
                # Check again: only a database transaction reveals a failover, and the new server may have lost commits.
                self.admit()
            else:
                self.authorise(conn)
            self._hold(conn, tx_id)
            return effect(conn)

        return await self._stored(claim_and_store, lasts=lasts, repeatable=repeatable)

    async def store_once(self, effect: Callable[[Connection], object]) -> None:
        """Store an effect like ``store``, but only in the request's first run.

        A repetition could undo later changes.
        """
        await self.store(lambda conn: None if self.repeats else effect(conn))

    def resolve(self, *, lasts: bool) -> None:
        """Record the fate of the request's attempt. ``lasts`` is True if its transaction landed or can still land.

        If ``lasts`` is False, a later error frees the key.
        """
        self.attempt, self.effective = None, lasts

    async def finish(self, body: str) -> None:
        """Store the response for replays. Raises ``idempotency_in_progress`` like ``store``."""
        org, key = self.scope

        def answer(conn: Connection) -> None:
            if not self.held:
                self._hold(conn, None)
            if not finish(conn, org, key, 200, body, now_ms(), node=self._db.node):
                raise in_progress()
            if self.reducible is not None:
                keep_within(conn, org, key, len(body.encode()), self.reducible)

        await self._stored(answer, lasts=True, repeatable=True)

    def keep(self, conn: Connection, partial: str, wallet_id: str, quota: int) -> None:
        """Store a partial result for a repetition of the request, within the wallet's quota in bytes."""
        if self._fingerprint is not None:
            keep_partial(conn, *self.scope, partial, Reducible(wallet_id, "", quota))

    async def release(self) -> None:
        """Free the idempotency key, so that another request can claim it."""
        org, key = self.scope
        await self._db.write(lambda conn: release(conn, org, key))

    async def _stored(self, work: Callable[[Connection], T], *, lasts: bool, repeatable: bool) -> T:
        try:
            result = await self._db.write(work, repeatable=repeatable)
        except StorageDoubtError:
            # The effect may have been stored, so the key must not be freed. A repeated request will find the outcome.
            self.effective = True
            raise
        self.held = True
        self.effective = self.effective or lasts
        return result

    def _hold(self, conn: Connection, tx_id: str | None) -> None:
        if self._fingerprint is None:
            return
        fingerprint, now, node = self._fingerprint, now_ms(), self._db.node or None
        if self.held:
            if node and not runs_on(conn, fingerprint.org, fingerprint.key, node):
                # This node was considered dead, and another node has taken over the request.
                raise in_progress()
            if tx_id is not None:
                attach_transaction(conn, fingerprint.org, fingerprint.key, tx_id)
            return
        until, own = now + LIFETIME, columns_of(fingerprint)
        record = IdempotencyRecord(**own, state="running", tx_id=tx_id, node=node, created_at=now, expires_at=until)
        if not claim_key(conn, record):
            self.lost = True
            raise in_progress()
