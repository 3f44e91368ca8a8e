"""SPL token accounts and mints of both token programs, in the RPC's form.

Token-2022 uses the same bytes and appends the account type (byte 165) and the extensions.
"""

from collections.abc import Callable
from typing import Any

from solders.account import Account
from solders.pubkey import Pubkey
from solders.token.state import Mint, TokenAccount

TOKEN_PROGRAM = Pubkey.from_string("TokenkegQfeZyiNwAJbNbGKPFXCWuBvf9Ss623VQ5DA")
TOKEN_2022_PROGRAM = Pubkey.from_string("TokenzQdBNbLqP5VEhdkAS6EPFLC1PHnBqCXEpPxuEb")
PROGRAM_NAMES = {TOKEN_PROGRAM: "spl-token", TOKEN_2022_PROGRAM: "spl-token-2022"}

_MINT_SIZE = 82
_ACCOUNT_SIZE = 165
_MULTISIG_SIZE = 355
_TYPE_MINT = 1
_TYPE_ACCOUNT = 2
_STATES = ("uninitialized", "initialized", "frozen")


def read_mint(account: Account) -> Mint | None:
    """Return the mint in an account, or None if it holds no initialised mint."""
    data = _base_data(account, _MINT_SIZE, _TYPE_MINT)
    try:
        return Mint.from_bytes(data) if data else None
    except ValueError:
        return None


def read_account(account: Account) -> TokenAccount | None:
    """Return the token account in an account, or None if it holds no initialised token account."""
    data = _base_data(account, _ACCOUNT_SIZE, _TYPE_ACCOUNT)
    try:
        return TokenAccount.from_bytes(data) if data else None
    except ValueError:
        return None


def _base_data(account: Account, size: int, kind: int) -> bytes | None:
    """Return the part of an account that both token programs lay out alike, or None for an account of another kind."""
    owner = account.owner
    if owner not in PROGRAM_NAMES:
        return None
    data = account.data
    extended = owner == TOKEN_2022_PROGRAM and len(data) > _ACCOUNT_SIZE and len(data) != _MULTISIG_SIZE
    return data[:size] if len(data) == size or (extended and data[_ACCOUNT_SIZE] == kind) else None


def ui_amount(amount: int, places: int) -> dict[str, Any]:
    """Return a token amount in the RPC's form: the base units as text and the decimal forms."""
    text = str(amount)
    if places:
        digits = text.rjust(places + 1, "0")
        text = f"{digits[:-places]}.{digits[-places:]}".rstrip("0").rstrip(".")
    # The RPC's response contains a float for display. The float is never used in a computation here.
    return {"uiAmount": float(text), "decimals": places, "amount": str(amount), "uiAmountString": text}


def parsed(account: Account, decimals_of: Callable[[Pubkey], int | None]) -> dict[str, Any] | None:
    """Return the `jsonParsed` form of a token account or mint, or None for any other account or an unknown mint.

    `decimals_of` returns the decimals of a mint. Extensions of Token-2022 are not listed.
    """
    if mint := read_mint(account):
        kind, info = "mint", _mint_info(mint)
    elif (token := read_account(account)) and (places := decimals_of(token.mint)) is not None:
        kind, info = "account", _account_info(token, places)
    else:
        return None
    return {
        "program": PROGRAM_NAMES[account.owner],
        "parsed": {"type": kind, "info": info},
        "space": len(account.data),
    }


def _mint_info(mint: Mint) -> dict[str, Any]:
    return {
        "mintAuthority": mint.mint_authority and str(mint.mint_authority),
        "supply": str(mint.supply),
        "decimals": mint.decimals,
        "isInitialized": True,
        "freezeAuthority": mint.freeze_authority and str(mint.freeze_authority),
    }


def _account_info(token: TokenAccount, places: int) -> dict[str, Any]:
    info: dict[str, Any] = {
        "mint": str(token.mint),
        "owner": str(token.owner),
        "tokenAmount": ui_amount(token.amount, places),
        "state": _STATES[int(token.state)],
        "isNative": token.is_native is not None,
    }
    if token.is_native is not None:
        info["rentExemptReserve"] = ui_amount(token.is_native, places)
    if token.delegate is not None:
        info["delegate"] = str(token.delegate)
        info["delegatedAmount"] = ui_amount(token.delegated_amount, places)
    if token.close_authority is not None:
        info["closeAuthority"] = str(token.close_authority)
    return info
