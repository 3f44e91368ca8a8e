"""Reads transactions that a node returned in base64: the accounts that they name and the program's events.

Only an inner instruction that the program sent to itself counts as an event. Its data starts with the event tag, and
its only account is the program's event authority. Only the program can sign for this authority. Log lines prove
nothing.
"""

import base64
import hashlib
import io
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from based58 import b58decode
from solders.hash import Hash
from solders.instruction import CompiledInstruction
from solders.message import Message, MessageHeader, MessageV0
from solders.pubkey import Pubkey
from solders.signature import Signature
from solders.transaction import SanitizeError, VersionedTransaction

from idl.codec import Codec, Event

RawTransaction = dict[str, Any]
"""The result of `getTransaction` with the options `OPTIONS`."""
NEWEST_VERSION = {"maxSupportedTransactionVersion": 1}
OPTIONS = {"encoding": "base64", "commitment": "confirmed", **NEWEST_VERSION}

_VERSION_1 = 0x81
"""First byte of a version-1 transaction (SIMD-0385). Others start with their number of signatures, which is lower."""
_INSTRUCTIONS = range(256)
_MALFORMED = (LookupError, TypeError, ValueError, ArithmeticError, AttributeError, SanitizeError)

_T = TypeVar("_T")


class UnreadableTransactionError(ValueError):
    """The transaction has an unknown format, or a field has the wrong type. A retry at this node changes nothing."""


class IncompleteTransactionError(ValueError):
    """The node left out the transaction or a part of it, or contradicts itself. Another node may be right."""


@dataclass(frozen=True, slots=True)
class SignedTransaction:
    """A transaction of any format. `version` is `None` for a legacy transaction.

    `message` is the signed part and `keys` are its addresses. Lookup tables add `from_tables` more addresses. `body` is
    the parsed message; a message of version 1 has the form of a legacy one.
    """

    version: int | None
    signatures: Sequence[Signature]
    message: bytes
    keys: Sequence[Pubkey]
    body: Message | MessageV0

    @property
    def header(self) -> MessageHeader:
        """The message header: the numbers of signers and of read-only addresses."""
        return self.body.header

    @property
    def blockhash(self) -> Hash:
        """The recent blockhash, or the nonce that replaces it."""
        return self.body.recent_blockhash

    @property
    def instructions(self) -> Sequence[CompiledInstruction]:
        """The transaction's top-level instructions."""
        return self.body.instructions

    @property
    def from_tables(self) -> int:
        """The number of addresses that lookup tables add."""
        lookups = self.body.address_table_lookups if isinstance(self.body, MessageV0) else ()
        return sum(len(one.writable_indexes) + len(one.readonly_indexes) for one in lookups)

    @property
    def signers(self) -> Sequence[Pubkey]:
        """The addresses that must sign, starting with the fee payer."""
        return self.keys[: self.header.num_required_signatures]

    @property
    def message_hash(self) -> str:
        """The hex SHA-256 of the signed message."""
        return hashlib.sha256(self.message).hexdigest()

    def signed_with(self, signatures: Sequence[Signature]) -> bytes:
        """Return the transaction's bytes with these signatures."""
        given = b"".join(map(bytes, signatures))
        return self.message + given if self.version == 1 else bytes([len(signatures)]) + given + self.message


@dataclass(frozen=True, slots=True)
class ChainEvent:
    """An event and its place in a transaction. `inner` is its index among the inner instructions of `instruction`."""

    instruction: int
    inner: int
    event: Event


class Reading:
    """Context manager that turns errors from malformed fields into `UnreadableTransactionError`."""

    def __enter__(self) -> None:
        """Do nothing."""

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        """Raise `UnreadableTransactionError` if a malformed field caused the exception."""
        if error is None:
            return
        known = isinstance(error, UnreadableTransactionError | IncompleteTransactionError)
        if isinstance(error, _MALFORMED) and not known:
            raise UnreadableTransactionError(f"it is malformed: {error}") from error


def parse(transaction: bytes) -> SignedTransaction:
    """Parse a serialised transaction. Raises `UnreadableTransactionError` for a malformed one or an unknown version."""
    with Reading():
        if transaction[0] >= _VERSION_1:
            parsed, content = _version_1(transaction)
        else:
            parsed = VersionedTransaction.from_bytes(transaction)
            content = transaction[1 + 64 * transaction[0] :]
        parsed.sanitize()
        signatures, body = parsed.signatures, parsed.message
        again = content + b"".join(map(bytes, signatures)) if content[0] == _VERSION_1 else bytes(parsed)
        if again != transaction:
            raise UnreadableTransactionError("it has surplus bytes")
        version = content[0] & 0x7F if content[0] & 0x80 else None
        return SignedTransaction(version, signatures, content, body.account_keys, body)


