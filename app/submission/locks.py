"""The locks that requests hold while they read, decide and send, and the order in which they are taken."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
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

    @asynccontextmanager
    async def hold(self, scope: LockScope, *names: str) -> AsyncIterator[None]:
        """Hold the locks of these names. Raises RuntimeError if taken out of order, which could deadlock."""
        deepest = _deepest.get()
        if scope <= deepest:
            raise RuntimeError(f"{scope.name} must be locked before {LockScope(deepest).name}")
        async with AsyncExitStack() as stack:
            for name in sorted(set(names)):
                lock = self._locks.get((scope, name))
                if lock is None:
                    lock = self._locks[scope, name] = asyncio.Lock()
                await stack.enter_async_context(lock)
            _deepest.set(scope)
            try:
                yield
            finally:
                _deepest.set(deepest)
