"""Builds mints and token accounts as bytes, so that a test can set them to any state.

Layouts: `state.rs` of spl-token. Token-2022 appends the type of the account at byte 165, then its extensions. An
extension consists of a type and a length, each of 16 bits, and its value.
"""

import struct

from solders.pubkey import Pubkey

from app.chain.addresses import TOKEN_PROGRAM
from tests.support.vm import Vm

DECIMALS = 6
USDC = 10**DECIMALS
"""Micro-USDC in one USDC."""
SUPPLY = 2**64 - 1
ACCOUNT_SIZE = 165
_TYPE_MINT = b"\x01"
_TYPE_ACCOUNT = b"\x02"


def mint_data(*, initialized: bool = True, freeze_authority: Pubkey | None = None) -> bytes:
    """Return a mint without a mint authority."""
    freeze = bytes(36) if freeze_authority is None else struct.pack("<I32s", 1, bytes(freeze_authority))
    return bytes(36) + struct.pack("<QBB", SUPPLY, DECIMALS, initialized) + freeze


def extended_mint_data(*extensions: tuple[int, int]) -> bytes:
    """Return a Token-2022 mint with extensions of these types and lengths, filled with zeros."""
    tail = b"".join(struct.pack("<HH", kind, length) + bytes(length) for kind, length in extensions)
    return mint_data().ljust(ACCOUNT_SIZE, b"\0") + _TYPE_MINT + tail


def token_account_data(
    mint: Pubkey,
    owner: Pubkey,
    amount: int = 0,
    *,
    delegate: Pubkey | None = None,
    close_authority: Pubkey | None = None,
    frozen: bool = False,
) -> bytes:
    """Return a token account."""
    return b"".join(
        [
            bytes(mint),
            bytes(owner),
            struct.pack("<Q", amount),
            _option(delegate),
            bytes([2 if frozen else 1]),
            bytes(12),
            struct.pack("<Q", amount if delegate else 0),
            _option(close_authority),
        ]
    )


def place_token_account(
    vm: Vm, mint: Pubkey, owner: Pubkey, amount: int = 0, *, program: Pubkey = TOKEN_PROGRAM, at: Pubkey | None = None
) -> Pubkey:
    """Set a token account at a new or the given address, and return the address."""
    return vm.put(at or Pubkey.new_unique(), token_account_data(mint, owner, amount), program)


def token_balance(vm: Vm, tokens: Pubkey) -> int:
    """Return the amount in a token account."""
    (amount,) = struct.unpack_from("<Q", vm.data(tokens), 64)
    assert isinstance(amount, int)
    return amount


def _option(key: Pubkey | None) -> bytes:
    return bytes(36) if key is None else struct.pack("<I32s", 1, bytes(key))
