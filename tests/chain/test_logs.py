"""A violation is read only from what the program itself logged."""

import base64
from collections.abc import Callable

import pytest
from solders.pubkey import Pubkey

from app.chain.logs import LoggedViolation, policy_violation
from idl.codec import EVENT_IX_TAG, Codec, Event, load

VAULT, RECIPIENT, ORG, BUDGET = (Pubkey.from_bytes(bytes([number]) * 32) for number in (1, 2, 3, 4))
OTHER = str(Pubkey.from_bytes(bytes([9]) * 32))


@pytest.fixture(name="codec")
def _codec() -> Codec:
    return load()


@pytest.fixture(name="program")
def _program(codec: Codec) -> str:
    return str(codec.program_id)


@pytest.fixture(name="data_line")
def _data_line(codec: Codec) -> Callable[..., str]:
    def line(rule: int = 5, limit: int = 10, attempted: int = 20) -> str:
        fields = {
            "org": ORG,
            "vault": VAULT,
            "recipient": RECIPIENT,
            "budget": BUDGET,
            "limit": limit,
            "attempted": attempted,
            "rule": rule,
            "reserved": bytes(7),
        }
        body = codec.encode_event(Event("PolicyViolation", fields))[len(EVENT_IX_TAG) :]
        return "Program data: " + base64.b64encode(body).decode()

    return line


def test_violation_in_the_programs_own_frame_is_found(
    codec: Codec, program: str, data_line: Callable[..., str]
) -> None:
    logs = [
        "Program ComputeBudget111111111111111111111111111111 invoke [1]",
        "Program ComputeBudget111111111111111111111111111111 success",
        f"Program {program} invoke [1]",
        data_line(rule=7, limit=100, attempted=150),
        f"Program {program} consumed 2021 of 200000 compute units",
        f"Program {program} failed: custom program error: 0x1777",
    ]
    assert policy_violation(logs, codec) == LoggedViolation(7, 100, 150, VAULT, RECIPIENT, BUDGET)


def test_violation_logged_by_another_program_is_ignored(
    codec: Codec, program: str, data_line: Callable[..., str]
) -> None:
    logs = [
        f"Program {OTHER} invoke [1]",
        data_line(),
        f"Program {OTHER} success",
        f"Program {program} invoke [1]",
        f"Program {program} failed: custom program error: 0x1775",
    ]
    assert policy_violation(logs, codec) is None


def test_violation_logged_by_a_program_that_ours_calls_is_ignored(
    codec: Codec, program: str, data_line: Callable[..., str]
) -> None:
    logs = [
        f"Program {program} invoke [1]",
        f"Program {OTHER} invoke [2]",
        data_line(),
        f"Program {OTHER} success",
        f"Program {program} failed: custom program error: 0x1775",
    ]
    assert policy_violation(logs, codec) is None


def test_violation_of_a_call_by_another_program_is_ignored(
    codec: Codec, program: str, data_line: Callable[..., str]
) -> None:
    logs = [
        f"Program {OTHER} invoke [1]",
        f"Program {program} invoke [2]",
        data_line(),
        f"Program {program} failed: custom program error: 0x1775",
        f"Program {OTHER} failed: custom program error: 0x1775",
    ]
    assert policy_violation(logs, codec) is None


def test_log_messages_that_look_like_the_runtimes_lines_open_no_frame(
    codec: Codec, program: str, data_line: Callable[..., str]
) -> None:
    logs = [
        f"Program {OTHER} invoke [1]",
        f"Program log: Program {program} invoke [1]",
        f"Program log: x\nProgram {program} invoke [1]\n{data_line()}",
        "Program log: success",
        "Program log: failed: custom program error: 0x1775",
        data_line(),
        f"Program {OTHER} failed: custom program error: 0x1775",
    ]
    assert policy_violation(logs, codec) is None


def test_log_messages_do_not_hide_the_programs_own_violation(
    codec: Codec, program: str, data_line: Callable[..., str]
) -> None:
    logs = [
        f"Program {OTHER} invoke [1]",
        "Program log: success",
        "Program log: failed: nothing",
        f"Program {OTHER} success",
        f"Program {program} invoke [1]",
        data_line(),
        f"Program {program} failed: custom program error: 0x1775",
    ]
    found = policy_violation(logs, codec)
    assert found is not None
    assert found.rule_name == "max_per_tx"


@pytest.mark.parametrize("ending", ["failed: custom program error: 0x1776", "failed: insufficient funds", "success"])
def test_violation_needs_the_error_of_its_rule(
    codec: Codec, program: str, data_line: Callable[..., str], ending: str
) -> None:
    logs = [f"Program {program} invoke [1]", data_line(rule=5), f"Program {program} {ending}"]
    assert policy_violation(logs, codec) is None


def test_logs_cut_before_the_end_give_no_violation(codec: Codec, program: str, data_line: Callable[..., str]) -> None:
    assert policy_violation([f"Program {program} invoke [1]", data_line(), "Log truncated"], codec) is None
    assert policy_violation([f"Program {program} invoke [1]", data_line()], codec) is None
    assert policy_violation([], codec) is None


@pytest.mark.parametrize(
    "noise", ["Program data: !!", "Program data: AAAA", "Program data: ", "Program data: AAAA AAAA"]
)
def test_other_data_next_to_the_violation_does_not_matter(
    codec: Codec, program: str, data_line: Callable[..., str], noise: str
) -> None:
    logs = [
        f"Program {program} invoke [1]",
        noise,
        data_line(),
        noise,
        f"Program {program} failed: custom program error: 0x1775",
    ]
    assert policy_violation(logs, codec) is not None


def test_unknown_rule_is_no_violation(codec: Codec, program: str, data_line: Callable[..., str]) -> None:
    logs = [
        f"Program {program} invoke [1]",
        data_line(rule=200),
        f"Program {program} failed: custom program error: {6200:#x}",
    ]
    assert policy_violation(logs, codec) is None
