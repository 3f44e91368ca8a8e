"""Idempotency keys: a request that succeeded is answered again, not done again.

A key is claimed in the same database transaction as the request's first lasting effect, so that no crash
can separate the two. Within the process an entry in memory keeps duplicates waiting for the first one.
"""

import asyncio
import hashlib
import json
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Protocol

from sqlalchemy import Connection

from app.core.errors import ConflictError
from app.core.timestamps import now_ms
from app.store.attempts import Attempt, attempt
from app.store.database import Database
from app.store.idempotency import LIFETIME, IdempotencyRecord, attach_transaction, claim, find, finish, release


class Seal(Protocol):
    """Encrypts what must not be stored readable."""

    def encrypt(self, data: bytes) -> bytes:
        """Encrypted form of ``data``."""
        ...

    def decrypt(self, token: bytes) -> bytes:
        """Return what was encrypted."""
        ...


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """What makes two requests the same: organisation and key, then method, path and the parsed body."""

    org: str
    key: str
    method: str
    path: str
    body_hash: str


def body_hash(body: dict[str, Any], wallet_id: str | None = None) -> str:
    """Digest of a parsed body, in which amounts and times are already normalised.

    With the wallet that the API key is bound to: no other wallet's agent gets the answer by repeating the request.
    """
    bound = {} if wallet_id is None else {"": wallet_id}
    return hashlib.sha256(json.dumps(body | bound, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


class Ticket:
    """One request's hold on its key; without a key it holds nothing.

    ``attempt`` is the transaction of an earlier run of the same request whose answer got lost, if there is one.
    """

    def __init__(self, fingerprint: Fingerprint | None, resumed: Attempt | None = None) -> None:
        self.fingerprint = fingerprint
        self.resumed = resumed
        self.claimed = resumed is not None
        #: Whether a signed transaction has landed or may still: then an error does not free the key, for a request
        #: that was done is never done anew. What failed for good has no effect.
        self.effective = resumed is not None

    @property
    def key(self) -> str | None:
        """The idempotency key, if the request has one."""
        return self.fingerprint.key if self.fingerprint else None

    def claim(self, conn: Connection, tx_id: str | None) -> None:
        """Claim the key, to be called in the transaction that stores the effect.

        Raises ``idempotency_in_progress`` when another process holds the key.
        """
        if self.fingerprint is None:
            return
        if not self.claimed:
            now = now_ms()
            record = IdempotencyRecord(
                org=self.fingerprint.org,
                key=self.fingerprint.key,
                method=self.fingerprint.method,
                path=self.fingerprint.path,
                body_hash=self.fingerprint.body_hash,
                state="running",
                tx_id=tx_id,
                created_at=now,
                expires_at=now + LIFETIME,
            )
            if claim(conn, record) is not None:
                raise ConflictError("idempotency_in_progress")
        elif tx_id is not None:
            attach_transaction(conn, self.fingerprint.org, self.fingerprint.key, tx_id)


@dataclass(slots=True)
class _Running:
    fingerprint: Fingerprint
    done: asyncio.Event


class Idempotency:
    """Runs requests under their keys. ``wait`` is how many seconds a duplicate waits for the first."""

    def __init__(self, db: Database, seal: Seal, *, wait: float) -> None:
        self._db = db
        self._seal = seal
        self._wait = wait
        self._running: dict[tuple[str, str], _Running] = {}

    async def run(
        self, fingerprint: Fingerprint | None, work: Callable[[Ticket], Awaitable[bytes]], *, secret: bool = False
    ) -> tuple[bytes, bool]:
        """Return the answer, and whether it is a repetition.

        ``secret`` answers are stored encrypted. Raises ``idempotency_conflict`` for the same key with other
        parameters and ``idempotency_in_progress`` when the first request does not end in time.
        """
        if fingerprint is None:
            return await work(Ticket(None)), False
        scope = (fingerprint.org, fingerprint.key)
        await self._wait_for_first(scope, fingerprint)
        running = self._running[scope] = _Running(fingerprint, asyncio.Event())
        try:
            found = await self._db.read(lambda conn: find(conn, *scope, now_ms()))
            if found is None:
                return await self._work(Ticket(fingerprint), work, secret=secret), False
            _same(fingerprint, found.method, found.path, found.body_hash)
            if found.state == "done" and found.response is not None:
                stored = found.response.encode()
                return self._seal.decrypt(stored) if secret else stored, True
            tx_id = found.tx_id
            earlier = await self._db.read(lambda conn: attempt(conn, tx_id)) if tx_id else None
            ticket = Ticket(fingerprint, earlier)
            ticket.claimed = True
            return await self._work(ticket, work, secret=secret), False
        finally:
            del self._running[scope]
            running.done.set()

    async def _wait_for_first(self, scope: tuple[str, str], fingerprint: Fingerprint) -> None:
        deadline = time.monotonic() + self._wait
        while (first := self._running.get(scope)) is not None:
            other = first.fingerprint
            _same(fingerprint, other.method, other.path, other.body_hash)
            try:
                async with asyncio.timeout(max(0.0, deadline - time.monotonic())):
                    await first.done.wait()
            except TimeoutError:
                raise ConflictError("idempotency_in_progress", headers={"Retry-After": "1"}) from None

    async def _work(self, ticket: Ticket, work: Callable[[Ticket], Awaitable[bytes]], *, secret: bool) -> bytes:
        fingerprint = ticket.fingerprint
        assert fingerprint is not None
        org, key = fingerprint.org, fingerprint.key
        try:
            body = await work(ticket)
        except BaseException:
            if ticket.claimed and not ticket.effective:
                await self._db.write(lambda conn: release(conn, org, key))
            raise
        stored = (self._seal.encrypt(body) if secret else body).decode()

        def keep(conn: Connection) -> None:
            ticket.claim(conn, None)
            finish(conn, org, key, 200, stored, now_ms())

        await self._db.write(keep)
        return body


def _same(fingerprint: Fingerprint, method: str, path: str, digest: str) -> None:
    if (fingerprint.method, fingerprint.path, fingerprint.body_hash) != (method, path, digest):
        raise ConflictError("idempotency_conflict")
