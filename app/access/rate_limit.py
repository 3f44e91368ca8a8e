"""Rate limits: requests per API key or person, failed authentications and started sign-ins per client address.

Counts are kept in memory only. With several nodes, each node grants its share of a limit.
"""

import ipaddress
import math
import time
from collections import deque
from collections.abc import Callable

from app.core.errors import RequestError
from app.core.recent import Recent
from app.core.settings import Settings

#: Maximum number of names that a window remembers. Beyond that, it forgets the name that has been silent for longest.
_MAX_NAMES = 10_000
#: The number of sign-ins that an address may start is this many times its limit of failed authentications, because many
#: people can share an address.
_BEGUN = 5


class SlidingWindow:
    """Limits how often each name, such as the id of an API key, passes in any period of ``seconds`` seconds.

    ``limit`` is the limit of all nodes together. A name that the window has forgotten starts at zero again.
    """

    def __init__(
        self, limit: int, seconds: int, *, clock: Callable[[], float] = time.monotonic, max_names: int = _MAX_NAMES
    ) -> None:
        self.limit = limit
        self.seconds = seconds
        self._clock = clock
        self._times: Recent[deque[float]] = Recent(max_names)

    def __len__(self) -> int:
        return len(self._times)

    def hit(self, name: str, limit: int) -> tuple[bool, int, int]:
        """Let a name pass, if its limit allows, and count the pass.

        Return True if the name passed, the number of passes left, and the seconds until its oldest counted pass leaves
        the period. ``limit`` is this node's share of the limit.
        """
        now = self._clock()
        times = self._times.get(name)
        if times is None:
            times = deque()
        self._times.put(name, times)
        while times and times[0] <= now - self.seconds:
            times.popleft()
        passes = len(times) < limit
        if passes:
            times.append(now)
        return passes, max(0, limit - len(times)), max(1, math.ceil(times[0] + self.seconds - now))


class Peers:
    """The number of living nodes that share the requests, including this one."""

    def __init__(self) -> None:
        self.count = 1

    def share(self, limit: int) -> int:
        """Return this node's share of a limit, at least 1."""
        return max(1, limit // max(1, self.count))


class RateLimits:
    """Counts requests, failed authentications and started sign-ins, and refuses any beyond a limit.

    A limit that is 0 in the settings is off.
    """

    def __init__(
        self, settings: Settings, peers: Peers | None = None, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._peers = peers or Peers()
        self._requests = self._failures = self._begun = None
        if settings.rate_limit:
            # One window sets both the burst and the average rate.
            seconds = settings.rate_limit_burst // settings.rate_limit
            self._requests = SlidingWindow(settings.rate_limit_burst, seconds, clock=clock)
        if settings.failed_authentications:
            self._failures = SlidingWindow(settings.failed_authentications, 60, clock=clock)
            self._begun = SlidingWindow(_BEGUN * settings.failed_authentications, 60, clock=clock)

    def count(self, key_id: str, *, brake: bool = False) -> dict[str, str]:
        """Count a request of an API key or person. Return the response headers about the limit; none if it is off.

        Raises ``rate_limited`` above the limit.

        Requests that may engage a ``brake`` are counted separately, against a limit of the same size.
        """
        window = self._requests
        if window is None:
            return {}
        limit = self._peers.share(window.limit)
        passes, remaining, wait = window.hit(f"{key_id} brake" if brake else key_id, limit)
        name = "brake" if brake else "default"
        headers = {
            "RateLimit-Policy": f'"{name}";q={limit};w={window.seconds}',
            "RateLimit": f'"{name}";r={remaining};t={wait}',
        }
        if not passes:
            raise _rate_limited("The API key made too many requests.", wait, headers)
        return headers

    def failed(self, client: str | None) -> None:
        """Count a failed authentication from a client's address. Raises ``rate_limited`` above the limit."""
        self._admit(self._failures, client, "Too many failed authentications from this address. Retry in a minute.")

    def begun(self, client: str | None) -> None:
        """Count a sign-in started from a client's address. Raises ``rate_limited`` above the limit."""
        self._admit(self._begun, client, "Too many sign-ins were started from this address. Try again in a minute.")

    def _admit(self, window: SlidingWindow | None, client: str | None, refusal: str) -> None:
        if window is None:
            return
        passes, _, wait = window.hit(network_of(client), self._peers.share(window.limit))
        if not passes:
            raise _rate_limited(refusal, wait, {})


def _rate_limited(message: str, wait: int, headers: dict[str, str]) -> RequestError:
    return RequestError("rate_limited", message, headers={**headers, "Retry-After": str(wait)})


def network_of(client: str | None) -> str:
    """Return the network that counts as one client: an IPv4 address, or an IPv6 /64, because one host may own it.

    The network is an empty text if the client's address is unknown.
    """
    try:
        address = ipaddress.ip_address(client or "")
    except ValueError:
        return ""
    if isinstance(address, ipaddress.IPv6Address):
        return str(address.ipv4_mapped or ipaddress.ip_network((address, 64), strict=False))
    return str(address)
