"""Idempotency keys: a repeated request gets the first answer and has no second effect.

A key is claimed in the same database transaction as the request's first lasting effect, so that no crash
can separate the two. Within the process, duplicates wait for the first request; on another node, for its end or the
death of its node. Two that begin on different nodes at the same moment both go ahead until one claims the key. The
other is not refused for what that one has changed; it waits for its answer, too.
"""

import asyncio
import hmac
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from typing import TypeVar

from sqlalchemy import Connection

from app.access.sealing import AnswerSeal
from app.core.errors import ApiError, ConflictError, StorageDoubtError
from app.core.timestamps import now_ms
from app.store.attempts import Attempt, attempt
from app.store.database import WRITE_ERRORS, Database
from app.store.idempotency import (
    LIFETIME,
    IdempotencyRecord,
    attach_transaction,
    find,
    finish,
    leave,
    release,
    runs_on,
    take_over,
)
from app.store.idempotency import claim as claim_key
from app.store.records import columns_of
from app.submission.fingerprint import Fingerprint

T = TypeVar("T")
_PAUSE = 0.1
"""Seconds between two looks whether another node has ended the first request."""
_LEAVE_PAUSE = 1.0
"""Seconds after which it is stored that a request does not run here any more, if the database failed at its end."""


def _admit() -> None:
    """Admit everything."""


def in_progress() -> ConflictError:
    """Return the error for a key that another request holds."""
    return ConflictError("idempotency_in_progress", headers={"Retry-After": "1"})


class Claim:
    """A request's claim of its idempotency key; without a key it claims nothing.

    ``attempt`` is the transaction of an earlier run of the same request whose answer was lost, if there is one.
    """

    def __init__(
        self,
        db: Database,
        fingerprint: Fingerprint | None = None,
        attempt: Attempt | None = None,
        *,
        repeats: bool = False,
        sign_offline: bool = False,
    ) -> None:
        self.attempt = attempt
        #: Whether the answer is not yet what a repetition is to get, because the attempt's outcome is not known.
        self.open_ended = False
        #: Raises an error if the request must not send a new transaction now.
        self.admit: Callable[[], None] = _admit
        #: Whether the organisation's authority signs elsewhere what it must sign.
        self.sign_offline = sign_offline
        #: Whether an earlier run of the request claimed the key and stored its effect, but did not answer.
        self.repeats = repeats
        self._db = db
        self._fingerprint = fingerprint
        self._claimed = repeats
        # Whether a lasting effect was stored or sent. Then an error does not free the key, because no request may take
        # effect twice. A transaction that failed for good has no effect.
        self._effective = attempt is not None

    @property
    def key(self) -> str | None:
        """The idempotency key, if the request has one."""
        return self._fingerprint.key if self._fingerprint else None

    @property
    def record(self) -> str:
        """Name of the record that the request holds."""
        assert self._fingerprint is not None
        return self._fingerprint.record

    @property
    def scope(self) -> tuple[str, str]:
        """The organisation and the key."""
        assert self._fingerprint is not None
        return self._fingerprint.org, self._fingerprint.key

    @property
    def effective(self) -> bool:
        """Whether the request has a lasting effect, or may have one."""
        return self._effective

    @property
    def held(self) -> bool:
        """Whether the key was claimed."""
        return self._claimed

    @property
    def releasable(self) -> bool:
        """Whether the key was claimed without a lasting effect, so that an error frees it."""
        return self._claimed and not self._effective

    async def earlier(self, find: Callable[[Connection, str], T | None]) -> T | None:
        """Return what an earlier run of the request stored, found by its key; None on the first run."""
        key = self.key
        return await self._db.read(lambda conn: find(conn, key)) if self.repeats and key is not None else None

    async def is_taken(self) -> bool:
        """Return whether the same request was claimed on another node; in one process, duplicates wait for the first.

        Then what refuses this one may be the effect of that one.
        """
        if self._fingerprint is None or self._claimed or not self._db.node:
            return False
        return await self._db.look_up(lambda conn: find(conn, *self.scope, now_ms())) is not None

    async def require_free(self) -> None:
        """Raise ``idempotency_in_progress`` if the key is taken; to be called before a refusal is recorded."""
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
        """Store an effect and claim the key in one database transaction, and return the effect's result.

        ``tx_id`` names the attempt that the effect stores. ``lasts=False`` marks an effect that may be stored again, so
        that a later error frees the key. ``repeatable`` is as in `Database.write`. Raises ``idempotency_in_progress``
        if another process holds the key.
        """

        def claim_and_store(conn: Connection) -> T:
            self._hold(conn, tx_id)
            return effect(conn)

        return await self._stored(claim_and_store, lasts=lasts, repeatable=repeatable)

    def resolve(self, *, lasts: bool) -> None:
        """Record whether the request's transaction landed or still may; a failed one leaves the key free."""
        self.attempt, self._effective = None, lasts

    async def finish(self, body: str) -> None:
        """Store the answer for repetitions. Raises ``idempotency_in_progress`` as ``store`` does."""
        assert self._fingerprint is not None
        org, key = self._fingerprint.org, self._fingerprint.key

        def answer(conn: Connection) -> None:
            if not self._claimed:
                self._hold(conn, None)
            if not finish(conn, org, key, 200, body, now_ms(), node=self._db.node):
                raise in_progress()

        await self._stored(answer, lasts=True, repeatable=True)

    async def release(self) -> None:
        """Free the key."""
        assert self._fingerprint is not None
        org, key = self._fingerprint.org, self._fingerprint.key
        await self._db.write(lambda conn: release(conn, org, key))

    async def _stored(self, work: Callable[[Connection], T], *, lasts: bool, repeatable: bool) -> T:
        try:
            result = await self._db.write(work, repeatable=repeatable)
        except StorageDoubtError:
            # If it was stored, the key must not be freed: the repetition then finds out what became of it.
            self._effective = True
            raise
        self._claimed = True
        self._effective = self._effective or lasts
        return result

    def _hold(self, conn: Connection, tx_id: str | None) -> None:
        if self._fingerprint is None:
            return
        fingerprint, now, node = self._fingerprint, now_ms(), self._db.node
        if self._claimed:
            if node and not runs_on(conn, fingerprint.org, fingerprint.key, node):
                # This node was taken for dead, and another one goes on with the request.
                raise in_progress()
            if tx_id is not None:
                attach_transaction(conn, fingerprint.org, fingerprint.key, tx_id)
            return
        record = IdempotencyRecord(
            **columns_of(fingerprint), state="running", tx_id=tx_id, created_at=now, expires_at=now + LIFETIME
        )
        record = replace(record, node=node or None)
        if claim_key(conn, record) is not None:
            raise in_progress()


