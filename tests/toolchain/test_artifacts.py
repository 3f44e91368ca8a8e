"""Checks that the committed program, its IDL and Anchor.toml belong together."""

import hashlib
import json
import re
import tomllib
from typing import Any

import pytest
from solders.pubkey import Pubkey
from solders.rent import Rent
from solders.transaction_metadata import FailedTransactionMetadata
from solders.transaction_status import InstructionErrorFieldless, TransactionErrorInstructionError

from tests.toolchain.paths import IDL, PROGRAM, ROOT
from tests.toolchain.vm import ProgramVm

#: Bytes; a program pays rent for each.
MAX_SIZE = 270_000
# Errors of a call without accounts: of an instruction that the program has, and of one that it lacks.
NO_ACCOUNTS = InstructionErrorFieldless.NotEnoughAccountKeys
UNKNOWN = InstructionErrorFieldless.InvalidInstructionData

IDL_JSON: dict[str, Any] = json.loads(IDL.read_text())
ADDRESS = Pubkey.from_string(IDL_JSON["address"])


@pytest.fixture(scope="module")
def code() -> bytes:
    return PROGRAM.read_bytes()


@pytest.fixture(scope="module")
def program() -> ProgramVm:
    return ProgramVm(PROGRAM, ADDRESS)


def error_of(program: ProgramVm, discriminator: bytes) -> object:
    """Return the error of the instruction with this discriminator, without accounts and arguments."""
    result = program.run(discriminator)
    assert isinstance(result, FailedTransactionMetadata)
    error = result.err()
    assert isinstance(error, TransactionErrorInstructionError)
    return error.err


def contains(code: bytes, number: bytes) -> bool:
    """Tell whether the code has these 8 bytes, as data or as the two halves of an immediate operand."""
    return number in code or number[:4] + bytes(4) + number[4:] in code


def test_the_program_is_at_most_270_kb_and_the_readme_states_its_size(code: bytes) -> None:
    assert len(code) <= MAX_SIZE
    assert f"({round(len(code) / 1000)} kB)" in (ROOT / "README.md").read_text()


def test_the_guide_states_the_rent_of_a_deployment(code: bytes) -> None:
    # One account holds the program's bytes and 45 of the loader, another 36.
    lamports = sum(Rent.default().minimum_balance(size) for size in (len(code) + 45, 36))
    guide = (ROOT / "app" / "docs" / "guides" / "clusters.md").read_text()

    [said] = re.findall(r"([\d.]+) SOL of rent", guide)

    assert 0 <= float(said) - lamports / 10**9 < 0.05


def test_the_program_contains_the_address_of_the_idl(code: bytes) -> None:
    assert bytes(ADDRESS) in code


def test_the_program_tells_where_to_report_vulnerabilities(code: bytes) -> None:
    assert b"=======BEGIN SECURITY.TXT V1=======\0" in code


@pytest.mark.parametrize("instruction", IDL_JSON["instructions"], ids=lambda instruction: instruction["name"])
def test_the_program_has_every_instruction_of_the_idl(program: ProgramVm, instruction: dict[str, Any]) -> None:
    assert error_of(program, bytes(instruction["discriminator"])) == NO_ACCOUNTS


def test_the_program_refuses_an_instruction_that_is_not_in_the_idl(program: ProgramVm) -> None:
    assert error_of(program, hashlib.sha256(b"global:mint_money").digest()[:8]) == UNKNOWN


@pytest.mark.parametrize("kind", ["accounts", "events"])
def test_the_program_has_the_discriminators_of_the_idl(code: bytes, kind: str) -> None:
    assert [item["name"] for item in IDL_JSON[kind] if not contains(code, bytes(item["discriminator"]))] == []


def test_anchor_toml_names_the_same_program() -> None:
    settings = tomllib.loads((ROOT / "Anchor.toml").read_text())
    assert settings["programs"]["localnet"] == {IDL_JSON["metadata"]["name"]: IDL_JSON["address"]}
    members = [ROOT / member / "Cargo.toml" for member in settings["workspace"]["members"]]
    assert [tomllib.loads(manifest.read_text())["package"]["name"] for manifest in members] == ["agent-vault"]
