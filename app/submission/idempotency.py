"""Idempotency keys: a repeated request gets the first response and has no second effect.

A key is claimed in the same database transaction that stores the request's first effect, so that no crash can separate
the two. Within a process, duplicates wait for the first request. On another node, duplicates wait until the first
request ends or its node dies. Two requests that start on different nodes at the same moment both run until one of them
claims the key. The other request then waits for the claim holder's response, rather than being refused because of the
changes that the claim holder has made.
"""

import asyncio
import hmac
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace

from app.access.sealing import ResponseSeal
from app.core.errors import ApiError, ConflictError
from app.core.timestamps import now_ms
from app.database.interface import WRITE_ERRORS, Database
from app.store.attempts import attempt
from app.store.idempotency import IdempotencyRecord, find_own, leave, take_over
from app.submission.claim import Claim, Fingerprint, in_progress

Caller = tuple[str, str, str]
"""Organisation, scope and key: together, they identify a request and its replays."""

_PAUSE = 0.1
"""Seconds between two checks of a first request that runs on another node."""
_LEAVE_PAUSE = 1.0
"""Seconds to wait before storing that a request no longer runs here, if the database failed when the request ended."""


@dataclass(slots=True)
class _Running:
    """A request in progress. It is ``admitted`` once no earlier, different request is known to hold the key."""

    fingerprint: Fingerprint
    admitted: asyncio.Event = field(default_factory=asyncio.Event)
    done: asyncio.Event = field(default_factory=asyncio.Event)


