"""An instruction has exactly its arguments as data, and every account of the IDL, on both runtimes.

The newer one passes the address of the data, so that the entrypoint finds them, and payments, in another way.
"""

from collections.abc import Callable
from pathlib import Path

import pytest
from solders.instruction import AccountMeta, Instruction
from solders.pubkey import Pubkey

from idl.codec import EVENT_IX_TAG
from tests.program.adversaries import table
from tests.program.adversaries.attacks import attacks
from tests.program.adversaries.stage import AttackStage
from tests.program.adversaries.ways import CALLS, Call, Way
from tests.support import nothing
from tests.support.runtimes import Runtime
from tests.support.vm import CODEC, PROGRAM, PROGRAM_ID, Vm

WAYS = pytest.mark.parametrize("way", CALLS, ids=[way.name for way in CALLS])
PAYMENTS = [way for way in CALLS if way.instruction == "execute_payment"]

ErrorOf = Callable[..., str | None]
"""Runs instructions and returns the name of their error."""


@pytest.fixture(scope="module", name="stage")
def _stage() -> AttackStage:
    return AttackStage()


@pytest.fixture(params=["older", "newer"], name="error_of")
def _error_of(request: pytest.FixtureRequest, stage: AttackStage) -> ErrorOf:
    """Runs instructions on the stage, on each runtime."""
    if request.param == "older":
        return lambda *instructions: stage.vm.simulate(*instructions).error
    runtime: Runtime = request.getfixturevalue("newer_runtime")
    return lambda *instructions: runtime.error(stage.vm, *instructions)


def changed(call: Call, data: bytes, accounts: list[AccountMeta] | None = None) -> tuple[Instruction, ...]:
    """Return the instructions of a call with other data, or other accounts, too."""
    *before, one = call.instructions
    return *before, Instruction(one.program_id, data, list(one.accounts) if accounts is None else accounts)


def test_the_newer_runtime_passes_the_address_of_the_data(newer_runtime: Runtime, tmp_path: Path) -> None:
    """The older one does not; see `test_guards.py`."""
    vm, program, file = Vm(), Pubkey.new_unique(), tmp_path / "program.so"
    file.write_bytes(nothing.program(nothing.RETURN_SECOND_REGISTER))
    vm.svm.add_program_from_file(program, file)
    newer_runtime.do("program", address=str(program), path=str(file))
    call = Instruction(program, b"data", [])
    assert vm.simulate(call).error is None
    assert newer_runtime.error(vm, call) is not None


def test_program_elsewhere_than_at_its_address_refuses_a_payment(stage: AttackStage, newer_runtime: Runtime) -> None:
    """The older runtime's test is in `test_guards.py`."""
    elsewhere = Pubkey.new_unique()
    stage.vm.svm.add_program_from_file(elsewhere, PROGRAM)
    newer_runtime.do("program", address=str(elsewhere), path=str(PROGRAM.absolute()))
    (payment,) = PAYMENTS[0].make(stage.victim).instructions
    moved = Instruction(elsewhere, payment.data, payment.accounts)
    assert newer_runtime.error(stage.vm, moved) == "IncorrectProgramId"


@WAYS
def test_call_is_accepted_on_each_runtime(stage: AttackStage, error_of: ErrorOf, way: Way) -> None:
    assert error_of(*way.make(stage.victim).instructions) is None


@WAYS
def test_bytes_behind_the_arguments_are_refused(stage: AttackStage, error_of: ErrorOf, way: Way) -> None:
    call = way.make(stage.victim)
    for trailing in (b"\0", b"\1", bytes(8), bytes(PROGRAM_ID)):
        assert error_of(*changed(call, call.instruction.data + trailing)) == "InvalidInstructionData"


@WAYS
def test_arguments_of_an_unknown_instruction_are_refused(stage: AttackStage, error_of: ErrorOf, way: Way) -> None:
    call = way.make(stage.victim)
    unknown = bytes(byte ^ 1 for byte in call.instruction.data[:8])
    assert error_of(*changed(call, unknown + call.instruction.data[8:])) == "InvalidInstructionData"


@WAYS
def test_arguments_that_lack_bytes_are_refused(stage: AttackStage, error_of: ErrorOf, way: Way) -> None:
    call = way.make(stage.victim)
    data = bytes(call.instruction.data)
    for size in {len(data) - 1, len(data) // 2, 8, 7, 1, 0} - {len(data)}:
        assert error_of(*changed(call, data[:size])) == "InvalidInstructionData"


@WAYS
def test_accounts_that_are_missing_are_refused(stage: AttackStage, error_of: ErrorOf, way: Way) -> None:
    call = way.make(stage.victim)
    accounts = list(call.instruction.accounts)
    for count in (len(accounts) - 1, len(accounts) // 2, 0):
        assert error_of(*changed(call, call.instruction.data, accounts[:count])) == "NotEnoughAccountKeys"


@pytest.mark.adversary
@pytest.mark.parametrize("way", PAYMENTS, ids=[way.name for way in PAYMENTS])
def test_attack_on_a_payment_is_refused_on_each_runtime(stage: AttackStage, error_of: ErrorOf, way: Way) -> None:
    refusals = table.read()
    for one in attacks(stage, way):
        expected = None if one.harmless else refusals[one.way, one.account, one.kind]
        assert error_of(*one.call.instructions) == expected, (one.account, one.kind)


@pytest.mark.parametrize("data", [EVENT_IX_TAG + bytes(8), EVENT_IX_TAG], ids=["event", "tag"])
def test_event_that_its_authority_did_not_sign_is_refused(stage: AttackStage, error_of: ErrorOf, data: bytes) -> None:
    def by(address: Pubkey, *, signs: bool, others: int = 0) -> Instruction:
        behind = [AccountMeta(stage.attacker, is_signer=False, is_writable=False)] * others
        return Instruction(PROGRAM_ID, data, [AccountMeta(address, signs, is_writable=False), *behind])

    for others in (0, 20):
        assert error_of(by(stage.attacker, signs=True, others=others)) == "InvalidSeeds"
        assert error_of(by(CODEC.event_authority, signs=False, others=others)) == "MissingRequiredSignature"
    assert error_of(Instruction(PROGRAM_ID, data, [])) == "NotEnoughAccountKeys"
