"""Inspects a transaction before an offline authority signs it, and refuses content that no change needs.

Only the signed bytes count. All other content of a file is only a claim by its author.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from solders.compute_budget import ID as COMPUTE_BUDGET
from solders.instruction import Instruction
from solders.message import MessageHeader
from solders.pubkey import Pubkey
from solders.signature import Signature

from app.chain.addresses import ASSOCIATED_TOKEN_PROGRAM, SYSTEM_PROGRAM, TOKEN_PROGRAMS, Addresses
from app.chain.instructions import Instructions
from app.chain.nonces import advance
from app.chain.transactions import MAX_SIZE
from idl.codec import Call, Codec, CodecError
from idl.transactions import SignedTransaction, UnreadableTransactionError, parse

COSTS = "compute_budget"
MEMO = "memo"
OPEN_TOKENS = "create_token_account"
_MEMO_PROGRAMS = frozenset(
    map(
        Pubkey.from_string,
        ("MemoSq4gqABAXKb96qnH8TysNcWxMyWCqXgDLGmfcHr", "Memo1UhkJRfHyvLMcVucJwxXeuD728EqVDDwQDxFMNo"),
    )
)
#: The compute-budget program's instructions by the first byte of their data: name, and length of the data.
_BUDGETS = {1: ("heap_size", 5), 2: ("unit_limit", 5), 3: ("micro_lamports_per_unit", 9), 4: ("loaded_size_limit", 5)}
_ADVANCE_NONCE = (4).to_bytes(4, "little")
_ADVANCE_ACCOUNTS = 3
_OPENING_ACCOUNTS = 6
_PIECE = 40
#: Version 1 (SIMD-0385): maximum size in bytes, position of the configuration mask, and start of the addresses.
_MAX_SIZE_1, _MASK, _KEYS = 4096, slice(4, 8), 42


class UnsafeTransactionError(Exception):
    """The transaction must not be signed. The message states the reason."""


@dataclass(frozen=True, slots=True)
class Inspected:
    """A transaction that may be signed once its signer has read its changes.

    `steps` are all its instructions after the advance of the nonce. Their names, arguments and accounts, together with
    the format, the nonce, the signers and the fee payer, describe the signed content completely.
    """

    transaction: SignedTransaction
    signer: Pubkey
    nonce_account: Pubkey
    steps: list[Call]

    @property
    def format(self) -> str:
        """The transaction's format. Version 1 includes the configuration: four bytes for each bit set in the mask."""
        version, message, keys = self.transaction.version, self.transaction.message, len(self.transaction.keys)
        if version != 1:
            return "legacy" if version is None else f"version {version}"
        mask = int.from_bytes(message[_MASK], "little")
        values = message[_KEYS + 32 * keys :][: 4 * mask.bit_count()]
        return f"version 1, configured by the mask {mask:#x} to {values.hex() or 'nothing'}"

    def signed_with(self, signature: Signature) -> bytes:
        """Return the transaction's bytes with the signer's signature."""
        pairs = zip(self.transaction.signers, self.transaction.signatures, strict=True)
        return self.transaction.signed_with([signature if key == self.signer else old for key, old in pairs])


def inspect(raw: bytes, signer: Pubkey, codec: Codec) -> Inspected:
    """Return the content of a transaction if `signer`, the organisation's authority, may sign it.

    Raises UnsafeTransactionError if the transaction must not be signed.
    """
    transaction = _parsed(raw)
    if transaction.from_tables:
        raise UnsafeTransactionError(
            "the transaction loads addresses from lookup tables, which are not in the signed bytes"
        )
    keys, header, signers = transaction.keys, transaction.header, transaction.signers
    _check_signer(header, signers, signer)
    given = [
        (keys[one.program_id_index], bytes(one.data), [keys[index] for index in one.accounts])
        for one in transaction.instructions
    ]
    program, data, named = given[0] if given else (None, b"", [])
    if program != SYSTEM_PROGRAM or data != _ADVANCE_NONCE:
        raise UnsafeTransactionError("the transaction's first instruction does not advance a durable nonce")
    if len(named) != _ADVANCE_ACCOUNTS:
        raise UnsafeTransactionError("the transaction's advance of the nonce is malformed")
    if named[2] != signer:
        raise UnsafeTransactionError(f"the authority of the transaction's nonce is {named[2]}, not the signing key")
    steps = [_step(codec, *one) for one in given[1:]]
    said = [advance(named[0], signer), *(built for _, built in steps)]
    if given != [(one.program_id, bytes(one.data), [meta.pubkey for meta in one.accounts]) for one in said]:
        raise UnsafeTransactionError("the transaction has a malformed instruction")
    if len(set(keys)) != len(keys) or _granted(keys, header) != _needed(signers[0], said):
        raise UnsafeTransactionError(
            "the transaction names accounts, or makes them signers or writable, although no instruction needs that"
        )
    return Inspected(transaction, signer, named[0], [call for call, _ in steps])


