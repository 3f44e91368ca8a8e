"""Rate limits: requests a key, and failed authentications a client address.

They hold in one process and are forgotten with it.
"""

import ipaddress
import math
import time
from collections import OrderedDict, deque
from collections.abc import Callable

from limits import RateLimitItemPerMinute, RateLimitItemPerSecond
from limits.storage import MemoryStorage
from limits.strategies import MovingWindowRateLimiter

from app.core.errors import RequestError
from app.core.settings import Settings

Headers = dict[str, str]

#: Keys and addresses that are remembered; beyond it the one that was silent for longest starts anew.
_MOST = 10_000


class MovingWindows(MemoryStorage):
    """Moments of what was let through, in moving windows, of the last ``most`` who asked.

    The library's own windows never forget a name, and start a thread for every hundredth of a second.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic, most: int = _MOST) -> None:
        super().__init__()
        self._clock = clock
        self._most = most
        self._moments: OrderedDict[str, deque[float]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._moments)

    def acquire_entry(self, key: str, limit: int, expiry: int, amount: int = 1) -> bool:
        """Let ``amount`` through where the last ``expiry`` seconds hold at most ``limit`` with it."""
        now = self._clock()
        if key in self._moments:
            self._moments.move_to_end(key)
        else:
            self._moments[key] = deque()
            if len(self._moments) > self._most:
                self._moments.popitem(last=False)
        moments = self._window(key, now - expiry)
        if len(moments) + amount > limit:
            return False
        moments.extend([now] * amount)
        return True

    def get_moving_window(self, key: str, limit: int, expiry: int) -> tuple[float, int]:  # noqa: ARG002
        """Return the first moment in the window and how many it holds."""
        now = self._clock()
        moments = self._window(key, now - expiry)
        return (moments[0], len(moments)) if moments else (now, 0)

    def _window(self, key: str, after: float) -> deque[float]:
        moments = self._moments.get(key, deque())
        while moments and moments[0] <= after:
            moments.popleft()
        return moments


class RateLimits:
    """Counts requests and refuses those beyond a limit; a limit of 0 in the settings switches it off."""

    def __init__(self, settings: Settings, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._limiter = MovingWindowRateLimiter(MovingWindows(clock))
        self._failures = MovingWindowRateLimiter(MovingWindows(clock))
        self._requests = self._failed = None
        if settings.rate_limit:
            # So many at once and on average so many a second: both follow from one window.
            seconds = settings.rate_limit_burst // settings.rate_limit
            self._requests = RateLimitItemPerSecond(settings.rate_limit_burst, seconds)
            self._policy = f'"default";q={settings.rate_limit_burst};w={seconds}'
        if settings.failed_authentications:
            self._failed = RateLimitItemPerMinute(settings.failed_authentications)

    def count(self, key_id: str) -> Headers:
        """Count a request of a key; returns what to tell of the limit. Raises ``rate_limited``."""
        item = self._requests
        if item is None:
            return {}
        passed = self._limiter.hit(item, key_id)
        reset, remaining = self._limiter.get_window_stats(item, key_id)
        wait = max(1, math.ceil(reset - self._clock()))
        headers = {"RateLimit-Policy": self._policy, "RateLimit": f'"default";r={remaining};t={wait}'}
        if not passed:
            message = "The API key made too many requests."
            raise RequestError("rate_limited", message, headers={**headers, "Retry-After": str(wait)})
        return headers

    def failed(self, client: str | None) -> None:
        """Count a failed authentication of a client's address. Raises ``rate_limited``."""
        item, network = self._failed, network_of(client)
        if item is None or self._failures.hit(item, network):
            return
        reset, _ = self._failures.get_window_stats(item, network)
        wait = max(1, math.ceil(reset - self._clock()))
        message = "Too many requests without a valid API key came from this address."
        raise RequestError("rate_limited", message, headers={"Retry-After": str(wait)})


def network_of(client: str | None) -> str:
    """Return what counts as one client: an IPv4 address, or the /64 that one host has of IPv6."""
    try:
        address = ipaddress.ip_address(client or "")
    except ValueError:
        return ""
    if isinstance(address, ipaddress.IPv6Address):
        return str(address.ipv4_mapped or ipaddress.ip_network((address, 64), strict=False))
    return str(address)
