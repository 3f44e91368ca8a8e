"""Durable nonces: a transaction may name a nonce as its blockhash if its first instruction advances the nonce account.

The rules are a validator's. The nonce must be the account's current one, and its authority must sign the instruction.
The nonce must differ from the nonce that an advance in this slot would store, so a nonce advances at most once per
slot. The nonce advances even if the transaction fails, so the same bytes are executed at most once.
"""

from dataclasses import dataclass
from hashlib import sha256

from solders.account import Account
from solders.hash import Hash
from solders.message import Message, MessageV0
from solders.pubkey import Pubkey

from app.localnet.transactions import LAMPORTS_PER_SIGNATURE

RECENT_BLOCKHASHES = Pubkey.from_string("SysvarRecentB1ockHashes11111111111111111111")
"""The sysvar that an instruction must name if it stores a nonce."""
_SYSTEM_PROGRAM = Pubkey.default()
_ADVANCE_NONCE = (4).to_bytes(4, "little")
#: Layout of an initialised nonce account: version and state as u32, authority, nonce, and the signature fee as u64.
_CURRENT, _INITIALIZED = (1).to_bytes(4, "little"), (1).to_bytes(4, "little")
_AUTHORITY, _NONCE, _SIZE = slice(8, 40), slice(40, 72), 80


@dataclass(frozen=True, slots=True)
class Advance:
    """The advance of a nonce account that admits a transaction: the account's address, earlier state and next nonce."""

    address: Pubkey
    before: Account
    nonce: Hash

    def after(self) -> Account:
        """Return the nonce account after the transaction. A failed transaction advances the nonce, too."""
        data, before = bytes(self.before.data), self.before
        fee = LAMPORTS_PER_SIGNATURE.to_bytes(8, "little")
        advanced = data[: _NONCE.start] + bytes(self.nonce) + fee
        return Account(before.lamports, advanced, before.owner, before.executable, before.rent_epoch)


def durable_nonce(blockhash: Hash) -> Hash:
    """Return the nonce that an advance stores while `blockhash` is the newest one."""
    return Hash(sha256(b"DURABLE_NONCE" + bytes(blockhash)).digest())


def nonce_address(message: Message | MessageV0) -> Pubkey | None:
    """Return the nonce account that the first instruction advances, or None if it advances none."""
    keys = message.account_keys
    first = next(iter(message.instructions), None)
    if first is None or not first.accounts or bytes(first.data[:4]) != _ADVANCE_NONCE:
        return None
    if keys[first.program_id_index] != _SYSTEM_PROGRAM:
        return None
    index = first.accounts[0]
    # An account from a lookup table cannot be the nonce account.
    return keys[index] if index < len(keys) and _is_writable(message, index) else None


def _is_writable(message: Message | MessageV0, index: int) -> bool:
    header = message.header
    signers = header.num_required_signatures
    if index < signers:
        return index < signers - header.num_readonly_signed_accounts
    return index < len(message.account_keys) - header.num_readonly_unsigned_accounts


def advance_of(message: Message | MessageV0, account: Account | None, newest: Hash) -> Advance | None:
    """Return the advance that admits a message without a recent blockhash, or None if the message is not admitted.

    `account` is the account at the message's `nonce_address`, `newest` the newest blockhash.
    """
    address, following = nonce_address(message), durable_nonce(newest)
    if address is None or account is None or account.owner != _SYSTEM_PROGRAM:
        return None
    data = bytes(account.data)
    if len(data) != _SIZE or data[:4] != _CURRENT or data[4:8] != _INITIALIZED:
        return None
    named = message.recent_blockhash
    if data[_NONCE] != bytes(named) or named == following:
        return None
    signers = message.account_keys[: message.header.num_required_signatures]
    first = message.instructions[0]
    if not any(index < len(signers) and bytes(signers[index]) == data[_AUTHORITY] for index in first.accounts):
        return None
    return Advance(address, account, following)
