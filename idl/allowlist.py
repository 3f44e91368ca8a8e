"""The layout of an Allowlist account. The IDL format cannot describe its entries."""

import struct
from typing import Any

from idl.layout import FixedLayout

_COUNT = struct.Struct("<I")
_ENTRY_SIZE = 32
"""Size in bytes of an entry: an address or the hash of a domain."""


class AllowlistLayout(FixedLayout):
    """Decodes the fields described by the IDL and adds `entries`, the list that follows them."""

    def decode(self, data: bytes, offset: int = 0) -> dict[str, Any]:
        """Return the fields found at `offset`.

        Raises the errors of `FixedLayout`, and `ValueError` if entries are missing.
        """
        values = super().decode(data, offset)
        (count,) = _COUNT.unpack_from(data, offset + self.size)
        start = offset + self.size + _COUNT.size
        end = start + count * _ENTRY_SIZE
        if end > len(data):
            raise ValueError(f"the account is too short for {count} entries")
        values["entries"] = [data[at : at + _ENTRY_SIZE] for at in range(start, end, _ENTRY_SIZE)]
        return values
