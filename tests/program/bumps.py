"""Program-derived addresses with a bump other than the canonical one."""

import hashlib

from solders.pubkey import Pubkey

from tests.support.vm import PROGRAM_ID


def below_canonical(*seeds: bytes) -> tuple[Pubkey, int]:
    """Return the address derived with the highest bump below the canonical one, and that bump."""
    canonical = Pubkey.find_program_address(list(seeds), PROGRAM_ID)[1]
    for bump in reversed(range(canonical)):
        preimage = b"".join([*seeds, bytes([bump]), bytes(PROGRAM_ID), b"ProgramDerivedAddress"])
        address = Pubkey.from_bytes(hashlib.sha256(preimage).digest())
        if not address.is_on_curve():
            return address, bump
    raise AssertionError("these seeds have only one address")
