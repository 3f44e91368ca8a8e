"""What a ledger's windows hold, to be shown. The program alone judges by them: `policy/src/window.rs`."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

_DAY_SLOT, _HOUR_SLOT = 900, 60
"""Seconds of a slot."""
_DAY_SLOTS = 97
"""Slots that the window of a day covers: 24 hours and the one that is under way."""


def day_frees_at(paid_at: int) -> int:
    """Return the Unix second from which a payment of this second no longer counts in the 24 hours."""
    return (paid_at // _DAY_SLOT + _DAY_SLOTS) * _DAY_SLOT


@dataclass(frozen=True, slots=True)
class Consumption:
    """Micro-USDC of the last 24 hours and of the UTC month, and payments of the last hour."""

    day: int
    month: int
    hour: int

    @classmethod
    def at(cls, ledger: Mapping[str, Any], clock: int) -> Self:
        """Return what a ledger holds at a Unix second. Time never runs backwards from its last payment."""
        now = max(clock, int(ledger["last"]))
        month = int(ledger["month_spent"]) if now < ledger["month_ends_at"] else 0
        return cls(_held(ledger["day"], now // _DAY_SLOT), month, _held(ledger["hour"], now // _HOUR_SLOT))


def _held(window: Mapping[str, Any], slot: int) -> int:
    """Return the sum of the slots that a window still covers at the one with this absolute number."""
    slots, newest = window["slots"], int(window["newest"])
    first = max(slot, newest) - len(slots) + 1
    return sum(int(slots[number % len(slots)]) for number in range(max(first, 0), newest + 1))
