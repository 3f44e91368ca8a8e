"""Converts plain values (dictionaries, bytes, names of variants) to anchorpy's objects and back."""

from typing import Any

from idl.types import Array, ByteArray, Enum, IdlType, Option, Primitive, Struct, Vec

EnumValues = dict[str, list[Any]]
"""anchorpy's objects for the variants of each enum, by the name of the enum."""

_LIMITS = {f"{sign}{bits}": bits for sign in "ui" for bits in (8, 16, 32, 64, 128)}


def to_anchorpy(type_: IdlType, value: Any, enums: EnumValues) -> Any:
    """Return `value` in the form that anchorpy's encoder needs. Raises `ValueError` if it does not fit the type."""
    match type_:
        case Primitive(name) if name in _LIMITS:
            return _integer(name, value)
        case ByteArray(length):
            if len(value) != length:
                raise ValueError(f"expected {length} bytes, got {len(value)}")
            return list(value)
        case Array(item) | Vec(item):
            return [to_anchorpy(item, one, enums) for one in value]
        case Option(item):
            return None if value is None else to_anchorpy(item, value, enums)
        case Struct(name, fields):
            names = {field for field, _ in fields}
            if set(value) != names:
                raise ValueError(f"{name} has the fields {sorted(names)}; got {sorted(value)}")
            return {field: to_anchorpy(kind, value[field], enums) for field, kind in fields}
        case Enum(name, variants):
            if value not in variants:
                raise ValueError(f"{name} has no variant {value!r}")
            return enums[name][variants.index(value)]
    return value


def from_anchorpy(type_: IdlType, value: Any) -> Any:
    """Return the plain values for a result of anchorpy's decoder."""
    match type_:
        case ByteArray():
            return bytes(value)
        case Array(item) | Vec(item):
            return [from_anchorpy(item, one) for one in value]
        case Option(item):
            return None if value is None else from_anchorpy(item, value)
        case Struct(_, fields):
            return {name: from_anchorpy(kind, getattr(value, name)) for name, kind in fields}
        case Enum(_, variants):
            return variants[value.index]
    return value


def _integer(name: str, value: int) -> int:
    bits = _LIMITS[name]
    low, high = (0, 2**bits - 1) if name[0] == "u" else (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
    if not low <= value <= high:
        raise ValueError(f"{value} does not fit {name}")
    return value
