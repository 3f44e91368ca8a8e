"""Filters of accounts, for searches in the database and for single accounts in memory."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from solders.account import Account

from app.localnet import params, tokens
from app.localnet.errors import invalid_params

_MAX_FILTERS = 4
_MAX_MEMCMP_BYTES = 128


@dataclass(frozen=True, slots=True)
class AccountFilter:
    """One filter of accounts: an SQL condition with its values, and a function with the same meaning."""

    condition: str
    values: Sequence[Any]
    passes: Callable[[Account], bool]


def _filter(value: Any) -> AccountFilter:
    """Read one filter of getProgramAccounts or programSubscribe."""
    if value == "tokenAccountState":
        value = {"tokenAccountState": None}
    kind, detail = params.single_entry(value)
    params.choice("dataSize", "memcmp", "tokenAccountState")(kind)
    if kind == "dataSize":
        size = params.unsigned(maximum=2**63 - 1)(detail)
        return AccountFilter(" AND length(data) = ?", [size], lambda account: len(account.data) == size)
    if kind == "tokenAccountState":
        return AccountFilter(
            " AND token_owner IS NOT NULL", [], lambda account: tokens.read_account(account) is not None
        )
    read = params.config("Memcmp", {"offset": params.usize}, frozenset({"offset", "bytes"}))(detail)
    offset, expected = read["offset"], _memcmp_bytes(detail["bytes"], detail.get("encoding"))
    if len(expected) > _MAX_MEMCMP_BYTES:
        raise invalid_params("Invalid param: DataTooLarge")
    # SQLite counts from 1 and refuses positions beyond 64 bits. No account has 2^31 bytes, so limit the offset to that.
    return AccountFilter(
        " AND substr(data, ?, ?) = ?",
        [min(offset + 1, 2**31), len(expected), expected],
        lambda account: account.data[offset : offset + len(expected)] == expected,
    )


def _memcmp_bytes(value: Any, encoding: Any) -> bytes:
    if isinstance(value, list):
        return bytes(params.sequence(params.unsigned("u8", 255))(value))
    text = params.string(value)
    if len(text) > 2 * _MAX_MEMCMP_BYTES:
        raise invalid_params("Invalid param: DataTooLarge")
    name, decode = ("Base64", params.base64_bytes) if encoding == "base64" else ("Base58", params.base58_bytes)
    try:
        return decode(text)
    except ValueError as error:
        raise invalid_params(f"Invalid param: {name}DecodeError({error})") from None


account_filters = params.sequence(_filter, _MAX_FILTERS, "Too many filters provided; max {}")
"""Reads a list of at most four account filters."""
