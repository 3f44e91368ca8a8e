"""The payees that a vault remembers under `new_recipient_cap`, behind the fields of its account."""

import struct

from solders.pubkey import Pubkey

ENTRY = struct.Struct("<16sqQQ")
"""An entry: the first 16 bytes of a payee's address, the time of the first payment, a total, and a sequence number.

The total is of the payments made while the payee was new; it is zero once the payee was paid as a known one. The
sequence number is the vault's at the last payment to the payee; it is zero in an empty entry.
"""
_ENTRIES = 32


def first_paid(vault: bytes, address: Pubkey) -> int | None:
    """Return the Unix time of the first payment to a payee, according to the vault's data.

    Returns None for a payee that the vault does not remember.
    """
    for key, paid, _, last in ENTRY.iter_unpack(vault[-_ENTRIES * ENTRY.size :]):
        if key == bytes(address)[:16] and last:
            return int(paid)
    return None
