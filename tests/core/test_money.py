"""Amounts: decimal strings at the edge, integers inside."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.core.money import MAX_MICRO, InvalidAmountError, format_usdc, parse_usdc


@pytest.mark.proves("Conventions: Money")
@pytest.mark.parametrize(
    ("text", "micro"),
    [
        ("5", 5_000_000),
        ("5.00", 5_000_000),
        ("0.000001", 1),
        ("1.234567", 1_234_567),
        ("007.5", 7_500_000),
        ("18446744073709.551615", MAX_MICRO),
    ],
)
def test_decimal_strings_are_read_exactly(text: str, micro: int) -> None:
    assert parse_usdc(text) == micro


@pytest.mark.proves("Conventions: Money")
@pytest.mark.parametrize(
    "text",
    [
        "",
        ".5",
        "5.",
        "1.2345678",
        "-1",
        "+1",
        "1e3",
        "NaN",
        "Infinity",
        " 1",
        "1\n",
        "1_000",
        "1,5",
        "0x10",
        "\u0663",
        "\uff11",
        "1.0.0",
        "18446744073709.551616",
        "9" * 60,
        "9" * 100_000,
    ],
)
def test_anything_else_is_refused(text: str) -> None:
    with pytest.raises(InvalidAmountError):
        parse_usdc(text)


def test_zero_needs_permission() -> None:
    with pytest.raises(InvalidAmountError):
        parse_usdc("0.00")
    assert parse_usdc("0.00", allow_zero=True) == 0


@pytest.mark.proves("Conventions: Money")
@pytest.mark.parametrize(
    ("micro", "text"), [(0, "0.00"), (1, "0.000001"), (12_500_000, "12.50"), (1_234_567, "1.234567"), (10, "0.00001")]
)
def test_amounts_are_shown_with_two_to_six_decimals(micro: int, text: str) -> None:
    assert format_usdc(micro) == text


@given(st.integers(min_value=0, max_value=MAX_MICRO))
def test_what_is_shown_reads_back_as_the_same_amount(micro: int) -> None:
    assert parse_usdc(format_usdc(micro), allow_zero=True) == micro
