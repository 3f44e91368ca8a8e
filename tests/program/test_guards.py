"""What holds for every instruction: where its data is found, which program runs it, what it logs, how money moves."""

import base64

import pytest
from solders.instruction import AccountMeta, Instruction
from solders.pubkey import Pubkey

from app.chain.addresses import SYSTEM_PROGRAM, TOKEN_2022_PROGRAM, TOKEN_PROGRAM
from idl.codec import EVENT_IX_TAG
from tests.program.adversaries.attacks import attacks
from tests.program.adversaries.stage import AttackStage
from tests.program.adversaries.ways import CALLS, Way
from tests.support import nothing
from tests.support.twins import own_lines
from tests.support.vm import CODEC, PROGRAM, PROGRAM_ID, Vm
from tests.support.vm_tokens import USDC
from tests.support.vm_world import VmWorld

WAYS = pytest.mark.parametrize("way", CALLS, ids=[way.name for way in CALLS])
MOVING = {3: "Transfer", 7: "MintTo", 8: "Burn", 12: "TransferChecked", 14: "MintToChecked", 15: "BurnChecked"}
"""Instructions that move tokens, of both token programs; the newer one's others need extensions."""
FEE_EXTENSION = 26
ATTACKS_LOGGED = 12
"""Attacks on each call whose logs are read."""


@pytest.fixture(scope="module", name="stage")
def _stage() -> AttackStage:
    return AttackStage()


def test_the_runtime_of_these_tests_does_not_pass_the_address_of_the_data() -> None:
    """Older ones leave the second register zero, so that all tests of the program find their data by its own walk."""
    vm, program = Vm(), Pubkey.new_unique()
    vm.svm.add_program(program, nothing.program(nothing.RETURN_SECOND_REGISTER))
    vm.succeed(Instruction(program, b"data", []))


@pytest.mark.parametrize("size", [0, *range(1, 10), 165, 10_240])
def test_data_is_found_behind_accounts_of_any_size_and_repeated_ones(world: VmWorld, size: int) -> None:
    vault, payee = world.wallet(), world.payee()
    payment = world.payment(vault, payee)
    odd = world.vm.put(Pubkey.new_unique(), b"\xff" * size, SYSTEM_PROGRAM)
    behind = [AccountMeta(one, is_signer=False, is_writable=False) for one in (odd, payee.tokens, odd, vault, odd)]
    world.vm.succeed(Instruction(PROGRAM_ID, payment.data, [*payment.accounts, *behind]))
    assert world.balance(payee.tokens) == USDC


def test_program_at_another_address_than_its_own_does_nothing(world: VmWorld) -> None:
    vault, payee, elsewhere = world.wallet(), world.payee(), Pubkey.new_unique()
    world.vm.svm.add_program_from_file(elsewhere, PROGRAM)
    payment = world.payment(vault, payee)
    world.vm.refuse("IncorrectProgramId", Instruction(elsewhere, payment.data, payment.accounts))


@WAYS
def test_nothing_of_the_callers_is_logged_but_refusals_of_rules(stage: AttackStage, way: Way) -> None:
    """What is left are texts of the framework, which stand in the program as they are."""
    calls = [way.make(stage.victim), *(one.call for one in attacks(stage, way))]
    program = PROGRAM.read_bytes()
    step = max(1, len(calls) // ATTACKS_LOGGED)
    for call in calls[::step]:
        result = stage.vm.simulate(*call.instructions)
        for line in own_lines(result.logs):
            _, kind, content = line.split(" ", 2)
            if kind == "log:":
                assert content.encode() in program
                continue
            event = CODEC.decode_event(EVENT_IX_TAG + base64.b64decode(content))
            assert event is not None
            assert event.name == "PolicyViolation"
            assert result.error is not None


@WAYS
def test_tokens_move_by_transfer_checked_alone(stage: AttackStage, way: Way) -> None:
    result = stage.vm.simulate(*way.make(stage.victim).instructions)
    assert result.error is None
    used = [
        one.data[0]
        for group in result.meta.inner_instructions()
        for inner in group
        if result.accounts[(one := inner.instruction()).program_id_index] in {TOKEN_PROGRAM, TOKEN_2022_PROGRAM}
    ]
    assert {MOVING[code] for code in used if code in MOVING} <= {"TransferChecked"}
    assert FEE_EXTENSION not in used
