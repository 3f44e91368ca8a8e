"""One coder per instruction, account, event and type: precompiled where the size is fixed, anchorpy's elsewhere."""

from collections.abc import Callable, Mapping
from typing import Any, Protocol

from idl.layout import FixedLayout, is_fixed
from idl.types import Struct
from idl.values import EnumValues, from_anchorpy, to_anchorpy


class BodyCoder(Protocol):
    """Encodes and decodes what follows a discriminator."""

    def encode(self, values: Mapping[str, Any]) -> bytes:
        """Return the bytes of `values`."""

    def decode(self, data: bytes, offset: int = 0) -> dict[str, Any]:
        """Return the values that stand at `offset`."""


class AnchorpyCoder:
    """A coder of variable size, on anchorpy's functions."""

    def __init__(
        self,
        type_: Struct,
        enums: EnumValues,
        build: Callable[[Any], bytes],
        parse: Callable[[bytes], Any],
    ) -> None:
        self._type = type_
        self._enums = enums
        self._build = build
        self._parse = parse

    def encode(self, values: Mapping[str, Any]) -> bytes:
        """Return the bytes of `values`. Raises `ValueError` or `KeyError` for values that do not fit."""
        return self._build(to_anchorpy(self._type, values, self._enums))

    def decode(self, data: bytes, offset: int = 0) -> dict[str, Any]:
        """Return the values that stand at `offset`; bytes after them are ignored."""
        values: dict[str, Any] = from_anchorpy(self._type, self._parse(data[offset:]))
        return values


def choose(type_: Struct, anchorpy_coder: Callable[[], BodyCoder]) -> BodyCoder:
    """Return the precompiled coder of a type of fixed size, else what `anchorpy_coder` makes."""
    return FixedLayout(type_) if is_fixed(type_) else anchorpy_coder()
