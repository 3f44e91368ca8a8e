"""Builds token accounts as bytes, to set them in a VM without instructions."""

import struct

from solders.pubkey import Pubkey


def mint_bytes(authority: Pubkey, supply: int = 10**15, decimals: int = 6) -> bytes:
    """Return an SPL Token mint."""
    return struct.pack("<I32sQBBI32s", 1, bytes(authority), supply, decimals, 1, 0, bytes(32))


def token_account_bytes(mint: Pubkey, owner: Pubkey, amount: int) -> bytes:
    """Return an initialized SPL Token account without a delegate."""
    initialized = 1
    return struct.pack("<32s32sQ36sB12sQ36s", bytes(mint), bytes(owner), amount, b"", initialized, b"", 0, b"")
