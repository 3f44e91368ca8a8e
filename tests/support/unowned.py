"""Addresses that no key or program has ever used."""

import os

from solders.pubkey import Pubkey

from app.chain.addresses import SYSTEM_PROGRAM


def unowned() -> str:
    """Return a new address off the curve with no account and no token account."""
    return str(Pubkey.find_program_address([os.urandom(16)], SYSTEM_PROGRAM)[0])
