"""Escrows of vaults in a budget: what they are charged to, and what a refund gives back."""

import pytest
from solders.instruction import Instruction
from solders.pubkey import Pubkey

from app.chain.escrow_instructions import OpenEscrow
from app.chain.rules import BudgetLimits
from tests.program.test_budgets import spent
from tests.program.test_collecting import place
from tests.support.vm import START
from tests.support.vm_escrows import (
    AMOUNT,
    DAY,
    completion,
    creation,
    decision,
    dispute,
    disputed,
    is_gone,
    lock,
    worker,
)
from tests.support.vm_world import NONE, VmWorld

SLOT = 900
WAYS = ("completed", "timed out", "refunded by the arbiter", "split")
RETURNED = {"completed": 0, "timed out": AMOUNT, "refunded by the arbiter": AMOUNT, "split": AMOUNT - 1}


def settle(world: VmWorld, escrow: OpenEscrow, way: str) -> Instruction:
    """Return the instruction that ends an escrow this way, after what must come before it."""
    if way == "timed out":
        world.vm.now += 60
    elif way != "completed":
        world.vm.succeed(dispute(world, escrow))
    return ending(world, escrow, way)


def ending(world: VmWorld, escrow: OpenEscrow, way: str) -> Instruction:
    """Return the instruction that ends an escrow this way."""
    if way == "completed":
        return completion(world, escrow)
    if way == "timed out":
        return world.build.refund_escrow(escrow)
    return decision(world, escrow, AMOUNT - RETURNED[way])


NO_LEVEL = {"budget": NONE, "created_version": 0, "slot": 0, "month": 0}
"""A charge's place in the ledger of a budget that the vault does not have."""


def with_budget(escrow: OpenEscrow, budget: Pubkey | None) -> OpenEscrow:
    """Return the escrow with another budget's account."""
    return OpenEscrow(escrow.address, escrow.vault, escrow.receiver, escrow.payer, budget)


