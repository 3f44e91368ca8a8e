"""Reading SPL token accounts and mints, of both token programs, by their byte layout.

Layout: spl-token's `state.rs`; with Token-2022 the same bytes come first, then from byte 165 on the account type and
the extensions.
"""

from typing import Any

from solders.account import Account
from solders.pubkey import Pubkey

TOKEN_PROGRAM = Pubkey.from_string("TokenkegQfeZyiNwAJbNbGKPFXCWuBvf9Ss623VQ5DA")
TOKEN_2022_PROGRAM = Pubkey.from_string("TokenzQdBNbLqP5VEhdkAS6EPFLC1PHnBqCXEpPxuEb")
PROGRAM_NAMES = {TOKEN_PROGRAM: "spl-token", TOKEN_2022_PROGRAM: "spl-token-2022"}

MINT_SIZE = 82
ACCOUNT_SIZE = 165

_MULTISIG_SIZE = 355
_TYPE_MINT = 1
_TYPE_ACCOUNT = 2
_STATES = ("uninitialized", "initialized", "frozen")


def is_token_account(account: Account) -> bool:
    """Tell whether this is an initialised token account."""
    if account.owner not in PROGRAM_NAMES:
        return False
    data = account.data
    return _has_type(account, data, ACCOUNT_SIZE, _TYPE_ACCOUNT) and data[108] in {1, 2}


def is_mint(account: Account) -> bool:
    """Tell whether this is an initialised mint."""
    if account.owner not in PROGRAM_NAMES:
        return False
    data = account.data
    return _has_type(account, data, MINT_SIZE, _TYPE_MINT) and data[45] == 1


def _has_type(account: Account, data: bytes, size: int, kind: int) -> bool:
    if len(data) == size:
        return True
    extended = account.owner == TOKEN_2022_PROGRAM and len(data) > ACCOUNT_SIZE and len(data) != _MULTISIG_SIZE
    return extended and data[ACCOUNT_SIZE] == kind


def holding(account: Account) -> tuple[Pubkey, Pubkey, int]:
    """Return mint, wallet and amount in base units of a token account."""
    data = account.data
    return Pubkey(data[:32]), Pubkey(data[32:64]), int.from_bytes(data[64:72], "little")


def wallet_of(account: Account) -> bytes | None:
    """Return the address of the wallet a token account belongs to; None for any other account."""
    return account.data[32:64] if is_token_account(account) else None


def supply(mint: Account) -> int:
    """Return a mint's supply in base units."""
    return int.from_bytes(mint.data[36:44], "little")


def decimals(mint: Account) -> int:
    """Return a mint's number of decimals."""
    return mint.data[44]


def ui_amount(amount: int, places: int) -> dict[str, Any]:
    """Return the RPC's token amount: base units as text beside the decimal forms."""
    if places == 0:
        text = str(amount)
    else:
        digits = str(amount).rjust(places + 1, "0")
        text = f"{digits[:-places]}.{digits[-places:]}".rstrip("0").rstrip(".")
    # The float is part of the RPC's answer and meant for display; nothing here computes with it.
    return {"uiAmount": float(text), "decimals": places, "amount": str(amount), "uiAmountString": text}


def mint_data(authority: Pubkey, places: int) -> bytes:
    """Return the data of an initialised mint without supply and freeze authority."""
    tag = (1).to_bytes(4, "little")
    return tag + bytes(authority) + bytes(8) + bytes([places, 1]) + bytes(36)


def parsed_account(account: Account, places: int | None) -> dict[str, Any] | None:
    """Return the `jsonParsed` form of a token account or mint, None for anything else.

    `places`: decimals of the mint behind a token account. Extensions of Token-2022 are not listed.
    """
    if is_mint(account):
        kind, info = "mint", _mint_info(account)
    elif places is not None and is_token_account(account):
        kind, info = "account", _account_info(account, places)
    else:
        return None
    parsed = {"type": kind, "info": info}
    return {"program": PROGRAM_NAMES[account.owner], "parsed": parsed, "space": len(account.data)}


def _mint_info(account: Account) -> dict[str, Any]:
    data = account.data
    return {
        "mintAuthority": _optional_key(data, 0),
        "supply": str(supply(account)),
        "decimals": decimals(account),
        "isInitialized": True,
        "freezeAuthority": _optional_key(data, 46),
    }


def _account_info(account: Account, places: int) -> dict[str, Any]:
    data = account.data
    mint, owner, amount = holding(account)
    info: dict[str, Any] = {
        "mint": str(mint),
        "owner": str(owner),
        "tokenAmount": ui_amount(amount, places),
        "state": _STATES[data[108]],
        "isNative": data[109] == 1,
    }
    if data[109] == 1:
        info["rentExemptReserve"] = ui_amount(int.from_bytes(data[113:121], "little"), places)
    if (delegate := _optional_key(data, 72)) is not None:
        info["delegate"] = delegate
        info["delegatedAmount"] = ui_amount(int.from_bytes(data[121:129], "little"), places)
    if (close_authority := _optional_key(data, 129)) is not None:
        info["closeAuthority"] = close_authority
    return info


def _optional_key(data: bytes, offset: int) -> str | None:
    return str(Pubkey(data[offset + 4 : offset + 36])) if data[offset] == 1 else None
