"""USDC amounts: integers of micro-USDC inside the service, decimal strings in requests and responses."""

import re

DECIMALS = 6
MICRO_PER_USDC = 1_000_000
MAX_MICRO = 2**64 - 1
"""The largest amount that fits into the program's `u64`."""

# `[0-9]`, not `\d`, which also accepts the digits of other scripts.
_AMOUNT = re.compile(r"([0-9]+)(?:\.([0-9]{1,6}))?", re.ASCII)
_MAX_LENGTH = 64


class InvalidAmountError(ValueError):
    """A text or a number is not an amount of USDC."""


def parse_usdc(text: str, *, allow_zero: bool = False) -> int:
    """Return the micro-USDC of a decimal string such as `5`, `5.00` or `0.000001`.

    Accepts up to 64 characters: ASCII digits with at most one point and at most 6 decimals. Raises
    `InvalidAmountError` for anything else, for zero unless `allow_zero`, and for 2^64 micro-USDC or more.
    """
    match = _AMOUNT.fullmatch(text) if len(text) <= _MAX_LENGTH else None
    if match is None:
        raise InvalidAmountError("must be a decimal string with at most 6 decimals, such as 12.50")
    whole, fraction = match.groups(default="")
    micro = int(whole) * MICRO_PER_USDC + int(fraction.ljust(DECIMALS, "0"))
    if micro > MAX_MICRO:
        raise InvalidAmountError("is too large")
    if micro == 0 and not allow_zero:
        raise InvalidAmountError("must be greater than zero")
    return micro


def format_usdc(micro: int) -> str:
    """Return the decimal string of an amount, with two to six decimals: `0.00`, `12.50`, `1.234567`.

    Raises `InvalidAmountError` for a negative amount.
    """
    if micro < 0:
        raise InvalidAmountError("must not be negative")
    whole, fraction = divmod(micro, MICRO_PER_USDC)
    digits = f"{fraction:0{DECIMALS}}".rstrip("0")
    return f"{whole}.{digits:0<2}"
