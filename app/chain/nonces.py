"""Nonce accounts. A transaction that begins with advancing a nonce stays valid until the nonce advances."""

import hashlib
from dataclasses import dataclass
from typing import Self

from solders.hash import Hash
from solders.instruction import Instruction
from solders.pubkey import Pubkey
from solders.system_program import (
    ID,
    AdvanceNonceAccountParams,
    advance_nonce_account,
    create_nonce_account_with_seed,
)

from app.chain.records import RawAccount

RENT = 1_447_680
"""Lamports that a nonce account needs to be rent-exempt."""
_SIZE = 80
_CURRENT_AND_INITIALIZED = (1).to_bytes(4, "little") * 2
_AUTHORITY, _NONCE = slice(8, 40), slice(40, 72)
_SEED_DIGITS = 28


@dataclass(frozen=True, slots=True)
class NonceAccount:
    """A nonce account's authority and its nonce, which replaces the blockhash."""

    authority: Pubkey
    nonce: Hash

    @classmethod
    def of(cls, account: RawAccount | None) -> Self | None:
        """Return the account's authority and nonce, or None if it is not an initialised nonce account."""
        if account is None or account.owner != ID or len(account.data) != _SIZE:
            return None
        if not account.data.startswith(_CURRENT_AND_INITIALIZED):
            return None
        return cls(Pubkey(account.data[_AUTHORITY]), Hash(account.data[_NONCE]))


@dataclass(frozen=True, slots=True)
class NonceAddress:
    """The address of a nonce account, derived from the payer's address. It needs no key and can be recomputed."""

    payer: Pubkey
    authority: Pubkey
    org: Pubkey
    number: int

    @property
    def seed(self) -> str:
        """The seed from which the address is derived."""
        parts = b"nonce" + bytes(self.org) + bytes(self.authority) + self.number.to_bytes(4, "little")
        return hashlib.sha256(parts).hexdigest()[:_SEED_DIGITS]

    @property
    def address(self) -> Pubkey:
        """The nonce account's address."""
        return Pubkey.create_with_seed(self.payer, self.seed, ID)

    def creation(self) -> list[Instruction]:
        """Return the instructions that create the account."""
        return list(
            create_nonce_account_with_seed(self.payer, self.address, self.payer, self.seed, self.authority, RENT)
        )


def advance(account: Pubkey, authority: Pubkey) -> Instruction:
    """Return the instruction that advances the nonce of `account`."""
    return advance_nonce_account(AdvanceNonceAccountParams(nonce_pubkey=account, authorized_pubkey=authority))
