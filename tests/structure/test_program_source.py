"""Checks the program's source: seeds are in one file, money moves in one place, and only refusals are logged."""

import json
import re
import subprocess
from pathlib import Path

from tests.program.sequences.native import find_cargo
from tests.support.needs import skip_or_fail

_PROGRAM = Path(__file__).resolve().parents[2] / "programs" / "agent-vault"
_SOURCE = _PROGRAM / "src"
_SEEDS = "state/seeds.rs"
_TOKEN = "token.rs"

_BYTES = re.compile(r'b"((?:[^"\\]|\\.)*)"')
_NOT_SEEDS = {
    "events.rs": {"__event_authority"},  # the framework's
    "state/mod.rs": {"ProgramDerivedAddress"},  # the runtime's
    "state/policy.rs": {  # keys of the presets
        "pol_conservative",
        r"pol_moderate\0\0\0\0",
        r"pol_permissive\0\0",
        r"pol_locked\0\0\0\0\0\0",
    },
    "instructions/attestation.rs": {"agent-vault:v2:"},  # begins a signed message
    "instructions/complete_escrow.rs": {"signed_attestation", "webhook_callback"},  # parts of signed messages
}
"""Byte strings outside the file of seeds that are not seeds, by module."""

_INVOKERS = {"events.rs", "state/seeded.rs", _TOKEN}
"""Modules that call other programs: for events, for accounts at addresses derived from seeds, and for tokens."""
_MOVING = {3: "Transfer", 6: "SetAuthority", 7: "MintTo", 8: "Burn", 14: "MintToChecked", 15: "BurnChecked"}
"""Instructions of the token program, other than TransferChecked, that move tokens or give control over them away."""
_TRANSFER_CHECKED = 12


def _code() -> dict[str, str]:
    """Return each module without its comments and its tests."""
    modules = {}
    for path in sorted(_SOURCE.rglob("*.rs")):
        text = path.read_text().partition("#[cfg(test)]")[0]
        modules[str(path.relative_to(_SOURCE))] = re.sub(r"^\s*//.*$|\s//.*$", "", text, flags=re.MULTILINE)
    return modules


def test_seeds_of_addresses_stand_in_one_file() -> None:
    code = _code()
    seeds = _BYTES.findall(code[_SEEDS])
    assert seeds
    assert len(seeds) == len(set(seeds))
    elsewhere = {name: set(_BYTES.findall(text)) for name, text in code.items() if name != _SEEDS}
    strange = {name: found for name, texts in elsewhere.items() if (found := texts - _NOT_SEEDS.get(name, set()))}
    assert strange == {}, f"move seeds to {_SEEDS}, and list other byte strings in _NOT_SEEDS"
    written_twice = {name: found for name, texts in elsewhere.items() if (found := texts & set(seeds))}
    assert written_twice == {}


def test_other_programs_are_called_by_three_modules_in_one_way() -> None:
    code = _code()
    assert {name for name, text in code.items() if re.search(r"\binvoke\(", text)} == _INVOKERS
    ways = re.compile(r"invoke_signed|CpiContext|cpi_call|pinocchio_token|anchor_spl::(token|token_2022)\b")
    assert [name for name, text in code.items() if ways.search(text)] == ["invoke.rs"]


def test_the_only_transfer_of_tokens_is_in_the_token_module() -> None:
    code = _code()
    body = code[_TOKEN].partition("mod layout")[2].partition("\n}\n")[2]
    in_tokens = re.findall(r"const ([A-Z_0-9]+): u8 = (\d+);", body)
    assert [name for name, value in in_tokens if int(value) == _TRANSFER_CHECKED] == ["TRANSFER_CHECKED"]
    assert len(re.findall(r"\[\s*TRANSFER_CHECKED,", body)) == 1
    assert [_MOVING[int(value)] for _, value in in_tokens if int(value) in _MOVING] == []


def test_only_a_grant_approves_a_delegate() -> None:
    code = _code()
    assert re.findall(r"const (APPROVE\w*): u8 = (\d+);", code[_TOKEN]) == [("APPROVE_CHECKED", "13")]
    callers = [name for name, text in code.items() if re.search(r"\btoken::approve\(", text)]
    assert callers == ["instructions/grant_allowance.rs"]


def test_the_program_logs_nothing_but_refusals_of_rules() -> None:
    code = _code()
    logging = re.compile(r"\bmsg!|\blog!|\bsol_log|\bdbg!|println!|\bemit!|\bpanic!\(")
    found = {name: logging.findall(text) for name, text in code.items() if logging.search(text)}
    constant = {"state/mod.rs": ["panic!("]}  # evaluated by the compiler
    assert found == {"instructions/spending.rs": ["emit!"], **constant}
    assert "emit!(PolicyViolation" in code["instructions/spending.rs"]


def test_the_guardrails_of_the_framework_are_on() -> None:
    """Cargo builds the framework with the features that any manifest requests, so one check covers all manifests."""
    cargo = find_cargo()
    if cargo is None:
        skip_or_fail("cargo, which lists the features of the program's crates, is not installed or does not work")
    command = [cargo, "metadata", "--format-version", "1", "--locked"]
    output = subprocess.run(command, cwd=_PROGRAM, stdout=subprocess.PIPE, check=True).stdout
    nodes = json.loads(output)["resolve"]["nodes"]
    [features] = [node["features"] for node in nodes if re.search(r"\banchor-lang@", node["id"])]
    assert "guardrails" in features
