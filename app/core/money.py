"""Amounts: integers of micro-USDC or lamports inside the service, decimal strings in requests and responses."""

import re

DECIMALS, SOL_DECIMALS = 6, 9
MICRO_PER_USDC = 1_000_000
MAX_MICRO = 2**64 - 1
"""The largest amount that fits into the program's `u64`."""

# Uses `[0-9]`, because `\d` also matches the digits of other scripts.
_AMOUNT = re.compile(r"([0-9]+)(?:\.([0-9]+))?", re.ASCII)
_MAX_LENGTH = 64


class InvalidAmountError(ValueError):
    """A text or a number is not an amount of USDC or SOL."""


def parse_usdc(text: str, *, allow_zero: bool = False) -> int:
    """Return the micro-USDC of a decimal string such as `5`, `5.00` or `0.000001`.

    Accepts up to 64 characters: ASCII digits with at most one point and at most 6 decimals. Raises
    `InvalidAmountError` for anything else, for zero unless `allow_zero`, and for 2^64 micro-USDC or more.
    """
    return _parse(text, DECIMALS, allow_zero=allow_zero)


def parse_sol(text: str) -> int:
    """Return the lamports of a decimal string with at most 9 decimals, zero included; see `parse_usdc`."""
    return _parse(text, SOL_DECIMALS, allow_zero=True)


def format_usdc(micro: int) -> str:
    """Return the decimal string of an amount, with two to six decimals: `0.00`, `12.50`, `1.234567`.

    Raises `InvalidAmountError` for a negative amount.
    """
    return _format(micro, DECIMALS)


def format_sol(lamports: int) -> str:
    """Return the decimal string of lamports, with two to nine decimals.

    Raises `InvalidAmountError` for a negative amount.
    """
    return _format(lamports, SOL_DECIMALS)


def with_separators(text: str) -> str:
    """Return the decimal string of an amount for people, with thousands separators and at least two decimals."""
    whole, _, fraction = text.partition(".")
    return f"{int(whole):,}.{fraction or '00'}"


def _parse(text: str, decimals: int, *, allow_zero: bool) -> int:
    match = _AMOUNT.fullmatch(text) if len(text) <= _MAX_LENGTH else None
    whole, fraction = match.groups(default="") if match else ("", "")
    if match is None or len(fraction) > decimals:
        raise InvalidAmountError(f"must be a decimal string with at most {decimals} decimals, such as 12.50")
    amount = int(whole + fraction.ljust(decimals, "0"))
    if amount > MAX_MICRO:
        raise InvalidAmountError("is too large")
    if amount == 0 and not allow_zero:
        raise InvalidAmountError("must be greater than zero")
    return amount


def _format(amount: int, decimals: int) -> str:
    if amount < 0:
        raise InvalidAmountError("must not be negative")
    whole, fraction = divmod(amount, 10**decimals)
    digits = f"{fraction:0{decimals}}".rstrip("0")
    return f"{whole}.{digits:0<2}"