def _version_1(transaction: bytes) -> tuple[VersionedTransaction, bytes]:
    """Return a version-1 transaction (SIMD-0385) in the form of a legacy one, and its message as signed.

    The message has a 4-byte value for each bit set in its configuration mask, even for bits without a meaning. A
    truncated transaction lacks part of its signatures, because they are at its end.
    """
    stream = io.BytesIO(transaction)
    read = stream.read
    version, required, readonly_signed, readonly_unsigned = read(4)
    if version != _VERSION_1:
        raise UnreadableTransactionError(f"version {version & 0x7F} is not known")
    values = int.from_bytes(read(4), "little").bit_count()
    blockhash = Hash(read(32))
    steps, addresses = read(2)
    keys = [Pubkey(read(32)) for _ in range(addresses)]
    read(4 * values)
    instructions = [
        CompiledInstruction(program_id_index=program, accounts=read(accounts), data=read(low | high << 8))
        for program, accounts, low, high in [read(4) for _ in range(steps)]
    ]
    content = transaction[: stream.tell()]
    message = Message.new_with_compiled_instructions(
        required, readonly_signed, readonly_unsigned, keys, blockhash, instructions
    )
    return VersionedTransaction.populate(message, [Signature(read(64)) for _ in range(required)]), content


def part(of: Any, name: str, kind: type) -> Any:
    """Return the field `name` of an object in a node's response. Its type must be `kind`.

    Raises `IncompleteTransactionError` if the field is null or absent, `UnreadableTransactionError` for another type.
    """
    if not isinstance(of, dict):
        raise UnreadableTransactionError(f"the parent of {name} is not an object")
    found = of.get(name)
    if type(found) is kind:
        return found
    if found is None:
        raise IncompleteTransactionError(f"the node left out {name}")
    raise UnreadableTransactionError(f"{name} is not of type {kind.__name__}")


def signed(raw: RawTransaction) -> SignedTransaction:
    """Return the signed transaction in a node's response.

    Raises `UnreadableTransactionError` if it is malformed, `IncompleteTransactionError` if the node left it out.
    """
    encoded = part(raw, "transaction", list)
    with Reading():
        return parse(base64.b64decode(encoded[0], validate=True))


def failure(raw: RawTransaction) -> Any:
    """Return the error of a failed transaction, or `None` for a successful one. Raises the errors of `signed`."""
    meta = part(raw, "meta", dict)
    return meta["err"] if "err" in meta else part(meta, "err", dict)


def accounts(raw: RawTransaction, transaction: SignedTransaction) -> list[Pubkey]:
    """Return the addresses that instructions name by index: first the transaction's own, then the lookup tables'.

    Raises the errors of `signed`.
    """
    if not transaction.from_tables:
        return list(transaction.keys)
    loaded = part(part(raw, "meta", dict), "loadedAddresses", dict)
    from_tables = [*part(loaded, "writable", list), *part(loaded, "readonly", list)]
    if len(from_tables) != transaction.from_tables:
        raise IncompleteTransactionError("the node left out addresses of lookup tables")
    with Reading():
        return [*transaction.keys, *map(Pubkey.from_string, from_tables)]


def at(values: Sequence[_T], index: Any) -> _T:
    """Return the value at `index`, which a node's response names.

    Raises `UnreadableTransactionError` if the index is not an integer or is out of range.
    """
    if type(index) is int and 0 <= index < len(values):
        return values[index]
    raise UnreadableTransactionError("an index in the node's response is out of range")


def events(raw: RawTransaction, keys: Sequence[Pubkey], codec: Codec) -> Iterator[ChainEvent]:
    """Yield the program's events in a transaction. `keys` is the result of `accounts`.

    Raises the errors of `signed`, and `CodecError` for an event that does not fit the IDL. Events that the IDL
    does not know are skipped.
    """
    for instruction, inner, program, named, data in _called(raw, keys):
        if program == codec.program_id and named == [codec.event_authority]:
            event = codec.decode_event(data)
            if event is not None:
                yield ChainEvent(instruction, inner, event)


def instructions(raw: RawTransaction) -> Iterator[tuple[Pubkey, bytes, list[Pubkey]]]:
    """Yield program, data and accounts of the top-level instructions, then of the instructions called by programs.

    Raises the errors of `signed`.
    """
    transaction = signed(raw)
    keys = accounts(raw, transaction)
    for outer in transaction.instructions:
        yield keys[outer.program_id_index], bytes(outer.data), [keys[index] for index in outer.accounts]
    for _, _, program, named, data in _called(raw, keys):
        yield program, data, named


def _called(raw: RawTransaction, keys: Sequence[Pubkey]) -> Iterator[tuple[int, int, Pubkey, list[Pubkey], bytes]]:
    """Yield place, program, accounts and data of the instructions called by programs."""
    groups = part(part(raw, "meta", dict), "innerInstructions", list)
    with Reading():
        for group in groups:
            place = at(_INSTRUCTIONS, group["index"])
            for inner, one in enumerate(group["instructions"]):
                named = [at(keys, index) for index in one["accounts"]]
                yield place, inner, at(keys, one["programIdIndex"]), named, b58decode(one["data"].encode())


def message_hash(transaction: bytes) -> str:
    """Return the hex SHA-256 of the signed message in a serialised transaction, which must be readable.

    A transaction starts with the number of its signatures (one byte, because there are fewer than 128) and 64 bytes for
    each of them. In version 1, the signatures follow the message, and their number is the second byte.
    """
    first, second = transaction[:2]
    message = transaction[: -64 * second] if first == _VERSION_1 else transaction[1 + 64 * first :]
    return hashlib.sha256(message).hexdigest()
