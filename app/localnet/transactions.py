"""A transaction as it arrives: parsed, its form checked, its addresses resolved."""

from collections.abc import Callable
from dataclasses import dataclass

from solders.account import Account
from solders.address_lookup_table_account import AddressLookupTable
from solders.message import Message, MessageV0
from solders.pubkey import Pubkey
from solders.transaction import SanitizeError, VersionedTransaction

from app.localnet.errors import invalid_params

LAMPORTS_PER_SIGNATURE = 5000

TYPE_NAME = "solana_transaction::versioned::VersionedTransaction"
"""The name of a transaction in a validator's error messages."""

_SYSTEM_PROGRAM = Pubkey.default()
_ADVANCE_NONCE = (4).to_bytes(4, "little")
_MEMO_PROGRAMS = {
    Pubkey.from_string("MemoSq4gqABAXKb96qnH8TysNcWxMyWCqXgDLGmfcHr"),
    Pubkey.from_string("Memo1UhkJRfHyvLMcVucJwxXeuD728EqVDDwQDxFMNo"),
}
# Programs that the validator itself runs; each signature they verify costs the fee of a transaction's signature.
# The first byte of their instruction data is the number of signatures.
_SIGNATURE_PROGRAMS = {
    Pubkey.from_string("Ed25519SigVerify111111111111111111111111111"),
    Pubkey.from_string("KeccakSecp256k11111111111111111111111111111"),
    Pubkey.from_string("Secp256r1SigVerify1111111111111111111111111"),
}


@dataclass(frozen=True, slots=True)
class LoadedAddresses:
    """The accounts that a versioned transaction takes from address lookup tables."""

    writable: tuple[Pubkey, ...] = ()
    readonly: tuple[Pubkey, ...] = ()


def parse(raw: bytes) -> VersionedTransaction:
    """Return the transaction serialised in `raw`; like a validator, ignore any bytes after it.

    Raises MethodError: it is malformed, has an index out of range, or uses a durable nonce.
    """
    try:
        transaction = VersionedTransaction.from_bytes(raw)
    except ValueError as error:
        raise invalid_params(f"failed to deserialize {TYPE_NAME}: {error}") from None
    try:
        transaction.sanitize()
    except (SanitizeError, ValueError) as error:
        raise invalid_params(f"invalid transaction: {error}") from None
    if uses_durable_nonce(transaction):
        raise invalid_params("invalid transaction: durable nonces are not supported by this node")
    return transaction


def uses_durable_nonce(transaction: VersionedTransaction) -> bool:
    """Tell whether the first instruction advances a nonce account, so that the blockhash is a nonce."""
    message = transaction.message
    if not message.instructions:
        return False
    first = message.instructions[0]
    return bool(message.account_keys[first.program_id_index] == _SYSTEM_PROGRAM and first.data[:4] == _ADVANCE_NONCE)


def fee(message: Message | MessageV0) -> int:
    """Return the fee in lamports: 5,000 a signature; priority fees are accepted but not charged."""
    signatures = message.header.num_required_signatures
    keys = message.account_keys
    for instruction in message.instructions:
        if keys[instruction.program_id_index] in _SIGNATURE_PROGRAMS and instruction.data:
            signatures += instruction.data[0]
    return int(signatures) * LAMPORTS_PER_SIGNATURE


def memo(message: Message | MessageV0) -> str | None:
    """Return the transaction's memos as getSignaturesForAddress shows them: `[length] text; ...`."""
    keys = message.account_keys
    memos = []
    for instruction in message.instructions:
        if keys[instruction.program_id_index] in _MEMO_PROGRAMS:
            raw = bytes(instruction.data)
            try:
                memos.append(f"[{len(raw)}] {raw.decode()}")
            except UnicodeDecodeError:
                memos.append(f"[{len(raw)}] (unprintable)")
    return "; ".join(memos) or None


def loaded_addresses(message: Message | MessageV0, read: Callable[[Pubkey], Account | None]) -> LoadedAddresses:
    """Look up the addresses that a versioned message takes from tables; none if a lookup fails.

    This lookup serves the history. The virtual machine does its own and reports a failure.
    """
    if not isinstance(message, MessageV0):
        return LoadedAddresses()
    writable: list[Pubkey] = []
    readonly: list[Pubkey] = []
    try:
        for lookup in message.address_table_lookups:
            table = read(lookup.account_key)
            addresses = AddressLookupTable.deserialize(table.data if table else b"").addresses
            writable += [addresses[index] for index in lookup.writable_indexes]
            readonly += [addresses[index] for index in lookup.readonly_indexes]
    except (ValueError, IndexError):
        return LoadedAddresses()
    return LoadedAddresses(tuple(writable), tuple(readonly))
