"""Converts an Anchor IDL of format 0.1.0 to the earlier format, the only one that anchorpy reads.

Zero-copy structs become ordinary ones: those of this program have no padding, so their bytes are the same.
"""

import json
from typing import Any

from anchorpy import Idl


def legacy_idl(idl: dict[str, Any]) -> Idl:
    """Return the IDL in anchorpy's format.

    Raises ValueError if it has an enum with fields or an alias, which are not supported here.
    """
    types = {definition["name"]: _definition(definition) for definition in idl["types"]}
    # Accounts and events used to carry their fields; now they only name the type that has them.
    accounts = [types.pop(account["name"]) for account in idl["accounts"]]
    events = [types.pop(event["name"]) for event in idl["events"]]
    return Idl.from_json(
        json.dumps(
            {
                "name": idl["metadata"]["name"],
                "version": idl["metadata"]["version"],
                "instructions": [_instruction(instruction) for instruction in idl["instructions"]],
                "accounts": accounts,
                "types": list(types.values()),
                "events": [
                    {"name": event["name"], "fields": [{**f, "index": False} for f in event["type"]["fields"]]}
                    for event in events
                ],
                "errors": idl["errors"],
            }
        )
    )


def _instruction(instruction: dict[str, Any]) -> dict[str, Any]:
    accounts = [
        {
            "name": account["name"],
            "isMut": account.get("writable", False),
            "isSigner": account.get("signer", False),
            "isOptional": account.get("optional", False),
        }
        for account in instruction["accounts"]
    ]
    return {"name": instruction["name"], "accounts": accounts, "args": _fields(instruction["args"])}


def _definition(definition: dict[str, Any]) -> dict[str, Any]:
    match definition["type"]:
        case {"kind": "struct", "fields": fields}:
            return {"name": definition["name"], "type": {"kind": "struct", "fields": _fields(fields)}}
        case {"kind": "enum", "variants": variants} if not any("fields" in variant for variant in variants):
            return {"name": definition["name"], "type": {"kind": "enum", "variants": variants}}
    raise ValueError(f"type {definition['name']} is of an unsupported kind")


def _fields(fields: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{"name": field["name"], "type": _type(field["type"])} for field in fields]


def _type(type_: Any) -> Any:
    match type_:
        case "pubkey":
            return "publicKey"
        case {"defined": {"name": name}}:
            return {"defined": name}
        case {"array": [item, length]}:
            return {"array": [_type(item), length]}
        case {"vec": item}:
            return {"vec": _type(item)}
        case {"option": item}:
            return {"option": _type(item)}
    return type_
