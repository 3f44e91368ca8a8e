"""The locks that requests hold while they read, decide and send, and the order of taking them."""

import asyncio
from collections import Counter
from contextvars import ContextVar
from enum import IntEnum, auto
from weakref import WeakValueDictionary

from app.core.errors import RequestError

_RETRY_AFTER = "1"
_CROWDED = "Too many payments, escrows or allowances of this wallet are already waiting. Retry shortly."


class LockScope(IntEnum):
    """Scopes of locks. To prevent deadlocks, a request only takes locks further down this list than those it holds."""

    #: An organisation's expensive jobs of one kind. Only the holder of this lock waits for the lock `JOB`.
    ORG_JOB = auto()
    #: All expensive jobs of one kind. One runs at a time.
    JOB = auto()
    #: The state of an organisation: paused or not, its roles and its settings.
    ORG_STATE = auto()
    #: An organisation's register of recipients.
    RECIPIENTS = auto()
    #: A policy with its rules and allowlist, or a budget.
    POLICY = auto()
    #: The decisions on a wallet's approvals. Approvals are numbered per vault, so they are given in turn.
    APPROVAL = auto()
    #: A wallet's policy and status.
    WALLET_STATE = auto()
    #: A wallet's session authority.
    WALLET_SESSION = auto()
    #: The creation of a wallet's escrows. An escrow's address depends on its number, so they are created in turn.
    WALLET_ESCROWS = auto()
    #: The granting of a wallet's allowances. An allowance's address depends on its number, so they are granted in turn.
    WALLET_ALLOWANCES = auto()
    #: The simulation and sending of a wallet's transactions.
    WALLET_SENDING = auto()
    #: The choice of a nonce account for a transaction that is signed offline.
    NONCES = auto()


_deepest: ContextVar[int] = ContextVar("deepest_lock", default=0)


class Locks:
    """Locks of this process by scope and name. A lock exists while a request holds it or waits for it."""

    def __init__(self) -> None:
        self._locks: WeakValueDictionary[tuple[LockScope, str], asyncio.Lock] = WeakValueDictionary()
        self._waiting: Counter[tuple[LockScope, str]] = Counter()

    def hold(self, scope: LockScope, *names: str, most_waiting: int | None = None) -> "Held":
        """Return the context that holds the locks of these names; see ``Held``."""
        return Held(self, scope, sorted(set(names)), most_waiting)

    async def acquire(self, scope: LockScope, name: str, most_waiting: int | None) -> asyncio.Lock:
        """Acquire a lock. Raises ``rate_limited`` if ``most_waiting`` requests already wait for it."""
        key = scope, name
        lock = self._locks.setdefault(key, asyncio.Lock())
        # Count waiting requests instead of testing the lock: it is free while it changes hands, but others still wait.
        if most_waiting is not None and self._waiting[key] >= most_waiting:
            raise RequestError("rate_limited", _CROWDED, headers={"Retry-After": _RETRY_AFTER})
        self._waiting[key] += 1
        try:
            await lock.acquire()
        finally:
            self._waiting[key] -= 1
            if not self._waiting[key]:
                del self._waiting[key]
        return lock

    def waiting(self) -> dict[LockScope, int]:
        """Return the number of requests that wait for locks of each scope."""
        counts = dict.fromkeys(LockScope, 0)
        for (scope, _), waiting in self._waiting.items():
            counts[scope] += waiting
        return counts


class Held:
    """A context that holds locks of one scope.

    Raises RuntimeError unless the scope comes after the scopes of all locks already held.
    """

    def __init__(self, locks: Locks, scope: LockScope, names: list[str], most_waiting: int | None) -> None:
        self._locks = locks
        self._scope = scope
        self._names = names
        self._most_waiting = most_waiting
        self._taken: list[asyncio.Lock] = []
        self._outer = 0

    async def __aenter__(self) -> None:
        self._outer = _deepest.get()
        if self._scope <= self._outer:
            raise RuntimeError(f"{self._scope.name} must be locked before {LockScope(self._outer).name}")
        try:
            for name in self._names:
                self._taken.append(await self._locks.acquire(self._scope, name, self._most_waiting))
        except BaseException:
            self._release()
            raise
        _deepest.set(self._scope)

    async def __aexit__(self, *_error: object) -> None:
        _deepest.set(self._outer)
        self._release()

    def _release(self) -> None:
        while self._taken:
            self._taken.pop().release()
