"""The types of an Anchor IDL (format 0.1.0) as a tree with all names resolved."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Json = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Primitive:
    """An integer, `bool`, `pubkey`, `string` or `bytes`, with its name in the IDL."""

    name: str


@dataclass(frozen=True, slots=True)
class ByteArray:
    """The type `[u8; length]`. A value is a `bytes` object."""

    length: int


@dataclass(frozen=True, slots=True)
class Array:
    """The type `[item; length]` for any item except `u8`."""

    item: "IdlType"
    length: int


@dataclass(frozen=True, slots=True)
class Vec:
    """A vector: a `u32` count, followed by this number of items."""

    item: "IdlType"


@dataclass(frozen=True, slots=True)
class Option:
    """An option: one byte, followed by the item if the byte is 1."""

    item: "IdlType"


@dataclass(frozen=True, slots=True)
class Struct:
    """A struct: named fields in a fixed order. A value is a dictionary."""

    name: str
    fields: tuple[tuple[str, "IdlType"], ...]


@dataclass(frozen=True, slots=True)
class Enum:
    """An enum with variants that have no fields, encoded in one byte. A value is the name of a variant."""

    name: str
    variants: tuple[str, ...]


IdlType = Primitive | ByteArray | Array | Vec | Option | Struct | Enum


class TypeTable:
    """Resolves the type expressions of one IDL, including aliases."""

    def __init__(self, definitions: Sequence[Json]) -> None:
        self._definitions = {definition["name"]: definition["type"] for definition in definitions}
        self._resolved: dict[str, IdlType] = {}

    def named(self, name: str) -> IdlType:
        """Return the type with this name. Raises `KeyError` if there is none."""
        if name not in self._resolved:
            self._resolved[name] = self._define(name, self._definitions[name])
        return self._resolved[name]

    def named_struct(self, name: str) -> Struct:
        """Return the struct with this name. Raises `TypeError` if the type is not a struct."""
        type_ = self.named(name)
        if not isinstance(type_, Struct):
            raise TypeError(f"{name} is not a struct")
        return type_

    def struct(self, name: str, fields: Sequence[Json]) -> Struct:
        """Return a struct with the given IDL fields."""
        return Struct(name, tuple((field["name"], self.resolve(field["type"])) for field in fields))

    def resolve(self, expression: str | Json) -> IdlType:
        """Return the type of an IDL expression.

        Raises `ValueError` for an expression that this codec does not support (generics) or does not know.
        """
        if isinstance(expression, str):
            return Primitive(expression)
        match dict(expression):
            case {"defined": {"name": name, "generics": [_, *_]}}:
                raise ValueError(f"generic type {name} is not supported")
            case {"defined": {"name": name}}:
                return self.named(name)
            case {"array": ["u8", int() as length]}:
                return ByteArray(length)
            case {"array": [item, int() as length]}:
                return Array(self.resolve(item), length)
            case {"vec": item}:
                return Vec(self.resolve(item))
            case {"option": item}:
                return Option(self.resolve(item))
        raise ValueError(f"unknown IDL type {expression!r}")

    def _define(self, name: str, body: Json) -> IdlType:
        match body["kind"]:
            case "type":
                return self.resolve(body["alias"])
            case "struct":
                return self.struct(name, body.get("fields", []))
            case "enum":
                if any(variant.get("fields") for variant in body["variants"]):
                    raise ValueError(f"enum {name} has a variant with fields")
                return Enum(name, tuple(variant["name"] for variant in body["variants"]))
        raise ValueError(f"unknown kind of type {name}: {body['kind']}")