@dataclass(slots=True)
class _Running:
    """A request under way. It is ``admitted`` once the key is known to be its own and no earlier request's."""

    fingerprint: Fingerprint
    admitted: asyncio.Event = field(default_factory=asyncio.Event)
    done: asyncio.Event = field(default_factory=asyncio.Event)


class Idempotency:
    """Runs requests under their keys. A duplicate waits up to ``wait`` seconds for the first request."""

    def __init__(self, db: Database, *, wait: float) -> None:
        self._db = db
        self._wait = wait
        self._running: dict[tuple[str, str], _Running] = {}
        self._leaving: set[asyncio.Task[None]] = set()

    async def run(
        self,
        fingerprint: Fingerprint | None,
        work: Callable[[Claim], Awaitable[bytes]],
        *,
        seal: AnswerSeal | None = None,
    ) -> tuple[bytes, bool]:
        """Return the answer, and whether it repeats an earlier one.

        With a ``seal``, the answer is stored sealed. Raises ``idempotency_conflict`` for the same key with other
        parameters, or with another API key if the answer is sealed, and ``idempotency_in_progress`` if the first
        request does not end in time.
        """
        if fingerprint is None:
            return await work(Claim(self._db)), False
        scope = (fingerprint.org, fingerprint.key)
        await self._wait_for_first(scope, fingerprint)
        running = self._running[scope] = _Running(fingerprint)
        claim = Claim(self._db, fingerprint)
        deadline = time.monotonic() + self._wait
        try:
            while True:
                found = await self._found(scope, fingerprint, deadline)
                if found is not None:
                    _same(fingerprint, found)
                running.admitted.set()
                if found is not None and found.state == "done" and found.response is not None:
                    return _opened(found.response, fingerprint, seal), True
                claim = await self._claim(fingerprint, found)
                try:
                    return await self._work(claim, work, seal), False
                except ApiError:
                    # Nothing is done again for what may have had an effect. Otherwise the key's holder has the answer.
                    if claim.effective or not await claim.is_taken():
                        raise
        except WRITE_ERRORS:
            # The key's release or the answer may not be stored. Nothing is retried for what has claimed nothing.
            if claim.held or claim.effective:
                self._leave_later(scope)
            raise
        finally:
            del self._running[scope]
            running.admitted.set()
            running.done.set()

    async def _wait_for_first(self, scope: tuple[str, str], fingerprint: Fingerprint) -> None:
        deadline = time.monotonic() + self._wait
        while (first := self._running.get(scope)) is not None:
            if first.admitted.is_set():
                _same(fingerprint, first.fingerprint)
            # One with other parameters may itself be refused, as the key is that of an earlier request like this one.
            over = first.done if first.admitted.is_set() else first.admitted
            try:
                async with asyncio.timeout(max(0.0, deadline - time.monotonic())):
                    await over.wait()
            except TimeoutError:
                raise in_progress() from None

    async def _claim(self, fingerprint: Fingerprint, found: IdempotencyRecord | None) -> Claim:
        """Return the claim of a new request, or of one that an earlier run has begun."""
        if found is None:
            return Claim(self._db, fingerprint)
        tx_id = found.tx_id
        earlier = None if tx_id is None else await self._db.look_up(lambda conn: attempt(conn, tx_id))
        return Claim(self._db, fingerprint, earlier, repeats=True)

    async def _found(
        self, scope: tuple[str, str], fingerprint: Fingerprint, deadline: float
    ) -> IdempotencyRecord | None:
        """Return the record of an earlier run, once no other node runs the request.

        Raises ``idempotency_in_progress`` if that takes too long.
        """
        node = self._db.node
        while True:
            found = await self._db.look_up(lambda conn: find(conn, *scope, now_ms()))
            if found is None or not node or found.state == "done":
                return found
            _same(fingerprint, found)
            taken = await self._db.write(lambda conn: take_over(conn, *scope, node))
            if taken is not None:
                return taken
            if time.monotonic() >= deadline:
                raise in_progress()
            await asyncio.sleep(_PAUSE)

    async def _leave(self, scope: tuple[str, str]) -> None:
        """Let the request go on elsewhere when it is repeated; retries in the background if that cannot be stored."""
        node = self._db.node
        if not node:
            return
        try:
            await self._db.write(lambda conn: leave(conn, *scope, node))
        except WRITE_ERRORS:
            self._leave_later(scope)

    def _leave_later(self, scope: tuple[str, str]) -> None:
        """Leave the request in the background, unless it is repeated here before that."""
        if not self._db.node:
            return

        async def wait_and_leave() -> None:
            await asyncio.sleep(_LEAVE_PAUSE)
            if scope not in self._running:
                await self._leave(scope)

        task = asyncio.create_task(wait_and_leave(), name="idempotency_leave")
        self._leaving.add(task)
        task.add_done_callback(self._leaving.discard)

    async def _work(self, claim: Claim, work: Callable[[Claim], Awaitable[bytes]], seal: AnswerSeal | None) -> bytes:
        try:
            body = await work(claim)
        except BaseException as error:
            if claim.releasable:
                await claim.release()
            elif claim.held and not isinstance(error, WRITE_ERRORS):
                await self._leave(claim.scope)
            raise
        if claim.open_ended:
            await self._leave(claim.scope)
        else:
            await claim.finish(body.decode() if seal is None else seal.seal(body, claim.record))
        return body


def _opened(response: str, fingerprint: Fingerprint, seal: AnswerSeal | None) -> bytes:
    if seal is None:
        return response.encode()
    answer = seal.open(response, fingerprint.record)
    if answer is None:
        raise _sealed()
    return answer


def _same(fingerprint: Fingerprint, first: Fingerprint | IdempotencyRecord) -> None:
    if (fingerprint.method, fingerprint.path, fingerprint.body_hash) != (first.method, first.path, first.body_hash):
        raise ConflictError("idempotency_conflict")
    if not hmac.compare_digest(fingerprint.sealed_for or "", first.sealed_for or ""):
        raise _sealed()


def _sealed() -> ConflictError:
    return ConflictError(
        "idempotency_conflict",
        "The idempotency key was used by a request with another API key, and its answer holds a secret: only that API "
        "key, as it was then, gets it again. Nothing was done now.",
    )
