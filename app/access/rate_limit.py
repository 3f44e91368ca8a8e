"""Rate limits: requests per API key or person; failed authentications, started sign-ins and searches per address.

Buckets are kept in memory only. With several nodes, each node grants its share of a limit.
"""

import ipaddress
import math
import time
from collections.abc import Callable

from app.core.errors import RequestError
from app.core.recent import Recent
from app.core.settings import Settings

#: Maximum number of buckets kept in memory. Above it, the least recently used bucket is forgotten.
_MAX_NAMES = 10_000
#: Tolerance for the rounding of the amounts in a bucket.
_ROUNDING = 1e-6
#: An address may start this many times more sign-ins than its limit of failed authentications, and send as many
#: searches, because many people can share an address.
_ANONYMOUS = 5


class Buckets:
    """Buckets by name, such as an API key's id. Each holds up to ``limit`` and refills evenly within ``seconds``.

    ``limit`` is the limit of all nodes together. A name without a bucket in memory starts with a full bucket.
    """

    def __init__(
        self, limit: int, seconds: int, *, clock: Callable[[], float] = time.monotonic, max_names: int = _MAX_NAMES
    ) -> None:
        self.limit = limit
        self.seconds = seconds
        self._clock = clock
        #: The amount taken from a bucket and not refilled yet, and the time when the amount was computed.
        self._taken: Recent[tuple[float, float]] = Recent(max_names)

    def __len__(self) -> int:
        return len(self._taken)

    def take(self, name: str, limit: int, weight: int = 1, *, spent: bool = False) -> tuple[bool, int, int, int]:
        """Take ``weight`` from a bucket if the bucket has it. A ``weight`` above the bucket's size takes a full bucket.

        With ``spent``, always take ``weight``, at most down to an empty bucket.

        Return True if ``weight`` was taken, the rest of the bucket, the seconds until the bucket is full, and the
        seconds until it has ``weight`` again. ``limit`` is this node's share of the limit.
        """
        now, rate = self._clock(), limit / self.seconds
        taken, then = self._taken.get(name) or (0.0, now)
        # If another node has started since the bucket was last used, this node's bucket is smaller now.
        taken, weight = max(0.0, min(taken, limit) - (now - then) * rate), min(weight, limit)
        passes = spent or taken + weight <= limit + _ROUNDING
        taken = min(taken + weight, limit) if passes else taken
        self._taken.put(name, (taken, now))
        full, again = taken / rate, (taken + weight - limit) / rate
        return passes, int(limit - taken + _ROUNDING), _seconds(full), _seconds(again)


def _seconds(exact: float) -> int:
    """Return whole seconds, rounded up, and at least 1."""
    return max(1, math.ceil(exact - _ROUNDING))


class Peers:
    """The number of living nodes that share the requests, including this one."""

    def __init__(self) -> None:
        self.count = 1

    def share(self, limit: int) -> int:
        """Return this node's share of a limit, at least 1."""
        return max(1, limit // max(1, self.count))


class RateLimits:
    """Counts requests, failed authentications, started sign-ins and searches, and refuses any beyond a limit.

    A limit that is 0 in the settings is off.
    """

    def __init__(
        self, settings: Settings, peers: Peers | None = None, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._peers = peers or Peers()
        self._requests = self._failures = self._begun = self._searches = None
        if settings.rate_limit:
            seconds = settings.rate_limit_burst // settings.rate_limit
            self._requests = Buckets(settings.rate_limit_burst, seconds, clock=clock)
        if settings.failed_authentications:
            self._failures = Buckets(settings.failed_authentications, 60, clock=clock)
            self._begun = Buckets(_ANONYMOUS * settings.failed_authentications, 60, clock=clock)
            self._searches = Buckets(_ANONYMOUS * settings.failed_authentications, 60, clock=clock)

    def count(self, key_id: str, weight: int = 1, *, brake: bool = False, spent: bool = False) -> dict[str, str]:
        """Count a request of an API key or person. Return the response headers about the limit, or none if it is off.

        ``weight`` is the cost of the request; a payment costs 1. Freezes, pauses and withdrawals of transactions
        (``brake``) have a bucket of their own, of the same size. With ``spent``, the cost is counted after the work,
        and the request is never refused.

        Raises ``rate_limited`` above the limit.
        """
        buckets = self._requests
        if buckets is None:
            return {}
        limit = self._peers.share(buckets.limit)
        passes, rest, full, again = buckets.take(f"{key_id} brake" if brake else key_id, limit, weight, spent=spent)
        name = "brake" if brake else "default"
        headers = {
            "RateLimit-Policy": f'"{name}";q={limit};w={buckets.seconds}',
            "RateLimit": f'"{name}";r={rest};t={full}',
        }
        if not passes:
            raise _rate_limited("The API key made too many requests.", again, headers)
        return headers

    def failed(self, client: str | None) -> None:
        """Count a failed authentication from a client's address. Raises ``rate_limited`` above the limit."""
        self._admit(self._failures, client, "Too many failed authentications from this address. Retry later.")

    def begun(self, client: str | None) -> None:
        """Count a sign-in started from a client's address. Raises ``rate_limited`` above the limit."""
        self._admit(self._begun, client, "Too many sign-ins were started from this address. Try again later.")

    def searched(self, client: str | None) -> None:
        """Count a search from a client's address. Raises ``rate_limited`` above the limit."""
        self._admit(self._searches, client, "Too many searches came from this address. Search again later.")

    def _admit(self, buckets: Buckets | None, client: str | None, refusal: str) -> None:
        if buckets is None:
            return
        passes, _, _, again = buckets.take(network_of(client), self._peers.share(buckets.limit))
        if not passes:
            raise _rate_limited(refusal, again, {})


def _rate_limited(message: str, wait: int, headers: dict[str, str]) -> RequestError:
    return RequestError("rate_limited", message, headers={**headers, "Retry-After": str(wait)})


def network_of(client: str | None) -> str:
    """Return the network that counts as one client: an IPv4 address, or an IPv6 /64, which one host may own.

    The network is an empty text if the client's address is unknown.
    """
    try:
        address = ipaddress.ip_address(client or "")
    except ValueError:
        return ""
    if isinstance(address, ipaddress.IPv6Address):
        return str(address.ipv4_mapped or ipaddress.ip_network((address, 64), strict=False))
    return str(address)
