"""The chain's time. The program judges sessions, deadlines and expiries by it.

The host's clock may be hours off, so the service never uses it for times that the program judges.
"""

import time
from collections.abc import Callable

from app.chain.client import ChainClient
from app.chain.errors import ChainUnavailable, RpcError
from app.core.background import Periodic


def elapsed() -> float:
    """Return the seconds since an arbitrary start. On Linux, the time in suspension also counts."""
    boot = getattr(time, "CLOCK_BOOTTIME", None)
    return time.monotonic() if boot is None else time.clock_gettime(boot)


class ChainClock(Periodic):
    """Computes the chain's time: the time of the newest block read, plus the time elapsed since that reading.

    The time of the newest block is read every `interval` seconds. Before the first reading, `now` raises
    `ChainUnavailable`.
    """

    name = "chain_clock"
    outages = (ChainUnavailable, RpcError)

    def __init__(
        self,
        chain: ChainClient,
        *,
        stored: int | None = None,
        interval: float = 2.0,
        timer: Callable[[], float] = elapsed,
    ) -> None:
        """Create a clock that does not know the time yet; `stored` is the Unix second of the newest stored block."""
        super().__init__(interval)
        self._chain = chain
        self._stored = stored or 0
        self._timer = timer
        self._slot = -1
        #: The chain's time at the moment when the timer was 0.
        self._offset: float | None = None

    def now(self) -> int:
        """Return the chain's time as a Unix second. Raises `ChainUnavailable` before the first response of a node."""
        return self.now_ms() // 1000

    def now_ms(self) -> int:
        """Return the chain's time as a Unix millisecond. Raises `ChainUnavailable` like `now`."""
        if self._offset is None:
            raise ChainUnavailable("the node has not reported the chain's time since the service started")
        return int((self._timer() + self._offset) * 1000)

    def seen_ms(self) -> int:
        """Return the chain's time as a Unix millisecond.

        Before the first response of a node, return the newest stored block's time, or 0 if no block is stored.
        """
        return self._stored * 1000 if self._offset is None else self.now_ms()

    async def moment_ms(self) -> int:
        """Return the chain's time as a Unix millisecond. If it is still unknown, call `read` first."""
        if self._offset is None:
            await self.read()
        return self.now_ms()

    async def read(self) -> int:
        """Read the time of the node's newest block, adjust the clock and return the current Unix second.

        A response from an earlier slot than the clock has seen changes nothing. Raises the errors of `ChainClient`.
        """
        asked = self._timer()
        seen = await self._chain.clock()
        answered = self._timer()
        # One URL may lead to several nodes, and some of them may be stale.
        if seen.slot >= self._slot:
            # The chain's time is in whole seconds, so the true offset is known to one second plus the round trip.
            self._set(seen.unix_timestamp - answered, seen.unix_timestamp + 1 - asked)
            self._slot = seen.slot
        return self.now()

    def _set(self, least: float, most: float) -> None:
        known = self._offset
        if known is None or not least - 1 < known < most + 1:
            # Take the fraction of a second from the host's clock. If that clock is right, both clocks change seconds
            # together.
            known = least + (time.time() - self._timer() - least) % 1
        self._offset = min(max(known, least), most)

    async def tick(self) -> None:
        """Read the time."""
        await self.read()
