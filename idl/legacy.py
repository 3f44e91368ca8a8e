"""Rewrites an IDL from format 0.1.0 into the older format, which is the only one that anchorpy reads."""

from collections.abc import Mapping, Sequence
from typing import Any

from idl.types import Array, ByteArray, Enum, IdlType, Option, Primitive, Struct, TypeTable, Vec

_PRIMITIVES = {"pubkey": "publicKey"}


def to_legacy(idl: Mapping[str, Any], types: TypeTable) -> dict[str, Any]:
    """Return a legacy IDL that describes the same bytes.

    Accounts and events get their fields inline. Account structs are written as ordinary structs: the program's
    zero-copy layouts have no padding, so their bytes equal those of borsh.
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
                # `Codec` assembles the accounts from the 0.1.0 IDL. anchorpy encodes only the arguments.
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
            {"name": name, "fields": [{**field, "index": False} for field in _fields(types.named_struct(name))]}
            for name in events
        ],
    }


def _definition(name: str, type_: IdlType) -> dict[str, Any]:
    match type_:
        case Enum(_, variants):
            return {"name": name, "type": {"kind": "enum", "variants": [{"name": variant} for variant in variants]}}
        case Struct():
            return {"name": name, "type": {"kind": "struct", "fields": _fields(type_)}}
    raise TypeError(f"{name} is neither a struct nor an enum")


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
