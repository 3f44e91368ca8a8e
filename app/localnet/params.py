"""Reads JSON-RPC parameters and refuses wrong ones with a validator's messages.

A reader takes a JSON value and returns the parsed value, or raises MethodError with code -32602.
"""

import base64
import json
import re
from collections.abc import Callable
from enum import IntEnum
from typing import Any

from based58 import b58decode
from solders.hash import Hash, ParseHashError
from solders.pubkey import Pubkey
from solders.signature import Signature

from app.localnet.errors import MethodError, invalid_params

Reader = Callable[[Any], Any]

MAX_WIRE_BYTES = 1232
"""Largest serialised transaction: an IPv6 packet of 1,280 bytes minus its headers."""

_NOT_BASE58 = re.compile("[^1-9A-HJ-NP-Za-km-z]")
_NOT_BASE64 = re.compile("[^A-Za-z0-9+/=]")


class Commitment(IntEnum):
    """The commitment levels of the RPC, in ascending order."""

    PROCESSED = 0
    CONFIRMED = 1
    FINALIZED = 2


_COMMITMENTS = {level.name.lower(): level for level in Commitment}


def describe(value: Any) -> str:
    """Return a validator's description of a JSON value with the wrong type."""
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
    """Return the error for a value that does not have the `expected` type."""
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
    """Return a reader of integers from 0 to `maximum`. `kind` is the name of the type in error messages."""

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
    """Return a reader that accepts one of `names`."""
    expected = ", ".join(f"`{name}`" for name in names)

    def read(value: Any) -> str:
        text = string(value)
        if text not in names:
            raise invalid_params(f"Invalid params: unknown variant `{text}`, expected one of {expected}.")
        return text

    return read


def sequence(item: Reader, maximum: int | None = None, too_many: str = "Too many inputs provided; max {}") -> Reader:
    """Return a reader of arrays with at most `maximum` entries, each read with `item`.

    `too_many` is the error message for a longer array.
    """

    def read(value: Any) -> list[Any]:
        if not isinstance(value, list):
            raise wrong_type(value, "a sequence")
        if maximum is not None and len(value) > maximum:
            raise invalid_params(too_many.format(maximum))
        return [item(entry) for entry in value]

    return read


def single_entry(value: Any) -> tuple[str, Any]:
    """Read an object with one member and return the member's name and value."""
    if not isinstance(value, dict) or len(value) != 1:
        raise invalid_params("Invalid params: invalid value: map, expected map with a single key.")
    ((name, detail),) = value.items()
    return name, detail


def _base58(parse: Callable[[str], Any], max_chars: int, prefix: str = "Invalid param: ") -> Reader:
    """Return a reader of base58 text. `prefix` is the start of its error message."""

    def read(value: Any) -> Any:
        text = string(value)
        try:
            return parse(text)
        except (ValueError, ParseHashError):
            fault = "Invalid" if len(text) <= max_chars and _NOT_BASE58.search(text) else "WrongSize"
            raise invalid_params(prefix + fault) from None

    return read


pubkey = _base58(Pubkey.from_string, 44)
signature = _base58(Signature.from_string, 88)
blockhash = _base58(Hash.from_string, 44, prefix="")


def commitment(value: Any) -> Commitment:
    """Read a commitment level. An unknown level means `finalized`, as in a validator."""
    return _COMMITMENTS.get(value, Commitment.FINALIZED) if isinstance(value, str) else Commitment.FINALIZED


def strict_commitment(value: Any) -> Commitment:
    """Read a commitment level and refuse an unknown level."""
    return _COMMITMENTS[choice(*_COMMITMENTS)(value)]


def config(name: str, fields: dict[str, Reader], required: frozenset[str] = frozenset()) -> Reader:
    """Return a reader of an object's `fields`. It leaves out unknown members and members that are null.

    The reader raises MethodError if a `required` member is absent or null.
    """

    def read(value: Any) -> dict[str, Any]:
        if value is None:
            value = {}
        if not isinstance(value, dict):
            raise wrong_type(value, f"struct {name}")
        for key in required:
            if value.get(key) is None:
                raise invalid_params(f"Invalid params: missing field `{key}`.")
        return {key: read_field(value[key]) for key, read_field in fields.items() if value.get(key) is not None}

    return read


def base58_bytes(text: str) -> bytes:
    """Decode base58. This takes quadratic time, so limit the length first.

    Raises ValueError with the message of a Solana validator, which names the first wrong character.
    """
    if wrong := _NOT_BASE58.search(text):
        raise ValueError(f"InvalidCharacter {{ character: {wrong[0]!r}, index: {wrong.start()} }}")
    return b58decode(text.encode())


def base64_bytes(text: str) -> bytes:
    """Decode base64.

    Raises ValueError with a validator's message about the fault.
    """
    if wrong := _NOT_BASE64.search(text):
        raise ValueError(f"InvalidByte({wrong.start()}, {ord(wrong[0])})")
    try:
        return base64.b64decode(text, validate=True)
    except ValueError:
        raise ValueError(f"InvalidLength({len(text)})") from None


# For each encoding: its name in messages, the length of MAX_WIRE_BYTES bytes in it, and its decoder. `binary` is an old
# name of base58.
_WIRE_ENCODINGS = {
    "base64": ("base64", 1644, base64_bytes),
    "base58": ("base58", 1683, base58_bytes),
    "binary": ("base58", 1683, base58_bytes),
}


def wire_bytes(text: str, encoding: str, type_name: str) -> bytes:
    """Decode a serialised transaction or message in base58 (also called binary) or base64.

    Raises MethodError for another encoding, or if the text is malformed or too long.
    """
    if encoding not in _WIRE_ENCODINGS:
        raise invalid_params(f"unsupported encoding: {encoding}. Supported encodings: base58, base64")
    name, limit, decode = _WIRE_ENCODINGS[encoding]
    if len(text) > limit:
        sizes = f"{len(text)} bytes (max: encoded/raw {limit}/{MAX_WIRE_BYTES})"
        raise invalid_params(f"{name} encoded {type_name} too large: {sizes}")
    try:
        raw = decode(text)
    except ValueError as error:
        raise invalid_params(f"invalid {name} encoding: {error}") from None
    if len(raw) > MAX_WIRE_BYTES:
        raise invalid_params(f"decoded {type_name} too large: {len(raw)} bytes (max: {MAX_WIRE_BYTES} bytes)")
    return raw


def arguments(params: Any, readers: tuple[Reader, ...], required: int) -> list[Any]:
    """Read positional parameters. A missing optional parameter counts as null.

    Raises MethodError if `params` is not an array, has too few or too many entries, or has an invalid entry.
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
    """Return a reader that returns `default` for null."""
    return lambda value: default if value is None else read(value)
