"""Notifies those who wait for rows here of what another node has applied."""

import time
from collections.abc import Awaitable, Callable, Sequence
from typing import ClassVar

from app.chain.errors import ChainUnavailable, RpcError
from app.core.background import Periodic
from app.core.recent import Recent
from app.projection.projector import Projector

_INTERVAL = 0.15
"""Seconds between two looks while somebody waits."""
_REMEMBERED = 10_000
"""Transactions that nodes have named for which nobody may wait yet."""
_ALONE_AFTER = 1.0
"""Seconds after which the waiting node brings the events into the read models itself: perhaps no other does."""
_SILENCE = 0.3
"""The same if no node has said meanwhile that it applied rows, as after the death of the one that does."""


class RemoteUpdates(Periodic):
    """Notifies requests of this process of the rows that another node says it applied, and looks for them regularly.

    What a node says may be lost, or the node that applies rows may be dead.
    """

    name = "arrivals"
    outages: ClassVar[tuple[type[Exception], ...]] = (ChainUnavailable, RpcError)

    def __init__(self, projector: Projector, catch_up: Callable[[], Awaitable[object]]) -> None:
        """`catch_up` brings everything on the chain into the read models."""
        super().__init__(_INTERVAL)
        self._projector = projector
        self._catch_up = catch_up
        self._since: dict[str, float] = {}
        self._heard = 0.0
        self._named: Recent[None] = Recent(_REMEMBERED)
        self.hears: Callable[[], bool] = lambda: False
        """Whether this process hears what other nodes say."""
        projector.wanted = self._look_at_once

    def hear(self, applied: Sequence[str] = ()) -> None:
        """Notify those who wait for transactions that a node says it applied, each given as HASH:SLOT.

        Without any, look for what is waited for. Call it from the event loop.
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
        """Look for what somebody has begun to wait for, unless a node will name it.

        What was named before is looked for: it may have been rolled back since.
        """
        if message in self._named or not self.hears():
            self.wake()

    async def tick(self) -> None:
        """Look once for what is waited for."""
        if self._projector.applies:
            return  # It notifies by itself.
        waiting = await self._projector.look()
        now = time.monotonic()
        self._since = {name: self._since.get(name, now) for name in waiting}
        if any(now - since >= (_SILENCE if self._heard < since else _ALONE_AFTER) for since in self._since.values()):
            self._since = dict.fromkeys(waiting, now)
            await self._catch_up()
