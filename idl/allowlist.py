"""The entries at the end of an Allowlist account, which the IDL format cannot describe."""

import struct

_COUNT = struct.Struct("<I")
ENTRY_SIZE = 32
"""Bytes of an entry: an address, or the SHA-256 of a domain."""


def decode_entries(data: bytes, offset: int) -> list[bytes]:
    """Return the entries of the list whose `u32` count stands at `offset`; `ValueError` when they are cut short."""
    (count,) = _COUNT.unpack_from(data, offset)
    start = offset + _COUNT.size
    end = start + count * ENTRY_SIZE
    if end > len(data):
        raise ValueError(f"an allowlist of {count} entries does not fit its account")
    return [data[at : at + ENTRY_SIZE] for at in range(start, end, ENTRY_SIZE)]
