"""Parses incoming transactions, checks their form, and computes their fees, memos and loaded addresses."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from solders.account import Account
from solders.address_lookup_table_account import AddressLookupTable
from solders.hash import Hash
from solders.message import Message, MessageV0
from solders.pubkey import Pubkey
from solders.transaction import SanitizeError, VersionedTransaction

from app.localnet.errors import invalid_params

LAMPORTS_PER_SIGNATURE = 5000

TYPE_NAME = "solana_transaction::versioned::VersionedTransaction"
"""The name of a transaction in a validator's error messages."""

_CUT_OFF = "unexpected end of file"
"""The error message of the library solders for bytes that end too early."""
_SYSTEM_PROGRAM = Pubkey.default()
_COMPUTE_BUDGET = Pubkey.from_string("ComputeBudget111111111111111111111111111111")
_UNIT_LIMIT, _UNIT_PRICE = b"\x02", b"\x03"
_MICRO = 1_000_000
_MAX_UNITS = 1_400_000
# The compute units of an instruction if the transaction sets no limit. Built-in programs get fewer.
_DEFAULT_UNITS, _BUILTIN_UNITS = 200_000, 3_000
MEMO_PROGRAMS = {
    Pubkey.from_string("MemoSq4gqABAXKb96qnH8TysNcWxMyWCqXgDLGmfcHr"),
    Pubkey.from_string("Memo1UhkJRfHyvLMcVucJwxXeuD728EqVDDwQDxFMNo"),
}
# Programs that a validator runs itself to verify signatures, with the cost units of a verified signature. A verified
# signature costs the same fee as a signature of the transaction. The first byte of the instruction data is the number
# of signatures.
_SIGNATURE_PROGRAMS = {
    Pubkey.from_string("Ed25519SigVerify111111111111111111111111111"): 2_400,
    Pubkey.from_string("KeccakSecp256k11111111111111111111111111111"): 6_690,
    Pubkey.from_string("Secp256r1SigVerify1111111111111111111111111"): 4_800,
}
# Cost units of a transaction besides its compute units (Agave, cost-model/src/block_cost_limits.rs). The size of loaded
# accounts counts in pages, with 64 bytes of metadata for each account.
_SIGNATURE_UNITS, _WRITE_LOCK_UNITS, _PAGE_UNITS = 720, 300, 8
_DATA_BYTES_PER_UNIT = 4
_PAGE_BYTES, _METADATA_BYTES = 32 * 1024, 64
_BUILTINS = _SIGNATURE_PROGRAMS.keys() | {
    _SYSTEM_PROGRAM,
    _COMPUTE_BUDGET,
    Pubkey.from_string("Vote111111111111111111111111111111111111111"),
    Pubkey.from_string("BPFLoader1111111111111111111111111111111111"),
    Pubkey.from_string("BPFLoader2111111111111111111111111111111111"),
    Pubkey.from_string("BPFLoaderUpgradeab1e11111111111111111111111"),
    Pubkey.from_string("LoaderV411111111111111111111111111111111111"),
}


@dataclass(frozen=True, slots=True)
class LoadedAddresses:
    """The accounts that a versioned transaction loads from address lookup tables."""

    writable: tuple[Pubkey, ...] = ()
    readonly: tuple[Pubkey, ...] = ()


def parse(raw: bytes) -> VersionedTransaction:
    """Return the transaction serialised in `raw`. Like a validator, ignore any bytes after it.

    A transaction of version 1 counts as malformed, as in a validator that does not know this version. Its first byte is
    read as a number of signatures that does not fit into a transaction.

    Raises MethodError if the transaction is malformed or has an index out of range.
    """
    try:
        transaction = VersionedTransaction.from_bytes(raw)
    except ValueError as error:
        reason = str(error).replace(_CUT_OFF, "failed to fill whole buffer")
        raise invalid_params(f"failed to deserialize {TYPE_NAME}: {reason}") from None
    try:
        transaction.sanitize()
    except (SanitizeError, ValueError) as error:
        raise invalid_params(f"invalid transaction: {error}") from None
    return transaction