def test_escrow_is_charged_to_the_budget_and_remembers_where(world: VmWorld) -> None:
    budget, payee = world.budget(max_per_day=AMOUNT), world.payee()
    vault = world.member(budget)
    escrow = lock(world, vault, payee.owner)
    fields, created = world.fields(escrow.address)["charged"], world.fields(budget)["created_version"]
    month = world.fields(budget)["ledger"]["month_ends_at"]
    level = {"budget": budget, "created_version": created, "slot": START // SLOT, "month": month}
    assert (fields["level_count"], fields["levels"]) == (1, [level, NO_LEVEL])
    assert spent(world, budget) == (AMOUNT, AMOUNT, 1)
    world.vm.refuse("BudgetMaxPerDayExceeded", creation(world, vault, payee.owner, 1))


def test_escrow_of_a_vault_without_a_budget_names_none(world: VmWorld) -> None:
    fields = world.fields(lock(world, world.wallet(), world.payee().owner).address)["charged"]
    assert (fields["level_count"], fields["levels"]) == (0, [NO_LEVEL] * 2)


def test_creation_needs_exactly_the_vaults_budget(world: VmWorld) -> None:
    budget, other, payee = world.budget(), world.budget(), world.payee()
    bound, free = world.member(budget), world.wallet()
    world.vm.refuse("BudgetRequired", creation(world, bound, payee.owner, budget=None))
    world.vm.refuse("WrongBudget", creation(world, bound, payee.owner, budget=other))
    world.vm.refuse("WrongBudget", creation(world, free, payee.owner, budget=budget))


@pytest.mark.parametrize("way", WAYS)
def test_settlement_gives_back_what_was_not_released(world: VmWorld, way: str) -> None:
    budget, payee = world.budget(max_per_day=2 * AMOUNT), world.payee()
    vault, other = world.member(budget), world.member(budget)
    escrow = lock(world, vault, payee.owner, timeout=60)
    world.vm.succeed(world.payment(other, payee, AMOUNT))
    world.vm.succeed(settle(world, escrow, way))
    left = 2 * AMOUNT - RETURNED[way]
    # The payment was made, so velocity is never given back
    assert spent(world, budget) == (left, left, 2)
    world.vm.refuse("BudgetMaxPerDayExceeded", world.payment(other, payee, RETURNED[way] + 1))


@pytest.mark.parametrize("way", WAYS)
def test_settlement_needs_the_account_at_the_stored_address(world: VmWorld, way: str) -> None:
    budget, other, payee = world.budget(), world.budget(), world.payee()
    charged = lock(world, world.member(budget), payee.owner, timeout=60)
    free = lock(world, world.wallet(), payee.owner, timeout=60)
    settle(world, charged, way)
    if way in {"split", "refunded by the arbiter"}:
        world.vm.succeed(dispute(world, free))
    for escrow, given, error in [
        (charged, None, "BudgetRequired"),
        (charged, other, "WrongBudget"),
        (free, budget, "WrongBudget"),
    ]:
        world.vm.refuse(error, ending(world, with_budget(escrow, given), way))


@pytest.mark.parametrize("becomes", ["none", "another", "updated"])
def test_credit_goes_to_the_budget_charged_whatever_the_vaults_is_now(world: VmWorld, becomes: str) -> None:
    budget, other, payee = world.budget(max_per_day=AMOUNT), world.budget(), world.payee()
    vault = world.member(budget)
    escrow = lock(world, vault, payee.owner, timeout=60)
    if becomes == "updated":
        world.vm.succeed(world.budget_update(budget, max_per_day=2 * AMOUNT))
    else:
        world.vm.succeed(world.joining(vault, other if becomes == "another" else None))
    world.vm.now += 60
    world.vm.succeed(world.build.refund_escrow(escrow))
    assert spent(world, budget) == (0, 0, 1)
    assert spent(world, other) == (0, 0, 0)


@pytest.mark.parametrize("anew", [False, True])
@pytest.mark.parametrize("way", WAYS)
def test_closed_budget_stops_no_settlement_and_gets_no_credit(world: VmWorld, way: str, anew: bool) -> None:
    budget, payee = world.budget(), world.payee()
    vault = world.member(budget)
    escrow = lock(world, vault, payee.owner, timeout=60)
    key = world.fields(budget)["key"]
    world.vm.succeed(world.joining(vault, None))
    world.vm.succeed(world.budget_closing(budget))
    if anew:
        # The same address, and a charge in the same slot that the refund must not take back
        create = {"payer": world.payer, "authority": world.authority, "key": key}
        world.vm.succeed(world.build.create_budget(**create, limits=BudgetLimits()))
        world.vm.succeed(world.joining(vault, budget))
        world.vm.succeed(world.payment(vault, payee, AMOUNT))
    world.vm.succeed(settle(world, escrow, way))
    assert is_gone(world, escrow)
    if anew:
        assert spent(world, budget) == (AMOUNT, AMOUNT, 1)


def test_budget_given_lamports_after_its_end_stops_no_settlement(world: VmWorld) -> None:
    budget, payee = world.budget(), world.payee()
    vault = world.member(budget)
    escrow = lock(world, vault, payee.owner, timeout=60)
    world.vm.succeed(world.joining(vault, None))
    world.vm.succeed(world.budget_closing(budget))
    world.vm.put(budget, b"", NONE, 10**9)
    world.vm.succeed(settle(world, escrow, "timed out"))
    assert is_gone(world, escrow)


def test_vault_and_budget_are_credited_at_their_own_places(world: VmWorld) -> None:
    budget, payee = world.budget(), world.payee()
    vault = world.wallet()
    # Given a vault that is four slots ahead of the budget
    world.vm.now = START + 4 * SLOT
    world.vm.succeed(world.payment(vault, payee, 1))
    world.vm.now = START
    world.vm.succeed(world.joining(vault, budget))
    escrow = disputed(world, vault, payee.owner)
    fields = world.fields(escrow.address)["charged"]
    assert (fields["slot"], fields["levels"][0]["slot"]) == (START // SLOT + 4, START // SLOT)
    # When it is refunded, then both lose just that charge
    world.vm.succeed(decision(world, escrow, 0))
    assert spent(world, budget)[0] == 0
    assert world.fields(vault)["ledger"]["day"]["total"] == 1


def test_refund_after_the_window_credits_nothing(world: VmWorld) -> None:
    budget, payee = world.budget(max_per_day=AMOUNT), world.payee()
    vault = world.member(budget)
    escrow = lock(world, vault, payee.owner, timeout=60)
    world.vm.now = START + DAY + SLOT
    world.vm.succeed(world.payment(vault, payee, AMOUNT))
    world.vm.succeed(world.build.refund_escrow(escrow))
    assert spent(world, budget)[0] == AMOUNT


def test_collecting_needs_no_budget(world: VmWorld) -> None:
    budget, receiver = world.budget(), worker(world)
    escrow = disputed(world, world.member(budget), receiver.vault)
    place(world, receiver.vault, frozen=True)
    world.vm.succeed(decision(world, escrow, 1))
    assert spent(world, budget)[0] == 1
    place(world, receiver.vault, frozen=False)
    world.vm.succeed(world.build.collect_escrow(with_budget(escrow, None), payer=world.stranger))
    assert is_gone(world, escrow)
    assert spent(world, budget)[0] == 1
