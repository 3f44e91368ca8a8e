"""Reading JSON-RPC parameters: types, ranges and the messages a validator gives for wrong ones.

A reader takes a JSON value and returns the parsed one, or raises `RpcError` with code -32602.
"""

import base64
import binascii
import json
from collections.abc import Callable
from enum import IntEnum
from typing import Any

from solders.hash import Hash, ParseHashError
from solders.pubkey import Pubkey
from solders.signature import Signature

from app.localnet import base58
from app.localnet.errors import MethodError, invalid_params

Reader = Callable[[Any], Any]

MAX_WIRE_BYTES = 1232
"""Largest serialised transaction: an IPv6 packet of 1,280 bytes less its headers."""

_MAX_BASE58_CHARS = 1683
_MAX_BASE64_CHARS = 1644
_PUBKEY_BYTES = 32
_SIGNATURE_BYTES = 64


class Commitment(IntEnum):
    """How settled the state must be that an answer is taken from; ordered."""

    PROCESSED = 0
    CONFIRMED = 1
    FINALIZED = 2


_COMMITMENTS = {
    "processed": Commitment.PROCESSED,
    "confirmed": Commitment.CONFIRMED,
    "finalized": Commitment.FINALIZED,
}


def describe(value: Any) -> str:
    """Return how a validator names a JSON value of the wrong type."""
    match value:
        case None:
            return "null"
        case bool():
            return f"boolean `{str(value).lower()}`"
        case int():
            return f"integer `{value}`"
        case float():
            return f"floating point `{value}`"
        case str():
            return f"string {json.dumps(value, ensure_ascii=False)}"
        case list():
            return "sequence"
        case _:
            return "map"


def wrong_type(value: Any, expected: str) -> MethodError:
    """Return the error for a value that is not of the `expected` type."""
    return invalid_params(f"Invalid params: invalid type: {describe(value)}, expected {expected}.")


def string(value: Any) -> str:
    """Read a string."""
    if not isinstance(value, str):
        raise wrong_type(value, "a string")
    return value


def boolean(value: Any) -> bool:
    """Read a boolean."""
    if not isinstance(value, bool):
        raise wrong_type(value, "a boolean")
    return value


def unsigned(kind: str = "u64", maximum: int = 2**64 - 1) -> Reader:
    """Return a reader of integers from 0 to `maximum`, named `kind` in messages."""

    def read(value: Any) -> int:
        if isinstance(value, bool) or not isinstance(value, int):
            raise wrong_type(value, kind)
        if not 0 <= value <= maximum:
            raise invalid_params(f"Invalid params: invalid value: {describe(value)}, expected {kind}.")
        return value

    return read


u64 = unsigned()
usize = unsigned("usize")


def choice(*names: str) -> Reader:
    """Return a reader of one of `names`."""
    expected = ", ".join(f"`{name}`" for name in names)

    def read(value: Any) -> str:
        text = string(value)
        if text not in names:
            raise invalid_params(f"Invalid params: unknown variant `{text}`, expected one of {expected}.")
        return text

    return read


def sequence(item: Reader, maximum: int | None = None, too_many: str = "Too many inputs provided; max {}") -> Reader:
    """Return a reader of arrays whose entries `item` reads."""

    def read(value: Any) -> list[Any]:
        if not isinstance(value, list):
            raise wrong_type(value, "a sequence")
        if maximum is not None and len(value) > maximum:
            raise invalid_params(too_many.format(maximum))
        return [item(entry) for entry in value]

    return read


def _fault(text: str, size: int) -> str:
    """Return what is wrong with a text that is not the base58 of `size` bytes."""
    # A longer text cannot be right, and decoding it would take quadratic time.
    if len(text) <= 2 * size:
        try:
            base58.decode(text)
        except ValueError:
            return "Invalid"
    return "WrongSize"


def pubkey(value: Any) -> Pubkey:
    """Read a base58 address."""
    text = string(value)
    try:
        return Pubkey.from_string(text)
    except ValueError:
        raise invalid_params(f"Invalid param: {_fault(text, _PUBKEY_BYTES)}") from None


