"""Notifies waiting requests of this node about rows applied by another node."""

import time
from collections.abc import Awaitable, Callable, Sequence
from typing import ClassVar

from app.chain.errors import ChainUnavailable, RpcError
from app.core.background import Periodic
from app.core.recent import Recent
from app.projection.projector import Projector

_INTERVAL = 0.15
"""Seconds between two looks at the database for applied rows while a request waits for them."""
_REMEMBERED = 10_000
"""Number of announced transactions that are remembered although no request waits for them yet."""
_ALONE_AFTER = 1.0
"""Seconds that a request waits before its own node applies the chain's events, because perhaps no other node does."""
_SILENCE = 0.3
"""Seconds that replace `_ALONE_AFTER` if no node has announced rows since the wait began: the node that applies rows
may be dead.
"""


class RemoteUpdates(Periodic):
    """Notifies this process's requests about rows that another node announces as applied.

    An announcement may be lost. This process therefore looks for the rows in the database every `_INTERVAL` seconds
    while a request waits. The node that applies rows may be dead. If the rows are late, this process therefore applies
    the chain's events itself.
    """

    name = "arrivals"
    outages: ClassVar[tuple[type[Exception], ...]] = (ChainUnavailable, RpcError)

    def __init__(self, projector: Projector, catch_up: Callable[[], Awaitable[object]]) -> None:
        """`catch_up` applies everything on the chain to the read models."""
        super().__init__(_INTERVAL)
        self._projector = projector
        self._catch_up = catch_up
        self._since: dict[str, float] = {}
        self._heard = 0.0
        self._named: Recent[None] = Recent(_REMEMBERED)
        self.hears: Callable[[], bool] = lambda: False
        """Returns True if this process receives the announcements of other nodes."""
        projector.wanted = self._look_at_once

    def hear(self, applied: Sequence[str] = ()) -> None:
        """Notify the requests that wait for the transactions that a node announces as applied.

        Each transaction is given as HASH:SLOT. If none is given, look for all awaited rows in the database. Call this
        from the event loop.
        """
        if self._projector.applies:
            return
        self._heard = time.monotonic()
        for one in applied:
            message, _, slot = one.partition(":")
            if slot.isdecimal() and not self._projector.applied_remotely(message, int(slot)):
                self._named.put(message, None)
        if not applied:
            self.wake()

    def _look_at_once(self, message: str) -> None:
        """Look at once for the rows that a request begins to wait for, unless a node will announce them.

        Rows that were announced earlier are looked up, too, because they may have been rolled back since.
        """
        if message in self._named or not self.hears():
            self.wake()

    async def tick(self) -> None:
        """Look once for the awaited rows among the applied ones.

        If a request waits too long, apply the chain's events here.
        """
        if self._projector.applies:
            return  # This node's projector notifies the waiters itself.
        waiting = await self._projector.look()
        now = time.monotonic()
        self._since = {name: self._since.get(name, now) for name in waiting}
        if any(now - since >= (_SILENCE if self._heard < since else _ALONE_AFTER) for since in self._since.values()):
            self._since = dict.fromkeys(waiting, now)
            await self._catch_up()
