"""When something that was tried may be tried again."""

from collections.abc import Callable, Collection, Hashable

FIRST, LONGEST = 5.0, 300.0
"""Seconds until the second attempt, and the most between two; each pause is twice the one before."""


class Backoff:
    """Remembers attempts, in memory only: after a restart everything may be tried at once."""

    def __init__(self, timer: Callable[[], float]) -> None:
        """`timer` gives seconds and never runs backwards."""
        self._timer = timer
        self._attempts: dict[Hashable, tuple[int, float]] = {}

    def may(self, key: Hashable) -> bool:
        """Whether `key` was never tried, or long enough ago."""
        attempt = self._attempts.get(key)
        return attempt is None or attempt[1] <= self._timer()

    def tried(self, key: Hashable) -> int:
        """Note an attempt; returns how many there were."""
        count = self._attempts.get(key, (0, 0.0))[0] + 1
        # The exponent is bounded because a float is.
        pause = min(LONGEST, FIRST * 2.0 ** min(count - 1, 10))
        self._attempts[key] = (count, self._timer() + pause)
        return count

    def undecided(self, key: Hashable) -> None:
        """Take back that the last attempt counts: its outcome says nothing about `key`. It is tried again soon."""
        count = self._attempts[key][0] - 1
        self._attempts[key] = (count, self._timer() + FIRST)

    def forget_others(self, keys: Collection[Hashable]) -> None:
        """Forget everything but `keys`."""
        self._attempts = {key: attempt for key, attempt in self._attempts.items() if key in keys}