def signature(value: Any) -> Signature:
    """Read a base58 transaction signature."""
    text = string(value)
    try:
        return Signature.from_string(text)
    except ValueError:
        raise invalid_params(f"Invalid param: {_fault(text, _SIGNATURE_BYTES)}") from None


def blockhash(value: Any) -> Hash:
    """Read a base58 blockhash."""
    text = string(value)
    try:
        return Hash.from_string(text)
    except ParseHashError:
        raise invalid_params(_fault(text, _PUBKEY_BYTES)) from None


def commitment(value: Any) -> Commitment:
    """Read a commitment level; like a validator, take an unknown one for `finalized`."""
    return _COMMITMENTS.get(value, Commitment.FINALIZED) if isinstance(value, str) else Commitment.FINALIZED


def strict_commitment(value: Any) -> Commitment:
    """Read a commitment level and refuse an unknown one."""
    return _COMMITMENTS[choice(*_COMMITMENTS)(value)]


def config(name: str, fields: dict[str, Reader], required: frozenset[str] = frozenset()) -> Reader:
    """Return a reader of an object; unknown members are ignored, null stands for a missing one."""

    def read(value: Any) -> dict[str, Any]:
        if value is None:
            value = {}
        if not isinstance(value, dict):
            raise wrong_type(value, f"struct {name}")
        for key in required:
            if key not in value:
                raise invalid_params(f"Invalid params: missing field `{key}`.")
        return {key: read_field(value[key]) for key, read_field in fields.items() if value.get(key) is not None}

    return read


def base64_bytes(text: str) -> bytes:
    """Decode base64.

    Raises RpcError: the text is not base64; the message names the place as a validator does.
    """
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/="
        for index, char in enumerate(text):
            if char not in alphabet:
                raise invalid_params(f"invalid base64 encoding: InvalidByte({index}, {ord(char)})") from None
        raise invalid_params(f"invalid base64 encoding: InvalidLength({len(text)})") from None


def wire_bytes(text: str, encoding: str, type_name: str) -> bytes:
    """Decode a serialised transaction or message in `base58` or `base64`.

    Raises RpcError: wrong encoding, too long, or an encoding that cannot carry a transaction.
    """
    if encoding == "base64":
        limit = _MAX_BASE64_CHARS
    elif encoding in {"base58", "binary"}:
        encoding, limit = "base58", _MAX_BASE58_CHARS
    else:
        raise invalid_params(f"unsupported encoding: {encoding}. Supported encodings: base58, base64")
    if len(text) > limit:
        sizes = f"{len(text)} bytes (max: encoded/raw {limit}/{MAX_WIRE_BYTES})"
        raise invalid_params(f"{encoding} encoded {type_name} too large: {sizes}")
    if encoding == "base64":
        raw = base64_bytes(text)
    else:
        try:
            raw = base58.decode(text)
        except ValueError as error:
            raise invalid_params(f"invalid base58 encoding: {error}") from None
    if len(raw) > MAX_WIRE_BYTES:
        raise invalid_params(f"decoded {type_name} too large: {len(raw)} bytes (max: {MAX_WIRE_BYTES} bytes)")
    return raw


def arguments(params: Any, readers: tuple[Reader, ...], required: int) -> list[Any]:
    """Read positional parameters; those beyond `required` may be missing and are then read from null.

    Raises RpcError: not an array, too few, too many, or one of them is wrong.
    """
    if params is None:
        params = []
    if isinstance(params, dict):
        raise invalid_params("`params` should be an array")
    given, most = len(params), len(readers)
    if most == 0 and given:
        raise invalid_params("Invalid parameters: No parameters were expected")
    if given < required:
        if required == most:
            raise invalid_params(f"Invalid params: invalid length {given}, expected a tuple of size {most}.")
        raise invalid_params(f"`params` should have at least {required} argument(s)")
    if given > most:
        message = f"Invalid parameters: Expected from {required} to {most} parameters."
        raise invalid_params(message, f'"Got: {given}"')
    return [read(params[index] if index < given else None) for index, read in enumerate(readers)]


def optional(read: Reader, default: Any) -> Reader:
    """Return a reader that takes null for `default`."""
    return lambda value: default if value is None else read(value)
