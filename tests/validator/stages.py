"""Stages of the adversaries' tests, set up in a VM, to stand in the validator's ledger from its start.

Attacks use accounts that no transaction makes, such as a copy of a vault that another program owns.
"""

from collections import deque
from dataclasses import dataclass

import pytest
from solders.account import Account
from solders.keypair import Keypair
from solders.pubkey import Pubkey

from tests.program.adversaries import stage as stage_module
from tests.program.adversaries.attacks import attacks
from tests.program.adversaries.stage import Stage
from tests.program.adversaries.ways import CALLS
from tests.support.vm import State, Vm
from tests.validator.chain import ValidatorVm
from tests.validator.node import Node

_EARLIER = 120
"""How long before now the stages are set up, so that what ends after a second has ended."""


@dataclass(frozen=True)
class Prepared:
    """A stage with its keys and accounts."""

    stage: Stage
    keys: dict[Pubkey, Keypair]
    state: State

    def on(self, node: Node) -> Stage:
        """Return the stage, which goes on on a validator that has the accounts."""
        stage = self.stage
        stage.vm = stage.victim.vm = stage.other.vm = ValidatorVm(node, self.keys, self.state)
        return stage


class Stages:
    """Prepared stages, the first of which has the accounts of every attack."""

    def __init__(self, now: int, count: int) -> None:
        vm = Vm()
        with pytest.MonkeyPatch.context() as patch:
            # One VM sets up all of them: what takes time is loading the program.
            patch.setattr(stage_module, "Vm", lambda: vm)
            self._prepared = deque(_prepare(vm, now, attacked=number == 0) for number in range(count))

    def accounts(self) -> dict[Pubkey, Account]:
        """Return every account, but for programs and the VM's own."""
        states = [one.state for one in self._prepared]
        every = {address: held for state in states for address, held in state.items() if held is not None}
        return {address: Account(*held) for address, held in every.items()}

    def next(self, node: Node) -> Stage:
        """Return the next stage, on a validator that has the accounts."""
        return self._prepared.popleft().on(node)


def _prepare(vm: Vm, now: int, *, attacked: bool) -> Prepared:
    vm.now = now - _EARLIER
    vm._known.clear()
    stage = Stage()
    if attacked:
        for way in CALLS:
            assert list(attacks(stage, way))
    return Prepared(stage, dict(vm._keys), vm.state())
