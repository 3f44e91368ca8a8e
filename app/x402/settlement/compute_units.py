"""Compute unit limits of settlements, by the memo that the resource requires."""

MAX_UNITS = 400_000
"""Highest compute unit limit that facilitators accept."""
#: Upper bound of the units that a settlement takes without the characters of its memo.
_WITHOUT_MEMO = 20_000
#: Upper bounds of the units that the memo program takes to log a character, each with the end of its code points.
#: Scripts other than Latin are costly, because the program searches tables for characters that it must escape.
_PER_CHARACTER = (
    (0x20, 850),
    (0x7F, 370),
    (0x800, 2_000),
    (0x2000, 9_500),
    (0xA000, 12_000),
    (0x10000, 16_000),
    (0x20000, 20_000),
    (0x110000, 2_000),
)


def units_with(memo: str) -> int:
    """Return an upper bound of the compute units that a settlement with this memo takes."""
    return _WITHOUT_MEMO + sum(next(units for end, units in _PER_CHARACTER if ord(one) < end) for one in memo)
