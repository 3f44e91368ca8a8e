"""Transactions of version 1 (SIMD-0385): what the tests' own release of solders cannot make."""

from idl.transactions import parse

UNIT_LIMIT = 1_400_000
_PREFIX = b"\x81"
_LIMIT_IS_SET = 1 << 2
"""The bit of the configuration mask for the limit of compute units."""


def as_version_1(transaction: bytes) -> bytes:
    """Return a legacy or version-0 transaction in version 1, with its old signatures, which then no longer fit.

    Raises `ValueError` for one with addresses from lookup tables, which version 1 does not have.
    """
    old = parse(transaction)
    if old.from_tables:
        raise ValueError("it has addresses from lookup tables")
    header = old.header
    steps = old.instructions
    return b"".join(
        (
            _PREFIX,
            bytes((header.num_required_signatures, header.num_readonly_signed_accounts)),
            bytes((header.num_readonly_unsigned_accounts,)),
            _LIMIT_IS_SET.to_bytes(4, "little"),
            bytes(old.blockhash),
            bytes((len(steps), len(old.keys))),
            *map(bytes, old.keys),
            UNIT_LIMIT.to_bytes(4, "little"),
            *(bytes((one.program_id_index, len(one.accounts))) + len(one.data).to_bytes(2, "little") for one in steps),
            *(bytes(one.accounts) + bytes(one.data) for one in steps),
            *map(bytes, old.signatures),
        )
    )
