"""The locks that requests hold while they read, decide and send, and the order in which they are taken."""

import asyncio
from contextvars import ContextVar
from enum import IntEnum, auto
from weakref import WeakValueDictionary


class LockScope(IntEnum):
    """What a lock guards. A request may only take locks further down than those it holds, which rules out deadlocks."""

    #: An organisation's expensive jobs of a kind: each organisation has one in the queue.
    ORG_JOB = auto()
    #: All expensive jobs of a kind: one runs at a time.
    JOB = auto()
    #: An organisation's register of recipients.
    RECIPIENTS = auto()
    #: A policy: its rules and its allowlist.
    POLICY = auto()
    #: The decision on an approval.
    APPROVAL = auto()
    #: A wallet's policy and status.
    WALLET_STATE = auto()
    #: A wallet's session authority.
    WALLET_SESSION = auto()
    #: The creation of a wallet's escrows, whose addresses follow from their number.
    WALLET_ESCROWS = auto()
    #: The simulation and sending of a wallet's transactions.
    WALLET_SENDING = auto()


_deepest: ContextVar[int] = ContextVar("deepest_lock", default=0)


class Locks:
    """Locks of this process by scope and name. A lock exists while somebody holds it or waits for it."""

    def __init__(self) -> None:
        self._locks: WeakValueDictionary[tuple[LockScope, str], asyncio.Lock] = WeakValueDictionary()

    def hold(self, scope: LockScope, *names: str) -> "Held":
        """Return the context that holds the locks of these names."""
        return Held(scope, [self._locks.setdefault((scope, name), asyncio.Lock()) for name in sorted(set(names))])


class Held:
    """A context that holds locks of one scope. Raises RuntimeError if taken out of order, which could deadlock."""

    def __init__(self, scope: LockScope, locks: list[asyncio.Lock]) -> None:
        self._scope = scope
        self._locks = locks
        self._taken: list[asyncio.Lock] = []
        self._outer = 0

    async def __aenter__(self) -> None:
        self._outer = _deepest.get()
        if self._scope <= self._outer:
            raise RuntimeError(f"{self._scope.name} must be locked before {LockScope(self._outer).name}")
        try:
            for lock in self._locks:
                await lock.acquire()
                self._taken.append(lock)
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
