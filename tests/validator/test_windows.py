"""Limits over time on the validator's own clock, with vaults that have earlier payments at genesis."""

import pytest

from tests.validator.chain import ValidatorVm
from tests.validator.node import Node
from tests.validator.windows import CASES, Windows

pytestmark = pytest.mark.validator


@pytest.fixture(scope="module", name="chain")
def _chain(validator: Node, windows: Windows) -> ValidatorVm:
    return windows.move_to(validator)


def smoking(names: set[str]) -> list[object]:
    """Return the names of all cases, with those of the smoke set marked."""
    mark = pytest.mark.validator(smoke=True)
    return [pytest.param(name, marks=mark) if name in names else name for name in CASES]


@pytest.mark.parametrize("name", smoking({"day: what is live counts alone"}))
@pytest.mark.usefixtures("chain")
def test_vault_pays_no_more_than_its_past_leaves(windows: Windows, name: str) -> None:
    vault, world = windows.vaults[name], windows.world
    for amount, error in CASES[name].now:
        payment = world.payment(vault, windows.payee, amount)
        if error is None:
            world.vm.succeed(payment)
        else:
            world.vm.refuse(error, payment)


@pytest.mark.usefixtures("chain")
def test_operator_funds_no_more_than_its_past_leaves(windows: Windows) -> None:
    world, vault = windows.limited, windows.limited_vault
    world.vm.refuse("OperatorLimitExceeded", world.funding(vault, 71))
    world.vm.succeed(world.funding(vault, 70))
    world.vm.refuse("OperatorLimitExceeded", world.funding(vault, 1))


def test_payment_leaves_the_window_while_the_chain_runs(windows: Windows, chain: ValidatorVm) -> None:
    world = windows.world
    # Given the vault that can pay next, with enough time left to be refused first
    leaves = min(at for at in windows.leaving if at > chain.now + 10)
    vault = windows.leaving[leaves]
    # When it previews a payment
    check = world.check(vault, windows.payee, 1)
    assert (check["passed"], check["retry_at"]) == (False, leaves)
    world.vm.refuse("VelocityCapExceeded", world.payment(vault, windows.payee, 1))
    # Then it can pay from the previewed second on
    chain.wait_until(leaves)
    world.vm.succeed(world.payment(vault, windows.payee, 1))