class Idempotency:
    """Runs requests under their keys. A duplicate waits up to ``wait`` seconds for the first request."""

    def __init__(self, db: Database, *, wait: float) -> None:
        self._db = db
        self._wait = wait
        self._running: dict[Caller, _Running] = {}
        self._leaving: set[asyncio.Task[None]] = set()

    async def run(
        self,
        fingerprint: Fingerprint | None,
        work: Callable[[Claim], Awaitable[bytes]],
        *,
        seal: ResponseSeal | None = None,
        brakes: bool = False,
    ) -> tuple[bytes, bool | None, int | None]:
        """Return the response, its kind, and the time when the key was first used, in Unix milliseconds.

        The kind is True for a replay, False if an answered request was carried out again, and None for a first answer.
        The time is None for a new key and without a key. With a ``seal``, the response is stored sealed. With
        ``brakes``, ``work`` also runs for a request that was already answered. If the brake is still in force, this run
        changes nothing, and the stored response is replayed. Raises ``idempotency_conflict`` for the same key with
        other parameters, or with another API key if the response is sealed, and ``idempotency_in_progress`` if the
        first request does not end in time.
        """
        if fingerprint is None:
            return await work(Claim(self._db)), None, None
        caller = (fingerprint.org, fingerprint.scope, fingerprint.key)
        await self._wait_for_first(caller, fingerprint)
        running = self._running[caller] = _Running(fingerprint)
        claim = Claim(self._db, fingerprint)
        deadline = time.monotonic() + self._wait
        try:
            while True:
                stored, found = await self._found(fingerprint, deadline)
                if found is not None:
                    _same(fingerprint, found)
                running.admitted.set()
                called = None if found is None else found.created_at
                if found is not None and found.state == "done" and found.response is not None:
                    first = _opened(found.response, stored, seal)
                    if brakes:
                        repeat = Claim(self._db, first_called_at=called)
                        answer = await work(repeat)
                        if repeat.effective:
                            return answer, False, called
                    return first, True, called
                claim = await self._claim(stored, found)
                try:
                    return await self._work(claim, caller, work, seal), None, called
                except WRITE_ERRORS:
                    raise  # While the database fails, the claim holder is unknown.
                except ApiError:
                    # Never rerun a request that may have had an effect. Otherwise wait for the claim holder, if any.
                    if claim.effective or not (claim.lost or await claim.is_taken()):
                        raise
        except WRITE_ERRORS:
            # The key's release or the response may not have been stored. Without a claim, there is nothing to retry.
            if claim.held or claim.effective:
                self._leave_later(claim.scope, caller)
            raise
        finally:
            del self._running[caller]
            running.admitted.set()
            running.done.set()

    async def _wait_for_first(self, caller: Caller, fingerprint: Fingerprint) -> None:
        deadline = time.monotonic() + self._wait
        while (first := self._running.get(caller)) is not None:
            if first.admitted.is_set():
                _same(fingerprint, first.fingerprint)
            # Wait for the running request's admission first: it is refused itself if the key belongs to an earlier
            # request with other parameters, and this request may be a repeat of that one.
            over = first.done if first.admitted.is_set() else first.admitted
            try:
                async with asyncio.timeout(max(0.0, deadline - time.monotonic())):
                    await over.wait()
            except TimeoutError:
                raise in_progress() from None

    async def _claim(self, fingerprint: Fingerprint, found: IdempotencyRecord | None) -> Claim:
        """Return the claim of a new request, or of a request that an earlier run has begun."""
        if found is None:
            return Claim(self._db, fingerprint)
        tx_id = found.tx_id
        earlier = None if tx_id is None else await self._db.look_up(lambda conn: attempt(conn, tx_id))
        return Claim(self._db, fingerprint, earlier, partial=found.response, repeats=True)

    async def _found(self, fingerprint: Fingerprint, deadline: float) -> tuple[Fingerprint, IdempotencyRecord | None]:
        """Return the fingerprint with its stored key, and the earlier run's record once no other node runs the request.

        Raises ``idempotency_in_progress`` if that takes too long.
        """
        node, org = self._db.node, fingerprint.org
        while True:
            key, found = await self._db.look_up(
                lambda conn: find_own(conn, org, fingerprint.key, fingerprint.scope, now_ms())
            )
            stored = replace(fingerprint, key=key)
            if found is None or not node or found.state == "done":
                return stored, found
            _same(fingerprint, found)
            taken = await self._db.write(lambda conn: take_over(conn, org, key, node))  # noqa: B023 - awaited here
            if taken is not None:
                return stored, taken
            if time.monotonic() >= deadline:
                raise in_progress()
            await asyncio.sleep(_PAUSE)

    async def _leave(self, scope: tuple[str, str], caller: Caller) -> None:
        """Allow any node to continue the request when it is repeated. If this cannot be stored now, retry later."""
        node = self._db.node
        if not node:
            return
        try:
            await self._db.write(lambda conn: leave(conn, *scope, node))
        except WRITE_ERRORS:
            self._leave_later(scope, caller)

    def _leave_later(self, scope: tuple[str, str], caller: Caller) -> None:
        """After a pause, call `_leave` in the background, unless the request is repeated on this node before that."""
        if not self._db.node:
            return

        async def wait_and_leave() -> None:
            await asyncio.sleep(_LEAVE_PAUSE)
            if caller not in self._running:
                await self._leave(scope, caller)

        task = asyncio.create_task(wait_and_leave(), name="idempotency_leave")
        self._leaving.add(task)
        task.add_done_callback(self._leaving.discard)

    async def _work(
        self, claim: Claim, caller: Caller, work: Callable[[Claim], Awaitable[bytes]], seal: ResponseSeal | None
    ) -> bytes:
        try:
            body = await work(claim)
        except BaseException as error:
            if claim.releasable:
                await claim.release()
            elif claim.held and not isinstance(error, WRITE_ERRORS):
                await self._leave(claim.scope, caller)
            raise
        if claim.open_ended:
            await self._leave(claim.scope, caller)
        else:
            await claim.finish(body.decode() if seal is None else seal.seal(body, claim.record))
        return body


def _opened(response: str, fingerprint: Fingerprint, seal: ResponseSeal | None) -> bytes:
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
        "Another API key used this idempotency key, and the response contains a secret. Only that API key can replay "
        "the response, unless it was rotated since. Nothing was done. Use a new idempotency key.",
    )