def _parsed(raw: bytes) -> SignedTransaction:
    try:
        transaction = parse(raw)
    except UnreadableTransactionError as error:
        raise UnsafeTransactionError(f"the bytes are not a transaction: {error}") from None
    if len(raw) > (MAX_SIZE if transaction.version != 1 else _MAX_SIZE_1):
        raise UnsafeTransactionError("the transaction exceeds the maximum size")
    return transaction


def _check_signer(header: MessageHeader, signers: Sequence[Pubkey], signer: Pubkey) -> None:
    if signers[0] == signer:
        raise UnsafeTransactionError(
            "the signing key would pay the transaction's fee; the service's fee payer must pay it"
        )
    if signer not in signers:
        raise UnsafeTransactionError(f"the transaction needs no signature by {signer}")
    if signers.index(signer) < header.num_required_signatures - header.num_readonly_signed_accounts:
        raise UnsafeTransactionError("the transaction could spend the signing key's SOL")


def _granted(keys: Sequence[Pubkey], header: MessageHeader) -> dict[Pubkey, tuple[bool, bool]]:
    """Return the addresses of a message, each with two booleans: it signs, and it is writable."""
    signed, unsigned = header.num_required_signatures, len(keys) - header.num_readonly_unsigned_accounts
    return {
        key: (place < signed, place < (signed - header.num_readonly_signed_accounts if place < signed else unsigned))
        for place, key in enumerate(keys)
    }


def _needed(payer: Pubkey, instructions: Sequence[Instruction]) -> dict[Pubkey, tuple[bool, bool]]:
    """Return the addresses that these instructions need, each with two booleans: it signs, and it is writable."""
    found = {payer: (True, True), **{one.program_id: (False, False) for one in instructions}}
    for meta in (meta for one in instructions for meta in one.accounts):
        signs, changes = found.get(meta.pubkey, (False, False))
        found[meta.pubkey] = (signs or meta.is_signer, changes or meta.is_writable)
    return found


def _step(codec: Codec, program: Pubkey, data: bytes, named: Sequence[Pubkey]) -> tuple[Call, Instruction]:
    """Return a description of an instruction, and the instruction rebuilt from this description alone."""
    if program == codec.program_id:
        try:
            call = codec.decode_call(data, named)
        except CodecError as error:
            reason = " ".join(str(error).split())
            raise UnsafeTransactionError(
                f"the transaction has an instruction that this version does not know: {reason}"
            ) from None
        return call, codec.instruction(call.name, call.args, call.accounts)
    if program == ASSOCIATED_TOKEN_PROGRAM and len(named) == _OPENING_ACCOUNTS and named[-1] in TOKEN_PROGRAMS:
        payer, _, owner, mint, _, token_program = named
        build = Instructions(codec, Addresses(codec.program_id, mint, token_program), owner)
        names = ("payer", "tokens", "owner", "mint", "system_program", "token_program")
        return Call(OPEN_TOKENS, {}, dict(zip(names, named, strict=True))), build.create_token_account(
            payer=payer, owner=owner
        )
    if program in _MEMO_PROGRAMS:
        # Split the text into pieces: a line that the terminal breaks could look like another fact.
        text = {f"text from {at}": repr(data[at : at + _PIECE])[1:] for at in range(0, len(data), _PIECE)}
        return Call(MEMO, text, {"program": program}), Instruction(program, data, [])
    if program == COMPUTE_BUDGET and len(data) == _BUDGETS.get(data[0] if data else 0, ("", -1))[1]:
        limit = {_BUDGETS[data[0]][0]: int.from_bytes(data[1:], "little")}
        return Call(COSTS, limit, {}), Instruction(program, data, [])
    raise UnsafeTransactionError(f"the transaction has an instruction of another program, {program}")
