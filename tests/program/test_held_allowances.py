"""Money of allowances counts towards the limits of day and month until each allowance is settled."""

from dataclasses import replace

import pytest
from solders.pubkey import Pubkey

from app.chain.rules import Rules
from tests.program.test_budgets import spent
from tests.support.vm_allowances import ALLOWING, AMOUNT, delegates_transfer, grant, settling
from tests.support.vm_escrows import DAY
from tests.support.vm_world import Payee, VmWorld

CAPPED = replace(ALLOWING, max_per_day=AMOUNT)
FEBRUARY = 1_801_440_000


def held(world: VmWorld, *owners: Pubkey) -> list[int]:
    """Return the held money in the ledgers of vaults and budgets."""
    return [world.fields(owner)["ledger"]["held"] for owner in owners]


def verdict(world: VmWorld, vault: Pubkey, payee: Payee, amount: int, rule: int) -> tuple[bool, int, int | None]:
    """Return a rule's verdict on a payment: passed, headroom and time of retry."""
    (found,) = (one for one in world.check(vault, payee, amount)["rules"] if one["rule"] == rule)
    return found["passed"], found["headroom"], found["retry_at"]


def test_allowances_of_several_days_cannot_leave_at_once(world: VmWorld) -> None:
    vault, payee, delegate = world.wallet(CAPPED), world.payee(), world.vm.key()
    allowance = grant(world, vault, payee, delegate)
    # Nobody settles it, and the day of its grant passes
    world.vm.now += 2 * DAY
    payments = [world.payment(vault, payee, 1), delegates_transfer(world, allowance, delegate, payee.tokens)]
    world.vm.refuse("MaxPerDayExceeded", *payments)
    world.vm.succeed(payments[1])
    world.vm.refuse("MaxPerDayExceeded", payments[0])
    world.vm.succeed(settling(world, allowance))
    # It counts from its settlement on, because only that shows what was spent
    assert (spent(world, vault)[0], held(world, vault)) == (AMOUNT, [0])
    world.vm.refuse("MaxPerDayExceeded", payments[0])
    world.vm.now += 2 * DAY
    world.vm.succeed(payments[0])


def test_held_money_counts_in_the_month_of_its_settlement(world: VmWorld) -> None:
    vault, payee, delegate = world.wallet(replace(ALLOWING, max_per_month=AMOUNT)), world.payee(), world.vm.key()
    world.vm.now = FEBRUARY - 60
    allowance = grant(world, vault, payee, delegate)
    world.vm.now = FEBRUARY + 60
    world.vm.refuse("MaxPerMonthExceeded", world.payment(vault, payee, 1))
    world.vm.succeed(delegates_transfer(world, allowance, delegate, payee.tokens, AMOUNT - 1))
    world.vm.succeed(settling(world, allowance))
    assert spent(world, vault) == (AMOUNT - 1, AMOUNT - 1, 1)
    world.vm.succeed(world.payment(vault, payee, 1))
    world.vm.refuse("MaxPerMonthExceeded", world.payment(vault, payee, 1))


def test_vault_and_budget_hold_and_release_the_same(world: VmWorld) -> None:
    budget = world.budget(max_per_day=2 * AMOUNT)
    vault, other = world.member(budget, ALLOWING), world.member(budget, ALLOWING)
    payee, delegate = world.payee(), world.vm.key()
    allowance = grant(world, vault, payee, delegate)
    second = grant(world, other, payee, delegate)
    assert held(world, vault, other, budget) == [AMOUNT, AMOUNT, 2 * AMOUNT]
    assert spent(world, budget) == (0, 0, 2)
    world.vm.refuse("BudgetMaxPerDayExceeded", world.payment(vault, payee, 1))
    world.vm.succeed(world.joining(vault, None), delegates_transfer(world, allowance, delegate, payee.tokens, 2))
    world.vm.succeed(settling(world, allowance), settling(world, second))
    assert held(world, vault, other, budget) == [0, 0, 0]
    assert (spent(world, budget), spent(world, vault)) == ((2, 2, 2), (2, 2, 1))


@pytest.mark.parametrize("rules", [CAPPED, replace(ALLOWING, max_per_month=AMOUNT)])
def test_refusal_by_held_money_names_no_time(world: VmWorld, rules: Rules) -> None:
    rule = 7 if rules.max_per_day else 8
    vault, payee = world.wallet(rules), world.payee()
    grant(world, vault, payee, world.vm.key(), 3)
    assert verdict(world, vault, payee, AMOUNT - 3, rule) == (True, AMOUNT - 3, world.vm.now)
    assert verdict(world, vault, payee, AMOUNT - 2, rule) == (False, AMOUNT - 3, None)
    assert world.check(vault, payee, AMOUNT - 2)["retry_at"] is None


def test_settlement_after_a_new_limit_is_not_judged(world: VmWorld) -> None:
    vault, payee, delegate = world.wallet(CAPPED), world.payee(), world.vm.key()
    allowance = grant(world, vault, payee, delegate)
    world.update_policy(world.fields(vault)["policy"], replace(CAPPED, max_per_day=1))
    world.vm.succeed(delegates_transfer(world, allowance, delegate, payee.tokens))
    world.vm.succeed(settling(world, allowance))
    assert (spent(world, vault)[0], held(world, vault)) == (AMOUNT, [0])
