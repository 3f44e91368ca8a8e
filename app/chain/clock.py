"""The chain's time, by which the program judges sessions, deadlines and expiries.

The host's clock may be hours off, so nothing that the chain decides is compared with it or computed from it.
"""

import time
from collections.abc import Callable

from app.chain.client import ChainClient
from app.chain.errors import ChainUnavailable, RpcError
from app.core.background import Periodic


def elapsed() -> float:
    """Return the seconds since some moment; on Linux they include those in which the machine was suspended."""
    boot = getattr(time, "CLOCK_BOOTTIME", None)
    return time.monotonic() if boot is None else time.clock_gettime(boot)


class ChainClock(Periodic):
    """The time of the newest block seen, plus what has passed since; reads it anew every `interval` seconds.

    Before the first reading it does not know the time, and says so.
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
        """Start without knowing the time; `stored` is the Unix second of the newest block that is stored."""
        super().__init__(interval)
        self._chain = chain
        self._stored = stored or 0
        self._timer = timer
        self._slot = -1
        #: The chain's time when the timer is 0.
        self._offset: float | None = None

    def now(self) -> int:
        """Return the Unix second. Raises `ChainUnavailable` if the node has not answered since the start."""
        return self.now_ms() // 1000

    def now_ms(self) -> int:
        """Return the Unix millisecond; raises as `now`."""
        if self._offset is None:
            raise ChainUnavailable("the node has not told the chain's time since the service started")
        return int((self._timer() + self._offset) * 1000)

    def seen_ms(self) -> int:
        """Return the Unix millisecond or, if `now_ms` would raise, that of the newest block that was stored."""
        return self._stored * 1000 if self._offset is None else self.now_ms()

    async def moment_ms(self) -> int:
        """Return the Unix millisecond, and ask the node first if it has not answered yet."""
        if self._offset is None:
            await self.read()
        return self.now_ms()

    async def read(self) -> int:
        """Ask the node for its newest block's time, and return the Unix second now."""
        asked = self._timer()
        seen = await self._chain.clock()
        answered = self._timer()
        # One address may lead to several nodes, some of them behind.
        if seen.slot >= self._slot:
            # The chain counts whole seconds, which leaves a range of one second.
            self._set(seen.unix_timestamp - answered, seen.unix_timestamp + 1 - asked)
            self._slot = seen.slot
        return self.now()

    def _set(self, least: float, most: float) -> None:
        known = self._offset
        if known is None or not least - 1 < known < most + 1:
            # Take the fraction of the host's second, so that seconds begin together where the host's clock is right.
            known = least + (time.time() - self._timer() - least) % 1
        self._offset = min(max(known, least), most)

    async def tick(self) -> None:
        """Read the time."""
        await self.read()
