"""What an instruction's data may be: the arguments, and nothing behind them."""

import pytest
from solders.instruction import Instruction

from tests.program.adversaries.stage import AttackStage
from tests.program.adversaries.ways import CALLS, Way


@pytest.fixture(scope="module", name="stage")
def _stage() -> AttackStage:
    return AttackStage()


@pytest.mark.parametrize("way", CALLS, ids=[way.name for way in CALLS])
def test_bytes_behind_the_arguments_are_refused(stage: AttackStage, way: Way) -> None:
    *before, call = way.make(stage.victim).instructions
    for trailing in (b"\0", b"\1", bytes(8)):
        longer = Instruction(call.program_id, bytes(call.data) + trailing, list(call.accounts))
        stage.vm.refuse("InvalidInstructionData", *before, longer)
