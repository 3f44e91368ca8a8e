"""Joins the parts of an Anchor IDL into one document, format 0.1.0.

usage: cargo test --features idl-build __anchor_private_print_idl -- --show-output | join_idl.py VERSION OUT.json

Anchor's macros add tests that print the program's address, its instructions with their accounts and types, and one
part for every event, error enum and constant. This script joins them as `anchor idl build` does: it puts events,
errors, constants and types into one list each, without duplicates and sorted by name (errors by code). In addition, it
refuses a document with contradictory types, references to missing types, or discriminators that are not Anchor's.
`describe_idl.py` adds documentation and derivations that the macros do not print.
VERSION is the crate's version, which the macros do not know.
"""

import hashlib
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from describe_idl import describe

Json = dict[str, Any]

PART = re.compile(r"^--- IDL begin (\w+) ---\n(.*?)\n--- IDL end \1 ---$", re.DOTALL | re.MULTILINE)

# The prefix of the hashed name that gives a discriminator, per list of the IDL.
HASH_PREFIX = {"instructions": "global", "accounts": "account", "events": "event"}

# The order of keys in the format's own description. The macros print some objects in alphabetical order.
# fmt: off
KEYS = [
    "kind", "code", "name", "version", "spec", "description", "repository", "docs", "discriminator",
    "serialization", "repr", "generics", "writable", "signer", "optional", "address", "pda", "relations",
    "accounts", "args", "returns", "msg", "path", "account", "type", "fields", "variants", "alias", "value",
    "seeds", "program",
]
# fmt: on


# The type of the argument that marks the end of an instruction's data.
END = {"defined": {"name": "End"}}


class IdlError(Exception):
    """The parts form no valid IDL; the message gives the reason."""


def read_parts(output: str) -> dict[str, list[str]]:
    """Return the texts of all parts in the tests' output, by the kind in their markers."""
    parts: dict[str, list[str]] = {}
    for kind, text in PART.findall(output):
        parts.setdefault(kind, []).append(text)
    for kind in ("address", "program"):
        if len(parts.get(kind, [])) != 1:
            raise IdlError(f"expected one part {kind!r}, found {len(parts.get(kind, []))}")
    return parts


def merge(items: list[Json], what: str) -> list[Json]:
    """Return the items sorted by name, without duplicates. Raise IdlError for two different items with one name."""
    by_name: dict[str, Json] = {}
    for item in items:
        if by_name.setdefault(item["name"], item) != item:
            raise IdlError(f"two different {what} are called {item['name']!r}")
    return [by_name[name] for name in sorted(by_name)]


def without_end(instructions: list[Json]) -> list[Json]:
    """Return the instructions without the end argument, which has no bytes and refuses bytes after the others."""
    return [{**item, "args": [arg for arg in item["args"] if arg["type"] != END]} for item in instructions]


def join(parts: dict[str, list[str]], version: str) -> Json:
    """Build the IDL from the parts."""
    program = json.loads(parts["program"][0])
    events = [json.loads(text) for text in parts.get("event", [])]
    errors = [error for text in parts.get("errors", []) for error in json.loads(text)]
    types = program["types"] + [item for event in events for item in event["types"]]
    types = [item for item in types if item["name"] != END["defined"]["name"]]
    return {
        "address": parts["address"][0].strip(),
        "metadata": {**program["metadata"], "version": version},
        "instructions": merge(without_end(program["instructions"]), "instructions"),
        "accounts": merge(program["accounts"], "accounts"),
        "events": merge([event["event"] for event in events], "events"),
        "errors": sorted(errors, key=lambda error: error["code"]),
        "types": merge(types, "types"),
        "constants": merge([json.loads(text) for text in parts.get("const", [])], "constants"),
    }


def references(value: object) -> Iterator[str]:
    """Yield the names of all types that the value refers to."""
    if isinstance(value, dict):
        if "defined" in value:
            yield value["defined"]["name"]
        for inner in value.values():
            yield from references(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from references(inner)


def check(idl: Json) -> None:
    """Raise IdlError if names, codes, types and discriminators do not fit together."""
    defined = {item["name"] for item in idl["types"]}
    needed = set(references(idl)) | {item["name"] for item in idl["accounts"] + idl["events"]}
    if missing := sorted(needed - defined):
        raise IdlError(f"no type is called {', '.join(missing)}")
    for kind, prefix in HASH_PREFIX.items():
        for item in idl[kind]:
            digest = hashlib.sha256(f"{prefix}:{item['name']}".encode()).digest()
            if item["discriminator"] != list(digest[:8]):
                raise IdlError(f"the discriminator of {item['name']!r} in {kind!r} is not Anchor's")
    for key in ("code", "name"):
        values = [error[key] for error in idl["errors"]]
        if repeated := sorted({str(value) for value in values if values.count(value) > 1}):
            raise IdlError(f"two errors have the same {key}: {', '.join(repeated)}")


def in_order(value: object) -> object:
    """Return the value with the keys of every object in the format's order."""
    if isinstance(value, list):
        return [in_order(inner) for inner in value]
    if not isinstance(value, dict):
        return value
    known = [key for key in KEYS if key in value]
    return {key: in_order(value[key]) for key in [*known, *sorted(value.keys() - set(known))]}


def main() -> None:
    """Read the tests' output from standard input and write the IDL."""
    version, out = sys.argv[1:]
    try:
        idl = describe(join(read_parts(sys.stdin.read()), version))
        check(idl)
    except (IdlError, ValueError) as error:
        sys.exit(f"join_idl: {error}")
    text = json.dumps({key: in_order(value) for key, value in idl.items()}, indent=2, ensure_ascii=False)
    Path(out).write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
