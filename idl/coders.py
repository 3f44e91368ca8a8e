"""Coders for instructions, accounts, events and types: precompiled for types of a fixed size, otherwise anchorpy's."""

from collections.abc import Callable, Mapping
from typing import Any, Protocol

from idl.layout import FixedLayout, is_fixed
from idl.types import Struct
from idl.values import EnumValues, from_anchorpy, to_anchorpy


class BodyCoder(Protocol):
    """Encodes and decodes the bytes after a discriminator."""

    def encode(self, values: Mapping[str, Any]) -> bytes:
        """Encode `values`."""

    def decode(self, data: bytes, offset: int = 0) -> dict[str, Any]:
        """Decode the values at `offset`."""


class AnchorpyCoder:
    """Encodes and decodes values of variable size with anchorpy's functions."""

    def __init__(
        self, type_: Struct, enums: EnumValues, build: Callable[[Any], bytes], parse: Callable[[bytes], Any]
    ) -> None:
        self._type = type_
        self._enums = enums
        self._build = build
        self._parse = parse

    def encode(self, values: Mapping[str, Any]) -> bytes:
        """Encode `values`. Raises `ValueError`, `TypeError` or anchorpy's errors for values that do not fit."""
        return self._build(to_anchorpy(self._type, values, self._enums))

    def decode(self, data: bytes, offset: int = 0) -> dict[str, Any]:
        """Decode the values at `offset`. Bytes after them are ignored."""
        values: dict[str, Any] = from_anchorpy(self._type, self._parse(data[offset:]))
        return values


def choose(type_: Struct, anchorpy_coder: Callable[[], BodyCoder]) -> BodyCoder:
    """Return a precompiled coder if the type has a fixed size, otherwise the result of `anchorpy_coder`."""
    return FixedLayout(type_) if is_fixed(type_) else anchorpy_coder()
