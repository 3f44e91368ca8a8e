"""Pauses between attempts at a job, which grow with each failed attempt."""

from collections.abc import Callable, Collection, Hashable

#: Seconds until the second attempt, and the longest pause. Each pause is twice the previous one.
_FIRST, _LONGEST = 5.0, 300.0


class Backoff:
    """Decides when each job may be tried again.

    This is kept in memory only, so after a restart every job may be tried immediately.
    """

    def __init__(self, timer: Callable[[], float]) -> None:
        """`timer` returns seconds and never runs backwards."""
        self._timer = timer
        self._attempts: dict[Hashable, tuple[int, float]] = {}

    def is_due(self, key: Hashable) -> bool:
        """Return True if `key` was never tried, or the pause after its last attempt is over."""
        _, due = self._attempts.get(key, (0, 0.0))
        return due <= self._timer()

    def record(self, key: Hashable) -> int:
        """Record an attempt at `key` and return the number of its attempts so far."""
        count = self._attempts.get(key, (0, 0.0))[0] + 1
        # The exponent is bounded, because a float overflows.
        pause = min(_LONGEST, _FIRST * 2.0 ** min(count - 1, 10))
        self._attempts[key] = (count, self._timer() + pause)
        return count

    def take_back(self, key: Hashable) -> None:
        """Do not count the last attempt at `key`, because it failed for a reason outside the job.

        Retry the job in 5 seconds.
        """
        count = self._attempts[key][0] - 1
        self._attempts[key] = (count, self._timer() + _FIRST)

    def keep_only(self, keys: Collection[Hashable]) -> None:
        """Forget the attempts at all keys other than `keys`."""
        self._attempts = {key: attempt for key, attempt in self._attempts.items() if key in keys}