def with_blockhash(transaction: VersionedTransaction, blockhash: Hash) -> VersionedTransaction:
    """Return the transaction with another blockhash and the same signatures, which are then no longer valid."""
    old = transaction.message
    header, keys, instructions = old.header, old.account_keys, old.instructions
    new: Message | MessageV0
    if isinstance(old, MessageV0):
        new = MessageV0(header, keys, blockhash, instructions, old.address_table_lookups)
    else:
        signed, unsigned = header.num_readonly_signed_accounts, header.num_readonly_unsigned_accounts
        new = Message.new_with_compiled_instructions(
            header.num_required_signatures, signed, unsigned, keys, blockhash, instructions
        )
    return VersionedTransaction.populate(new, transaction.signatures)


def fee(message: Message | MessageV0) -> int:
    """Return the fee in lamports: 5,000 per signature plus the priority fee."""
    return signature_fee(message) + priority_fee(message)


def signature_fee(message: Message | MessageV0) -> int:
    """Return the part of the fee for signatures, in lamports."""
    verified = sum(count for _, count in _verified_signatures(message))
    return (int(message.header.num_required_signatures) + verified) * LAMPORTS_PER_SIGNATURE


def _verified_signatures(message: Message | MessageV0) -> Iterator[tuple[Pubkey, int]]:
    """Yield the signature programs that the message calls, each with the number of signatures to verify."""
    for instruction in message.instructions:
        program = message.account_keys[instruction.program_id_index]
        if program in _SIGNATURE_PROGRAMS and instruction.data:
            yield program, instruction.data[0]


def cost_units(message: Message | MessageV0, loaded: Iterable[Account | None], writable: int, consumed: int) -> int:
    """Return the cost units that a transaction takes from its block's cost limit.

    `loaded` are its accounts, `writable` is the number of writable addresses from lookup tables, and `consumed` is the
    number of compute units.
    """
    header = message.header
    read_only = header.num_readonly_signed_accounts + header.num_readonly_unsigned_accounts
    writable += len(message.account_keys) - read_only
    units = header.num_required_signatures * _SIGNATURE_UNITS + writable * _WRITE_LOCK_UNITS + consumed
    units += sum(count * _SIGNATURE_PROGRAMS[program] for program, count in _verified_signatures(message))
    units += sum(len(one.data) for one in message.instructions) // _DATA_BYTES_PER_UNIT
    size = sum(len(account.data) + _METADATA_BYTES for account in loaded if account)
    pages = -(-size // _PAGE_BYTES)
    return int(units + pages * _PAGE_UNITS)


def priority_fee(message: Message | MessageV0) -> int:
    """Return the price of a compute unit times the requested units, in lamports, rounded up."""
    keys = message.account_keys
    limit, price, others = None, 0, 0
    for instruction in message.instructions:
        program, data = keys[instruction.program_id_index], bytes(instruction.data)
        others += _BUILTIN_UNITS if program in _BUILTINS else _DEFAULT_UNITS
        if program == _COMPUTE_BUDGET and data[:1] == _UNIT_LIMIT:
            limit = int.from_bytes(data[1:5], "little")
        elif program == _COMPUTE_BUDGET and data[:1] == _UNIT_PRICE:
            price = int.from_bytes(data[1:9], "little")
    units = min(others if limit is None else limit, _MAX_UNITS)
    return -(-price * units // _MICRO)


def memo(message: Message | MessageV0) -> str | None:
    """Return the transaction's memos as getSignaturesForAddress shows them, `[length] text; ...`, or None."""
    keys = message.account_keys
    memos = []
    for instruction in message.instructions:
        if keys[instruction.program_id_index] in MEMO_PROGRAMS:
            raw = bytes(instruction.data)
            try:
                memos.append(f"[{len(raw)}] {raw.decode()}")
            except UnicodeDecodeError:
                memos.append(f"[{len(raw)}] (unprintable)")
    return "; ".join(memos) or None


def loaded_addresses(message: Message | MessageV0, read: Callable[[Pubkey], Account | None]) -> LoadedAddresses:
    """Return the addresses that a versioned message loads from tables, or none if a lookup fails.

    The result is used only for the history. The virtual machine makes its own lookup and reports a failure.
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
