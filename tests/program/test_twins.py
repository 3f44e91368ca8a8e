"""The program does in the VM what its source says: its twins do the same with every kind of instruction.

`--full` compares every instruction of all tests in this folder; see the fixture `_twins_of_everything`.
"""

from collections.abc import Iterator

import pytest

from app.chain.rules import RULES, Rules
from tests.program.adversaries.attacks import attacks
from tests.program.adversaries.stage import AttackStage
from tests.program.adversaries.ways import CALLS, Way
from tests.support.twins import Case, Comparison, Machine, Outcome
from tests.support.vm import CODEC, PROGRAM, Vm
from tests.support.vm_world import VmWorld

ATTACKS = 4
"""Attacks on each call that are compared here."""


@pytest.fixture(scope="module", name="stage")
def _stage() -> AttackStage:
    return AttackStage()


@pytest.fixture(name="watched")
def _watched(comparison: Comparison) -> Iterator[Comparison]:
    """Every instruction is compared while this is in use."""
    before, Vm.watcher = Vm.watcher, comparison.watch
    yield comparison
    Vm.watcher = before


@pytest.mark.parametrize("way", CALLS, ids=[way.name for way in CALLS])
def test_twin_does_the_same_with_each_call_and_attacks_on_it(watched: Comparison, stage: AttackStage, way: Way) -> None:
    discriminator = next(
        bytes(item["discriminator"]) for item in CODEC.idl["instructions"] if item["name"] == way.instruction
    )
    made = [one.call for one in attacks(stage, way)]
    for call in [way.make(stage.victim), *made[:: max(1, len(made) // ATTACKS)]]:
        stage.vm.simulate(*call.instructions)
    assert watched.compared[discriminator, None]
    assert [error for code, error in watched.compared if code == discriminator and error is not None]


def test_twin_does_the_same_over_the_life_of_a_vault(watched: Comparison) -> None:
    """All of an organisation's making, and payments until each limit refuses."""
    world = VmWorld()
    vault = world.wallet(Rules(max_per_tx=90, max_per_day=200, max_per_month=300, velocity_cap=9, require_co_sign=80))
    payee = world.payee()
    for amount in (1, 91, 81, 70, 80, 60, 1, 1, 1, 1, 1, 1, 1):
        world.vm.send(world.payment(vault, payee, amount))
        world.vm.now += 300
    world.vm.now += 86_400
    for _ in range(2):
        world.vm.send(world.payment(vault, payee, 75))
    rules = ("max_per_tx", "velocity_cap", "max_per_day", "max_per_month", "require_co_sign")
    assert {f"Custom {6000 + RULES.index(rule)}" for rule in rules} <= {error for _, error in watched.compared}


class Liar:
    """A twin that does the same but for one thing."""

    def __init__(self, machine: Machine, part: str, value: object) -> None:
        self._machine, self._part, self._value = machine, part, value

    def run(self, case: Case) -> Outcome:
        outcome = self._machine.run(case)
        assert getattr(outcome, self._part) != self._value
        setattr(outcome, self._part, self._value)
        return outcome


@pytest.mark.parametrize(
    ("part", "value"),
    [("error", "Custom 6000"), ("accounts", {}), ("calls", []), ("logs", ["Program log: more"]), ("returned", b"more")],
)
def test_difference_between_twins_is_noticed(part: str, value: object) -> None:
    machine, world = Machine(PROGRAM), VmWorld()
    message = world.vm.transaction(world.payment(world.wallet(), world.payee())).message
    Comparison(machine, machine).watch(world.vm, message)
    with pytest.raises(AssertionError, match="not what the VM did"):
        Comparison(machine, Liar(machine, part, value)).watch(world.vm, message)
