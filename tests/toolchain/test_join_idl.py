"""Tests the script that joins the printed parts of the IDL."""

import hashlib
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.toolchain.paths import TOOLCHAIN

Json = dict[str, Any]

ADDRESS = "Fg6PaFpoGXkYsidMpWTK6W2BeZ7FEfcYkg476zPFsLnS"


def discriminator(text: str) -> list[int]:
    return list(hashlib.sha256(text.encode()).digest()[:8])


def type_named(name: str, *field_types: object) -> Json:
    fields = [{"type": kind, "name": f"field_{i}"} for i, kind in enumerate(field_types)]
    return {"type": {"fields": fields, "kind": "struct"}, "name": name}


def instruction(name: str) -> Json:
    return {"name": name, "discriminator": discriminator(f"global:{name}"), "accounts": [], "args": []}


def event(name: str, *types: Json) -> Json:
    described = {"discriminator": discriminator(f"event:{name}"), "name": name}
    return {"event": described, "types": [type_named(name), *types]}


def program(**changes: object) -> Json:
    vault = {"discriminator": discriminator("account:Vault"), "name": "Vault"}
    described = {
        "address": "",
        "metadata": {"name": "sample", "version": "0.1.0", "spec": "0.1.0"},
        "instructions": [instruction("pay"), instruction("init")],
        "accounts": [vault],
        "types": [type_named("Vault", "u64", {"vec": {"defined": {"name": "Rule"}}}), type_named("Rule", "u8")],
    }
    return {**described, **changes}


def printed(kind: str, content: object) -> str:
    """Return a part as a macro's test prints it, framed by the test harness."""
    text = content if isinstance(content, str) else json.dumps(content)
    return f"---- some::test stdout ----\n--- IDL begin {kind} ---\n{text}\n--- IDL end {kind} ---\n\n"


def join(tmp_path: Path, *parts: str) -> subprocess.CompletedProcess[str]:
    command: list[str | Path] = [sys.executable, TOOLCHAIN / "join_idl.py", "1.2.3", tmp_path / "idl.json"]
    return subprocess.run(command, input="".join(parts), capture_output=True, text=True, check=False)


def joined(tmp_path: Path, *parts: str) -> Json:
    result = join(tmp_path, *parts)
    assert result.returncode == 0, result.stderr
    idl: Json = json.loads((tmp_path / "idl.json").read_text())
    return idl


def names(items: list[Json]) -> list[str]:
    return [item["name"] for item in items]


def test_parts_become_one_document_in_order_of_names(tmp_path: Path) -> None:
    # Given parts in any order, with a type that appears twice
    errors = [{"code": 6001, "name": "B"}, {"code": 6000, "name": "A"}]
    constant = {"name": "SEED", "type": "bytes", "value": "[1, 2]"}
    parts = [
        printed("event", event("Paid", type_named("Rule", "u8"))),
        printed("errors", errors),
        printed("event", event("Frozen")),
        printed("const", constant),
        printed("address", ADDRESS),
        printed("program", program()),
    ]

    # When they are joined
    idl = joined(tmp_path, *parts)

    # Then the document has everything exactly once
    expected = ["address", "metadata", "instructions", "accounts", "events", "errors", "types", "constants"]
    assert list(idl) == expected
    assert idl["address"] == ADDRESS
    assert idl["metadata"] == {"name": "sample", "version": "1.2.3", "spec": "0.1.0"}
    assert names(idl["instructions"]) == ["init", "pay"]
    assert names(idl["events"]) == ["Frozen", "Paid"]
    assert names(idl["errors"]) == ["A", "B"]
    assert names(idl["types"]) == ["Frozen", "Paid", "Rule", "Vault"]
    assert idl["constants"] == [constant]


def test_the_order_of_the_parts_does_not_change_the_document(tmp_path: Path) -> None:
    parts = [printed("event", event(name)) for name in ("Paid", "Frozen")]
    parts += [printed("address", ADDRESS), printed("program", program())]
    join(tmp_path, *parts)
    first = (tmp_path / "idl.json").read_bytes()
    join(tmp_path, *reversed(parts))
    assert (tmp_path / "idl.json").read_bytes() == first


def test_keys_follow_the_order_of_the_format(tmp_path: Path) -> None:
    idl = joined(tmp_path, printed("address", ADDRESS), printed("program", program()))
    assert list(idl["accounts"][0]) == ["name", "discriminator"]
    assert list(idl["types"][0]["type"]) == ["kind", "fields"]


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"types": [type_named("Vault", {"option": {"defined": {"name": "Gone"}}})]}, "no type is called Gone"),
        ({"types": []}, "no type is called Vault"),
        ({"types": [type_named("Vault"), type_named("Vault", "u8")]}, "two different types are called 'Vault'"),
        ({"instructions": [{**instruction("pay"), "discriminator": [1]}]}, "discriminator of 'pay'"),
    ],
)
def test_a_contradictory_program_is_refused(tmp_path: Path, changed: Json, message: str) -> None:
    result = join(tmp_path, printed("address", ADDRESS), printed("program", program(**changed)))
    assert result.returncode == 1
    assert message in result.stderr
    assert not (tmp_path / "idl.json").exists()


def test_two_errors_of_one_code_are_refused(tmp_path: Path) -> None:
    errors = [{"code": 6000, "name": "A"}, {"code": 6000, "name": "B"}]
    result = join(tmp_path, printed("address", ADDRESS), printed("program", program()), printed("errors", errors))
    assert result.returncode == 1
    assert "same code: 6000" in result.stderr


def test_output_without_a_program_is_refused(tmp_path: Path) -> None:
    result = join(tmp_path, "running 0 tests\n")
    assert result.returncode == 1
    assert "expected one part 'address', found 0" in result.stderr
