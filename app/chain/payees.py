"""The payees that a vault remembers under `new_recipient_cap`, behind the fields of its account."""

import struct

from solders.pubkey import Pubkey

ENTRY = struct.Struct("<16sqQQ")
"""The first 16 bytes of an address, the time of its first payment, a sum, and the vault's sequence at its last one."""
_ENTRIES = 32


def first_paid(vault: bytes, address: Pubkey) -> int | None:
    """Return the Unix time of a remembered payee's first payment, given the vault's data, or None if it has none."""
    for key, paid, _, last in ENTRY.iter_unpack(vault[-_ENTRIES * ENTRY.size :]):
        if key == bytes(address)[:16] and last:
            return int(paid)
    return None
