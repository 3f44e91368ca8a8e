"""Precompiled coders for layouts with a fixed size.

anchorpy's coders walk a tree of Python objects for every value, which takes about 0.1 ms per event and more per
account. A layout without options and vectors is a single `struct` format, which is about ten times faster. The tests
compare both.
"""

import struct
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from solders.pubkey import Pubkey

from idl.types import Array, ByteArray, Enum, IdlType, Primitive, Struct

_FORMATS = {
    "bool": "?",
    "u8": "B",
    "i8": "b",
    "u16": "H",
    "i16": "h",
    "u32": "I",
    "i32": "i",
    "u64": "Q",
    "i64": "q",
    "pubkey": "32s",
}

_Take = Callable[[Iterator[Any]], Any]
_Put = Callable[[Any, list[Any]], None]


class FixedLayout:
    """Encodes and decodes one struct with a size that does not depend on its values."""

    def __init__(self, type_: Struct) -> None:
        """Compile `type_`. Raises `ValueError` if its size is not fixed."""
        self._struct = struct.Struct("<" + _format(type_))
        self._take = _taker(type_)
        self._put = _putter(type_)

    @property
    def size(self) -> int:
        """Size in bytes of the encoded struct."""
        return self._struct.size

    def decode(self, data: bytes, offset: int = 0) -> dict[str, Any]:
        """Return the fields at `offset` and ignore later bytes.

        Raises `struct.error` if the data is too short, and `ValueError` for an unknown variant of an enum.
        """
        values: dict[str, Any] = self._take(iter(self._struct.unpack_from(data, offset)))
        return values

    def encode(self, values: Mapping[str, Any]) -> bytes:
        """Encode the struct. Raises `KeyError`, `TypeError`, `ValueError` or `struct.error` if a value does not fit."""
        flat: list[Any] = []
        self._put(values, flat)
        return self._struct.pack(*flat)


def is_fixed(type_: IdlType) -> bool:
    """Return True if every value of the type takes the same number of bytes."""
    match type_:
        case Primitive(name):
            return name in _FORMATS
        case ByteArray() | Enum():
            return True
        case Array(item):
            return is_fixed(item)
        case Struct(_, fields):
            return all(is_fixed(field) for _, field in fields)
    return False


def _format(type_: IdlType) -> str:
    match type_:
        case Primitive(name) if name in _FORMATS:
            return _FORMATS[name]
        case ByteArray(length):
            return f"{length}s"
        case Enum():
            return "B"
        case Array(Primitive(name), length) if name in _FORMATS and name != "pubkey":
            return f"{length}{_FORMATS[name]}"
        case Array(item, length):
            return _format(item) * length
        case Struct(_, fields):
            return "".join(_format(field) for _, field in fields)
    raise ValueError(f"{type_} has no fixed size")


def _taker(type_: IdlType) -> _Take:
    """Return a function that reads one value of the type from the flat values that `struct` has unpacked."""
    match type_:
        case Primitive("pubkey"):
            return lambda leaves: Pubkey(next(leaves))
        case Enum(name, variants):
            return lambda leaves: _variant_name(name, variants, next(leaves))
        case Array(item, length):
            take = _taker(item)
            return lambda leaves: [take(leaves) for _ in range(length)]
        case Struct(_, fields):
            takers = [(name, _taker(field)) for name, field in fields]
            return lambda leaves: {name: take(leaves) for name, take in takers}
    return next


def _putter(type_: IdlType) -> _Put:
    """Return a function that flattens a value of the type, for `struct.pack`, and appends the parts to a list."""
    match type_:
        case Primitive("pubkey"):
            return lambda value, flat: flat.append(bytes(value))
        case ByteArray(length):
            return lambda value, flat: flat.append(_exactly(length, value))
        case Enum(name, variants):
            return lambda value, flat: flat.append(_variant_index(name, variants, value))
        case Array(item, length):
            return _array_putter(_putter(item), length)
        case Struct(name, fields):
            return _struct_putter(name, tuple((field, _putter(type_)) for field, type_ in fields))
    return lambda value, flat: flat.append(value)


def _array_putter(put: _Put, length: int) -> _Put:
    def put_all(value: Any, flat: list[Any]) -> None:
        if len(value) != length:
            raise ValueError(f"expected {length} items, got {len(value)}")
        for item in value:
            put(item, flat)

    return put_all


def _struct_putter(name: str, putters: tuple[tuple[str, _Put], ...]) -> _Put:
    def put_fields(value: Any, flat: list[Any]) -> None:
        if len(value) != len(putters):
            raise ValueError(f"{name} has the fields {', '.join(field for field, _ in putters)}; got {sorted(value)}")
        for field, put in putters:
            put(value[field], flat)

    return put_fields


def _exactly(length: int, value: bytes) -> bytes:
    # Check the length here, because `struct` would pad or cut the value silently.
    if len(value) != length:
        raise ValueError(f"expected {length} bytes, got {len(value)}")
    return bytes(value)


def _variant_name(enum: str, variants: tuple[str, ...], index: int) -> str:
    if index >= len(variants):
        raise ValueError(f"{enum} has no variant {index}")
    return variants[index]


def _variant_index(enum: str, variants: tuple[str, ...], name: str) -> int:
    if name not in variants:
        raise ValueError(f"{enum} has no variant {name!r}")
    return variants.index(name)
