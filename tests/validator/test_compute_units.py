"""What the most expensive everyday instructions cost on the validator's runtime."""

import re

import pytest

from app.chain.rules import Rules, category_bits
from tests.support.vm import PROGRAM_ID, Receipt
from tests.support.vm_escrows import completion, creation, next_escrow, worker
from tests.support.vm_tokens import USDC
from tests.support.vm_world import Payee, VmWorld
from tests.validator.chain import ValidatorVm
from tests.validator.node import Node

pytestmark = pytest.mark.validator(smoke=True)

PAYMENT, ESCROW = 4_330 + 105, 15_000
"""Most compute units, when the token accounts exist. The token program's transfer takes 105 of a payment's."""


def units(receipt: Receipt) -> int:
    """Return the units used by the program, including its calls."""
    consumed = rf"Program {PROGRAM_ID} consumed (\d+) of"
    return max(int(match[1]) for line in receipt.logs if (match := re.match(consumed, line)))


def test_payments_and_escrows_with_all_rules_stay_within_their_units(validator: Node) -> None:
    # Given a vault whose policy sets every rule, and a registered recipient
    world = VmWorld(ValidatorVm(validator))
    receiver = worker(world)
    world.vm.succeed(world.registration(receiver.vault, 1, "shop.example"))
    every = Rules(
        max_per_tx=100 * USDC,
        max_per_day=1_000 * USDC,
        max_per_month=10_000 * USDC,
        velocity_cap=100,
        require_co_sign=50 * USDC,
        expiry=2**40,
        blocked_categories=category_bits(["gambling"]),
        restricted=True,
    )
    vault = world.wallet(world.policy(every, [bytes(receiver.vault)]))
    # When it pays directly and through an escrow
    paid = world.vm.succeed(world.payment(vault, Payee(receiver.vault, receiver.tokens)))
    escrow = next_escrow(world, vault, receiver.vault)
    created = world.vm.succeed(creation(world, vault, receiver.vault))
    completed = world.vm.succeed(completion(world, escrow))
    # Then none uses more than its limit
    assert units(paid) <= PAYMENT
    assert max(units(created), units(completed)) <= ESCROW
