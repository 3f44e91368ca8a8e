"""Reads the spending windows of a ledger for display. Only the program enforces them: `policy/src/window.rs`."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

_DAY_SLOT, _HOUR_SLOT = 900, 60
"""Length of a window's slot in seconds."""
_DAY_SLOTS = 97
"""Number of slots in the 24-hour window: 96 slots of 15 minutes and the current one."""


def day_frees_at(paid_at: int) -> int:
    """Return the Unix second at which a payment made at `paid_at` leaves the 24-hour window."""
    return (paid_at // _DAY_SLOT + _DAY_SLOTS) * _DAY_SLOT


@dataclass(frozen=True, slots=True)
class Consumption:
    """The spending in the last 24 hours and in the UTC month, in micro-USDC, and the payments in the last hour.

    ``held`` is the money of outstanding allowances, which counts towards all limits of money as well. ``total`` is all
    spending since a budget's creation; for a vault, it is 0.

    The rolling windows count their oldest slot as a whole: the day is up to 15 minutes longer, and the hour one minute.
    """

    day: int
    month: int
    hour: int
    held: int
    total: int = 0

    @classmethod
    def at(cls, ledger: Mapping[str, Any], clock: int, total: int = 0) -> Self:
        """Return a ledger's spending at the Unix second `clock`, or at the ledger's last payment if that is later."""
        now = max(clock, int(ledger["last"]))
        month = int(ledger["month_spent"]) if now < ledger["month_ends_at"] else 0
        day, hour = _counted(ledger["day"], now // _DAY_SLOT), _counted(ledger["hour"], now // _HOUR_SLOT)
        return cls(day, month, hour, int(ledger["held"]), total)


def _counted(window: Mapping[str, Any], slot: int) -> int:
    """Return the total of the slots that the window still covers. `slot` is the current slot, counted since 1970."""
    slots, newest = window["slots"], int(window["newest"])
    first = max(slot, newest) - len(slots) + 1
    return sum(int(slots[number % len(slots)]) for number in range(max(first, 0), newest + 1))
