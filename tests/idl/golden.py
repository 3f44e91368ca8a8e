"""Makes sample values for everything in the IDL, and their bytes with an independent encoder.

`python -m tests.idl.golden` rewrites `golden.json` after a change of the program's interface. Review the difference:
changed bytes of something that already exists break everyone who uses the program.
"""

import hashlib
import json
from collections.abc import Iterator, Mapping
from itertools import count
from pathlib import Path
from typing import Any

IDL = Path(__file__).parents[2] / "idl" / "agent_vault.json"
GOLDEN = Path(__file__).with_name("golden.json")
KINDS = ("instructions", "accounts", "events")
_PREFIXES = {"instructions": "global", "accounts": "account", "events": "event"}
_SIZES = {"u8": 1, "u16": 2, "u32": 4, "u64": 8, "u128": 16, "i8": 1, "i16": 2, "i32": 4, "i64": 8, "i128": 16}


class Samples:
    """Makes a different value for each field, and encodes values in borsh."""

    def __init__(self, idl: Mapping[str, Any]) -> None:
        self._types = {one["name"]: one["type"] for one in idl["types"]}
        self._numbers: Iterator[int] = count(1)

    def make(self, kind: Any) -> Any:
        """Return a value of the type in JSON form: bytes and addresses as hex."""
        number = next(self._numbers)
        match kind:
            case "bool":
                return number % 2 == 1
            case "pubkey":
                return hashlib.sha256(str(number).encode()).hexdigest()
            case str() if kind[0] == "i":
                return -number
            case str():
                return (2 ** (8 * _SIZES[kind]) - number) if number % 2 else number
            case {"array": ["u8", size]}:
                return hashlib.sha512(str(number).encode()).digest()[:size].hex()
            case {"array": [item, size]}:
                return [self.make(item) for _ in range(size)]
            case {"vec": item}:
                return [self.make(item) for _ in range(3)]
            case {"option": item}:
                return None if number % 3 == 0 else self.make(item)
        return self._make_defined(self._types[kind["defined"]["name"]])

    def encode(self, kind: Any, value: Any) -> bytes:
        """Return the bytes of a value that `make` made."""
        match kind:
            case "bool":
                return bytes([value])
            case "pubkey" | {"array": ["u8", _]}:
                return bytes.fromhex(value)
            case str():
                return int(value).to_bytes(_SIZES[kind], "little", signed=kind[0] == "i")
            case {"array": [item, _]}:
                return b"".join(self.encode(item, one) for one in value)
            case {"vec": item}:
                return len(value).to_bytes(4, "little") + b"".join(self.encode(item, one) for one in value)
            case {"option": item}:
                return b"\0" if value is None else b"\1" + self.encode(item, value)
        return self._encode_defined(self._types[kind["defined"]["name"]], value)

    def _make_defined(self, body: Mapping[str, Any]) -> Any:
        match body["kind"]:
            case "type":
                return self.make(body["alias"])
            case "enum":
                return body["variants"][-1]["name"]
        return {field["name"]: self.make(field["type"]) for field in body["fields"]}

    def _encode_defined(self, body: Mapping[str, Any], value: Any) -> bytes:
        match body["kind"]:
            case "type":
                return self.encode(body["alias"], value)
            case "enum":
                return bytes([[one["name"] for one in body["variants"]].index(value)])
        return b"".join(self.encode(field["type"], value[field["name"]]) for field in body["fields"])


def fields_of(idl: Mapping[str, Any], kind: str, item: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the IDL fields of an instruction's arguments, an account or an event."""
    if kind == "instructions":
        return list(item["args"])
    return next(list(one["type"]["fields"]) for one in idl["types"] if one["name"] == item["name"])


def constant(name: str) -> Any:
    """Return a constant of the IDL, which holds it as Rust source."""
    stated = next(one["value"] for one in json.loads(IDL.read_text())["constants"] if one["name"] == name)
    value = json.loads(stated.replace("_", ""))
    return bytes(value) if isinstance(value, list) else value


def generate(idl: Mapping[str, Any]) -> dict[str, Any]:
    """Return sample values and bytes of everything in the IDL; the bytes begin with the discriminator."""
    golden: dict[str, Any] = {}
    for kind in KINDS:
        golden[kind] = {}
        for item in idl[kind]:
            samples = Samples(idl)
            fields = fields_of(idl, kind, item)
            values = {field["name"]: samples.make(field["type"]) for field in fields}
            body = b"".join(samples.encode(field["type"], values[field["name"]]) for field in fields)
            discriminator = hashlib.sha256(f"{_PREFIXES[kind]}:{item['name']}".encode()).digest()[:8]
            golden[kind][item["name"]] = {"values": values, "bytes": (discriminator + body).hex()}
    return golden


if __name__ == "__main__":
    GOLDEN.write_text(json.dumps(generate(json.loads(IDL.read_text())), indent=1) + "\n")
