"""What is shown of a ledger is what the program's windows hold, at every boundary."""

from typing import Any

import pytest

from app.chain.consumption import Consumption, day_frees_at

_START = 1_769_904_000
"""2026-02-01T00:00:00Z, which begins a slot of either window."""


def _ledger(*payments: tuple[int, int], month_ends_at: int = _START + 28 * 86_400) -> dict[str, Any]:
    """Return a ledger with these payments, each a second after the start and an amount, in their order."""
    last = _START + payments[-1][0]
    windows = {}
    for name, length, seconds in (("day", 97, 900), ("hour", 61, 60)):
        slots = [0] * length
        for second, amount in payments:
            slot = (_START + second) // seconds
            if slot > last // seconds - length:
                slots[slot % length] += amount if name == "day" else 1
        windows[name] = {"newest": last // seconds, "total": sum(slots), "slots": slots}
    spent = sum(amount for _, amount in payments)
    return {"last": last, "month_ends_at": month_ends_at, "month_spent": spent, "held": 0, **windows}


@pytest.mark.parametrize(
    ("second", "day", "hour"),
    [
        (0, 12, 2),
        # A time before the last payment counts as that payment's.
        (-(10**6), 12, 2),
        # The hour's slots leave when all of them are older than an hour, the day's when older than 24.
        (59 + 3_600, 12, 2),
        (60 + 3_600, 12, 1),
        (120 + 3_600, 12, 0),
        (899 + 86_400, 12, 0),
        (900 + 86_400, 0, 0),
        (10**7, 0, 0),
    ],
)
def test_slots_leave_when_all_of_them_is_older_than_the_window(second: int, day: int, hour: int) -> None:
    found = Consumption.at(_ledger((0, 5), (60, 7)), _START + second)

    assert (found.day, found.hour) == (day, hour)


def test_month_ends_where_the_ledger_says() -> None:
    ledger = _ledger((0, 5), month_ends_at=_START + 100)

    assert [Consumption.at(ledger, _START + second).month for second in (99, 100)] == [5, 0]


@pytest.mark.parametrize("paid", [0, 1, 899, 900, 86_399])
def test_payment_leaves_the_day_when_it_is_said_to(paid: int) -> None:
    ledger, frees = _ledger((paid, 5)), day_frees_at(_START + paid)

    assert [Consumption.at(ledger, clock).day for clock in (frees - 1, frees)] == [5, 0]
