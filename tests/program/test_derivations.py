"""Clients that derive accounts by the IDL arrive at the accounts of a valid call."""

from collections.abc import Mapping
from typing import Any

import pytest
from solders.pubkey import Pubkey

from tests.program.adversaries.stage import AttackStage
from tests.program.adversaries.ways import CALLS, Way
from tests.support.vm import CODEC, PROGRAM_ID

INSTRUCTIONS = {one["name"]: one for one in CODEC.idl["instructions"]}
GIVEN = {
    *("account", "creator", "delegate", "destination", "mint", "new_authority", "payer", "signer", "token_program"),
    *("org", "policy", "new_policy", "vault", "budget", "new_budget", "receiver", "writer", "co_signer"),
    *("budget_parent", "parent", "new_parent"),
    *("escrow", "escrow_tokens", "allowance", "allowance_tokens", "approval", "recipient", "recipient_account"),
    *("allowlist", "new_allowlist", "old_allowlist", "rent_receiver", "approval_rent_receiver"),
    *("policy_rent_receiver", "allowlist_rent_receiver", "next_rent_receiver"),
}
"""Accounts that a client must pass, at least to some instructions."""


@pytest.fixture(scope="module", name="stage")
def _stage() -> AttackStage:
    return AttackStage()


def seed(stage: AttackStage, part: Mapping[str, Any], args: Mapping[str, Any], known: Mapping[str, Pubkey]) -> bytes:
    """Return a seed: a constant, an argument, an account's address, or a field of an account."""
    if part["kind"] == "const":
        return bytes(part["value"])
    root, *path = part["path"].split(".")
    value: Any = args[root] if part["kind"] == "arg" else known[root]
    for name in path:
        value = value[name] if part["kind"] == "arg" else stage.victim.fields(value)[name]
    return value.to_bytes(8, "little") if isinstance(value, int) else bytes(value)


def derived(
    stage: AttackStage, slot: Mapping[str, Any], args: Mapping[str, Any], known: Mapping[str, Pubkey]
) -> Pubkey | None:
    """Return the address of an account by the IDL, or None if it says nothing about it."""
    if "address" in slot:
        return Pubkey.from_string(slot["address"])
    if "pda" in slot:
        seeds = [seed(stage, part, args, known) for part in slot["pda"]["seeds"]]
        program = slot["pda"].get("program")
        owner = PROGRAM_ID if program is None else Pubkey.from_bytes(bytes(program["value"]))
        return Pubkey.find_program_address(seeds, owner)[0]
    for source in slot.get("relations", ()):
        found: Pubkey = stage.victim.fields(known[source])[slot["name"]]
        return found
    return None


@pytest.mark.parametrize("way", CALLS, ids=[one.name for one in CALLS])
def test_idl_derives_the_accounts_of_every_call(stage: AttackStage, way: Way) -> None:
    instruction = way.make(stage.victim).instruction
    name, args = CODEC.decode_instruction(instruction.data) or ("", {})
    slots = INSTRUCTIONS[name]["accounts"]
    known = {slot["name"]: meta.pubkey for slot, meta in zip(slots, instruction.accounts, strict=True)}
    for slot in slots:
        given = known[slot["name"]]
        if slot.get("optional") and given == PROGRAM_ID:
            continue
        found = derived(stage, slot, args, known)
        assert found == given if found is not None else slot["name"] in GIVEN, slot["name"]


def test_three_in_five_accounts_need_not_be_passed() -> None:
    slots = [slot for one in INSTRUCTIONS.values() for slot in one["accounts"]]
    derivable = [slot for slot in slots if slot.keys() & {"address", "pda", "relations"}]
    assert len(derivable) / len(slots) >= 0.6


def test_idl_describes_every_argument_and_event_field() -> None:
    types = {one["name"]: one for one in CODEC.idl["types"]}
    fields = [field for event in CODEC.idl["events"] for field in types[event["name"]]["type"]["fields"]]
    arguments = [argument for one in INSTRUCTIONS.values() for argument in one["args"]]
    assert all("".join(one["docs"]) for one in [*arguments, *fields])
