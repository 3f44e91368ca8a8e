"""Stages of the attack tests, set up in a VM for the validator's genesis.

Attacks use accounts that no transaction can create, such as a copy of a vault owned by another program.
"""

from collections import deque
from dataclasses import dataclass

import pytest
from solders.account import Account
from solders.keypair import Keypair
from solders.pubkey import Pubkey

from tests.program.adversaries import stage as stage_module
from tests.program.adversaries.attacks import attacks
from tests.program.adversaries.stage import AttackStage
from tests.program.adversaries.ways import CALLS
from tests.support.vm import CODEC, State, Vm
from tests.validator.chain import ValidatorVm
from tests.validator.node import Node

_EARLIER = 120
"""Seconds before now at which the stages are set up, so that what lasts a second is over."""
_DAY = 86_400
_ENDS_AT = slice(-8, None)
"""Where an allowance has its end: last of all."""


@dataclass(frozen=True)
class Prepared:
    """A stage with its keys and accounts."""

    stage: AttackStage
    keys: dict[Pubkey, Keypair]
    state: State

    def on(self, node: Node) -> AttackStage:
        """Move the stage to a validator that has the accounts, and return it."""
        stage = self.stage
        stage.vm = stage.victim.vm = stage.other.vm = ValidatorVm(node, self.keys, self.state)
        return stage


class Stages:
    """Prepared stages; the first has the accounts of every attack."""

    def __init__(self, now: int, count: int) -> None:
        vm = Vm()
        with pytest.MonkeyPatch.context() as patch:
            # All use one VM, because loading the program takes most of the time.
            patch.setattr(stage_module, "Vm", lambda: vm)
            self._prepared = deque(_prepare(vm, now, attacked=number == 0) for number in range(count))

    def accounts(self) -> dict[Pubkey, Account]:
        """Return every account except programs and the VM's own."""
        states = [one.state for one in self._prepared]
        every = {address: held for state in states for address, held in state.items() if held is not None}
        return {address: Account(*held) for address, held in every.items()}

    def next(self, node: Node) -> AttackStage:
        """Return the next stage, moved to a validator that has the accounts."""
        return self._prepared.popleft().on(node)


def _prepare(vm: Vm, now: int, *, attacked: bool) -> Prepared:
    vm.now = now - _EARLIER
    vm._known.clear()
    stage = AttackStage()
    for party in (stage.victim, stage.other):
        for allowance in (party.outstanding, party.outdated):
            _prolong(vm, allowance.address, now + _DAY)
    if attacked:
        for way in CALLS:
            assert list(attacks(stage, way))
    return Prepared(stage, dict(vm._keys), vm.state())


def _prolong(vm: Vm, allowance: Pubkey, until: int) -> None:
    """Let an allowance last as long as the tests: anyone may settle one that has ended, and none is granted so long."""
    account = vm.account(allowance)
    assert account is not None
    data = bytearray(account.data)
    data[_ENDS_AT] = until.to_bytes(8, "little")
    vm.put(allowance, bytes(data), account.owner, account.lamports)
    assert CODEC.decode_account(vm.data(allowance)).data["expires_at"] == until
