"""Rewrites an IDL of format 0.1.0 into the format before it, the only one that anchorpy reads."""

from collections.abc import Mapping, Sequence
from typing import Any

from idl.types import Array, ByteArray, Enum, IdlType, Option, Primitive, Struct, TypeTable, Vec

_PRIMITIVES = {"pubkey": "publicKey"}


def to_legacy(idl: Mapping[str, Any], types: TypeTable) -> dict[str, Any]:
    """Return the legacy IDL that describes the same bytes.

    Accounts and events get their fields inline. Account structs are written as ordinary ones: the zero-copy
    layouts of the program have no padding, so their bytes are those of borsh.
    """
    accounts = [account["name"] for account in idl.get("accounts", [])]
    events = [event["name"] for event in idl.get("events", [])]
    inline = {*accounts, *events}
    return {
        "version": idl["metadata"]["version"],
        "name": idl["metadata"]["name"],
        "instructions": [
            {
                "name": instruction["name"],
                # Instructions are assembled from the 0.1.0 accounts; anchorpy only encodes the arguments.
                "accounts": [],
                "args": _fields(types.struct(instruction["name"], instruction["args"])),
            }
            for instruction in idl["instructions"]
        ],
        "accounts": [_definition(name, types.named(name)) for name in accounts],
        "types": [
            _definition(definition["name"], types.named(definition["name"]))
            for definition in idl.get("types", [])
            if definition["name"] not in inline and definition["type"]["kind"] != "type"
        ],
        "events": [
            {"name": name, "fields": [{**field, "index": False} for field in _fields(_struct(types.named(name)))]}
            for name in events
        ],
    }


def _struct(type_: IdlType) -> Struct:
    if not isinstance(type_, Struct):
        raise TypeError(f"{type_} is not a struct")
    return type_


def _definition(name: str, type_: IdlType) -> dict[str, Any]:
    if isinstance(type_, Enum):
        return {"name": name, "type": {"kind": "enum", "variants": [{"name": v} for v in type_.variants]}}
    return {"name": name, "type": {"kind": "struct", "fields": _fields(_struct(type_))}}


def _fields(struct: Struct) -> list[dict[str, Any]]:
    return [{"name": name, "type": _expression(type_)} for name, type_ in struct.fields]


def _expression(type_: IdlType) -> str | dict[str, Any]:
    match type_:
        case Primitive(name):
            return _PRIMITIVES.get(name, name)
        case ByteArray(length):
            return _array("u8", length)
        case Array(item, length):
            return _array(_expression(item), length)
        case Vec(item):
            return {"vec": _expression(item)}
        case Option(item):
            return {"option": _expression(item)}
        case Struct(name) | Enum(name):
            return {"defined": name}


def _array(item: str | dict[str, Any], length: int) -> dict[str, Sequence[Any]]:
    return {"array": [item, length]}
