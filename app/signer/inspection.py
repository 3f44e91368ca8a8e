"""Reads a transaction before it is signed elsewhere, and refuses what such a transaction never contains.

Only the bytes count: whatever else came with them is a claim of whoever made them.
"""

from dataclasses import dataclass

from solders.compute_budget import ID as COMPUTE_BUDGET
from solders.hash import Hash
from solders.pubkey import Pubkey
from solders.signature import Signature
from solders.system_program import ID as SYSTEM_PROGRAM

from app.chain.transactions import MAX_SIZE
from idl.codec import Call, Codec, CodecError
from idl.transactions import SignedTransaction, UnreadableTransactionError, parse

_MEMO_PROGRAMS = frozenset(
    map(
        Pubkey.from_string,
        ("MemoSq4gqABAXKb96qnH8TysNcWxMyWCqXgDLGmfcHr", "Memo1UhkJRfHyvLMcVucJwxXeuD728EqVDDwQDxFMNo"),
    )
)
_ADVANCE_NONCE = (4).to_bytes(4, "little")
_ADVANCE_ACCOUNTS = 3


class UnsafeTransactionError(Exception):
    """A transaction that must not be signed; the message says why."""


@dataclass(frozen=True, slots=True)
class Inspected:
    """A transaction that may be signed, once its signer has read what it changes."""

    transaction: SignedTransaction
    signer: Pubkey
    fee_payer: Pubkey
    others: list[Pubkey]
    nonce_account: Pubkey
    nonce: Hash
    calls: list[Call]
    memos: list[str]

    def signed_with(self, signature: Signature) -> bytes:
        """Return the transaction's bytes with the signer's signature."""
        pairs = zip(self.transaction.signers, self.transaction.signatures, strict=True)
        return self.transaction.signed_with([signature if key == self.signer else old for key, old in pairs])

    @property
    def content(self) -> bytes:
        """The bytes that are signed."""
        return self.transaction.message


def inspect(raw: bytes, signer: Pubkey, codec: Codec) -> Inspected:
    """Return what a transaction does if `signer`, the organisation's authority, may sign it.

    Raises UnsafeTransactionError.
    """
    transaction = _parsed(raw)
    if transaction.from_tables:
        raise UnsafeTransactionError("it takes addresses from lookup tables, so its bytes do not say what it does")
    if transaction.version is not None:
        raise UnsafeTransactionError("it is a versioned transaction, which the service never makes")
    keys, signers = transaction.keys, transaction.signers
    _check_signer(transaction, signer)
    first = transaction.instructions[0] if transaction.instructions else None
    if first is None or keys[first.program_id_index] != SYSTEM_PROGRAM or bytes(first.data) != _ADVANCE_NONCE:
        raise UnsafeTransactionError("its first instruction does not advance a durable nonce")
    if len(first.accounts) != _ADVANCE_ACCOUNTS:
        raise UnsafeTransactionError("its advance of the nonce is malformed")
    account, _, authority = (keys[index] for index in first.accounts)
    if authority != signer:
        raise UnsafeTransactionError(f"the authority of its nonce is {authority}, not the signing key")
    calls: list[Call] = []
    memos: list[str] = []
    for one in transaction.instructions[1:]:
        program, data = keys[one.program_id_index], bytes(one.data)
        if program == codec.program_id:
            calls.append(_call(codec, data, [keys[index] for index in one.accounts]))
        elif program in _MEMO_PROGRAMS:
            memos.append(data.decode(errors="replace"))
        elif program != COMPUTE_BUDGET:
            raise UnsafeTransactionError(f"it has an instruction of another program, {program}")
    others = [key for key in signers[1:] if key != signer]
    return Inspected(transaction, signer, signers[0], others, account, transaction.blockhash, calls, memos)


def _parsed(raw: bytes) -> SignedTransaction:
    try:
        transaction = parse(raw)
    except UnreadableTransactionError as error:
        raise UnsafeTransactionError(f"it is not a transaction: {error}") from None
    if len(raw) > MAX_SIZE:
        raise UnsafeTransactionError("it is larger than a transaction can be")
    return transaction


def _check_signer(transaction: SignedTransaction, signer: Pubkey) -> None:
    header, signers = transaction.header, transaction.signers
    if signers[0] == signer:
        raise UnsafeTransactionError("the signing key would pay its fee: the fee payer must be the service's")
    if signer not in signers:
        raise UnsafeTransactionError(f"it needs no signature of {signer}")
    if signers.index(signer) < header.num_required_signatures - header.num_readonly_signed_accounts:
        raise UnsafeTransactionError("it could spend the signing key's SOL")


def _call(codec: Codec, data: bytes, keys: list[Pubkey]) -> Call:
    try:
        return codec.decode_call(data, keys)
    except CodecError as error:
        reason = " ".join(str(error).split())
        raise UnsafeTransactionError(f"it has an instruction that this version does not know: {reason}") from None
