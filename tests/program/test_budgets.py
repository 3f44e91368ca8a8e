"""Budgets that vaults share: who makes them, who joins and leaves, and what they refuse."""

from dataclasses import replace
from typing import Any

import pytest
from solders.pubkey import Pubkey

from app.chain.rules import RULE_ERRORS, RULES, BudgetLimits, Rules
from idl.codec import Event
from tests.program.test_wallets import closing
from tests.support.vm import START
from tests.support.vm_tokens import USDC
from tests.support.vm_world import NONE, VmWorld

MINUTE, SLOT, HOUR, DAY = 60, 900, 3_600, 86_400
KEY = b"the team's key.."
FULL = BudgetLimits(max_per_day=5, max_per_month=6, velocity_cap=7, max_total=8, expires_at=START)


def spent(world: VmWorld, budget: Pubkey) -> tuple[int, int, int]:
    """Return what the day, the month and the hour of a budget hold, after checking the sums."""
    ledger: dict[str, Any] = world.fields(budget)["ledger"]
    for window in (ledger["day"], ledger["hour"]):
        assert window["total"] == sum(window["slots"])
    return ledger["day"]["total"], ledger["month_spent"], ledger["hour"]["total"]


@pytest.mark.proves("instruction create_budget", "instruction update_budget", "instruction close_budget")
@pytest.mark.parametrize("limits", [FULL, BudgetLimits(), BudgetLimits(max_per_month=0), BudgetLimits(expires_at=-1)])
def test_new_budget_is_empty_and_reported(world: VmWorld, limits: BudgetLimits) -> None:
    build, sequence = world.build, world.fields(world.org)["sequence"] + 1
    budget = world.addresses.budget(world.org, KEY)
    create = build.create_budget(payer=world.payer, authority=world.authority, key=KEY, limits=limits)
    result = world.vm.succeed(create)
    fields = world.fields(budget)
    assert BudgetLimits.from_account(fields) == limits
    assert (fields["org"], fields["payer"], fields["key"], fields["wallet_count"]) == (world.org, world.payer, KEY, 0)
    assert (fields["version"], fields["created_version"]) == (sequence, sequence)
    assert spent(world, budget) == (0, 0, 0)
    (event,) = result.events
    assert event.name == "BudgetCreated"
    assert BudgetLimits.from_event(event.data.pop("limits")) == limits
    assert event.data == {"org": world.org, "budget": budget, "sequence": sequence, "key": KEY, "parent": NONE}
    world.vm.refuse("System:0", create)


@pytest.mark.proves("instruction create_budget", "instruction update_budget", "instruction close_budget")
def test_update_replaces_all_limits_and_keeps_what_was_spent(world: VmWorld) -> None:
    budget = world.budget(max_per_day=5, max_per_month=6)
    vault, payee = world.member(budget), world.payee()
    world.vm.succeed(world.payment(vault, payee, 5))
    before = world.fields(budget)
    result = world.vm.succeed(world.budget_update(budget, velocity_cap=1))
    after = world.fields(budget)
    assert BudgetLimits.from_account(after) == BudgetLimits(velocity_cap=1)
    assert after["ledger"] == before["ledger"]
    assert after["version"] == world.fields(world.org)["sequence"] > before["version"]
    assert after["created_version"] == before["created_version"]
    (event,) = result.events
    assert event.name == "BudgetUpdated"
    assert BudgetLimits.from_event(event.data.pop("limits")) == BudgetLimits(velocity_cap=1)
    assert event.data == {"org": world.org, "budget": budget, "sequence": after["version"]}
    world.vm.refuse("BudgetVelocityCapExceeded", world.payment(vault, payee, 1))


def test_update_expects_the_version_that_it_was_made_from(world: VmWorld) -> None:
    budget = world.budget()
    stale = world.budget_update(budget, max_per_day=1)
    world.vm.succeed(world.budget_update(budget, max_per_day=2))
    world.vm.refuse("VersionMismatch", stale)
    # Nor does an update of a closed budget pass for one created anew under its key
    key = world.fields(budget)["key"]
    late = world.budget_update(budget, max_per_day=3)
    world.vm.succeed(world.budget_closing(budget))
    anew = world.build.create_budget(payer=world.payer, authority=world.authority, key=key, limits=FULL)
    world.vm.succeed(anew)
    world.vm.refuse("VersionMismatch", late)


@pytest.mark.parametrize("role", ["operator", "arbiter", "verifier", "session", "stranger"])
def test_only_the_authority_manages_budgets(world: VmWorld, role: str) -> None:
    signer, budget, build = getattr(world, role), world.budget(), world.build
    world.vm.refuse("Unauthorized", build.create_budget(payer=world.payer, authority=signer, key=KEY, limits=FULL))
    version = world.fields(budget)["version"]
    update = build.update_budget(authority=signer, budget=budget, expected_version=version, limits=FULL)
    world.vm.refuse("Unauthorized", update)
    world.vm.refuse("Unauthorized", build.close_budget(authority=signer, budget=budget, rent_receiver=world.payer))


@pytest.mark.proves("instruction create_budget", "instruction update_budget", "instruction close_budget")
def test_close_returns_the_rent_once_no_vault_is_left(world: VmWorld) -> None:
    budget = world.budget()
    vault = world.member(budget)
    world.vm.refuse("BudgetInUse", world.budget_closing(budget))
    world.vm.succeed(world.joining(vault, None))
    rent, before = world.vm.lamports(budget), world.vm.lamports(world.payer)
    elsewhere = world.build.close_budget(authority=world.authority, budget=budget, rent_receiver=world.stranger)
    world.vm.refuse("WrongRentReceiver", elsewhere)
    result = world.vm.succeed(world.budget_closing(budget))
    assert not world.vm.exists(budget)
    assert world.vm.lamports(world.payer) == before + rent
    sequence = world.fields(world.org)["sequence"]
    assert result.event == Event("BudgetClosed", {"org": world.org, "budget": budget, "sequence": sequence})


@pytest.mark.proves("instruction set_wallet_budget")
def test_vault_joins_moves_and_leaves(world: VmWorld) -> None:
    vault, first, second = world.wallet(), world.budget(), world.budget()
    sequence = world.fields(vault)["sequence"]
    for number, (previous, budget, signer) in enumerate(
        [
            (None, first, world.operator),
            (first, second, world.authority),
            (second, None, world.authority),
            (None, first, world.operator),
        ],
        start=1,
    ):
        result = world.vm.succeed(world.joining(vault, budget))
        assert world.budget_of(vault) == budget
        expected = {"org": world.org, "vault": vault, "sequence": sequence + number, "signer": signer}
        expected |= {"budget": budget or NONE, "previous": previous or NONE}
        assert result.event == Event("WalletBudgetSet", expected)
        assert [world.fields(one)["wallet_count"] for one in (first, second)] == [budget == first, budget == second]


@pytest.mark.proves("instruction set_wallet_budget")
@pytest.mark.parametrize("role", ["operator", "authority", "arbiter", "session", "stranger"])
def test_operator_attaches_the_first_budget_and_the_authority_others(world: VmWorld, role: str) -> None:
    signer, build = getattr(world, role), world.build
    free, budget, other = world.wallet(), world.budget(), world.budget()
    bound = world.member(budget)
    attach = build.set_wallet_budget(signer=signer, vault=free, new_budget=budget)
    move = build.set_wallet_budget(signer=signer, vault=bound, budget=budget, new_budget=other)
    leave = build.set_wallet_budget(signer=signer, vault=bound, budget=budget)
    for call, allowed in [(attach, "operator"), (move, "authority"), (leave, "authority")]:
        if role == allowed:
            assert world.vm.simulate(call).error is None
        else:
            world.vm.refuse("Unauthorized", call)


def test_first_budget_needs_the_authority_where_only_it_attaches(world: VmWorld) -> None:
    vault, budget, build = world.wallet(), world.budget(), world.build
    world.vm.succeed(world.org_update(authority_attaches=True))
    world.vm.refuse("AuthorityRequired", world.joining(vault, budget))
    with_signer = {"signer": world.operator, "vault": vault, "new_budget": budget}
    world.vm.refuse("Unauthorized", build.set_wallet_budget(**with_signer, authority=world.stranger))
    world.vm.succeed(build.set_wallet_budget(**with_signer, authority=world.authority))


def test_vaults_own_budget_is_needed_to_join_another(world: VmWorld) -> None:
    budget, other, build = world.budget(), world.budget(), world.build
    bound, free = world.member(budget), world.wallet()
    operator, authority = world.operator, world.authority
    for signer in (operator, authority):
        world.vm.refuse("BudgetRequired", build.set_wallet_budget(signer=signer, vault=bound, new_budget=other))
    refuse = world.vm.refuse
    refuse("WrongBudget", build.set_wallet_budget(signer=authority, vault=bound, budget=other, new_budget=budget))
    refuse("WrongBudget", build.set_wallet_budget(signer=authority, vault=free, budget=budget, new_budget=other))
    refuse("BudgetRequired", build.set_wallet_budget(signer=operator, vault=free))
    again = build.set_wallet_budget(signer=authority, vault=bound, budget=budget, new_budget=budget)
    refuse("ConstraintDuplicateMutableAccount", again)


def test_archived_vault_leaves_its_budget(world: VmWorld) -> None:
    budget = world.budget()
    vault, other = world.wallet(funds=0), world.budget()
    world.vm.succeed(world.joining(vault, budget))
    close = {
        "operator": world.operator,
        "vault": vault,
        "policy": world.fields(vault)["policy"],
        "rent_receiver": world.payer,
    }
    world.vm.refuse("BudgetRequired", world.build.close_wallet(**close))
    world.vm.refuse("WrongBudget", world.build.close_wallet(**close, budget=other))
    world.vm.succeed(world.build.close_wallet(**close, budget=budget))
    assert world.fields(budget)["wallet_count"] == 0
    world.vm.succeed(world.budget_closing(budget))


def test_payment_needs_exactly_the_vaults_budget(world: VmWorld) -> None:
    budget, other = world.budget(), world.budget()
    bound, free, payee = world.member(budget), world.wallet(), world.payee()
    world.vm.refuse("BudgetRequired", world.payment(bound, payee, budget=None))
    world.vm.refuse("WrongBudget", world.payment(bound, payee, budget=other))
    world.vm.refuse("WrongBudget", world.payment(free, payee, budget=budget))
    world.vm.refuse("AccountDataTooSmall", world.payment(free, payee, budget=NONE))
    # A budget that was closed and created anew is the vault's again only when it is attached again
    world.vm.succeed(world.payment(bound, payee))
    assert world.fields(budget)["ledger"]["day"]["total"] == USDC


def test_payment_is_charged_to_vault_and_budget(world: VmWorld) -> None:
    budget = world.budget(max_per_day=100, max_per_month=100, velocity_cap=10)
    vaults, payee = [world.member(budget) for _ in range(2)], world.payee()
    for vault, amount in zip([*vaults, *vaults], (10, 20, 30, 40), strict=True):
        world.vm.succeed(world.payment(vault, payee, amount))
    assert spent(world, budget) == (100, 100, 4)
    assert [world.fields(vault)["ledger"]["day"]["total"] for vault in vaults] == [40, 60]


@pytest.mark.proves("rule budget_max_per_day", "rule budget_max_per_month", "rule budget_velocity_cap")
@pytest.mark.parametrize(
    ("limits", "rule", "attempted"),
    [
        ({"max_per_day": 50}, "budget_max_per_day", 51),
        ({"max_per_month": 50}, "budget_max_per_month", 51),
        ({"velocity_cap": 2}, "budget_velocity_cap", 3),
    ],
)
def test_each_limit_holds_over_all_vaults(world: VmWorld, limits: dict[str, int], rule: str, attempted: int) -> None:
    budget = world.budget(**limits)
    vaults, payee = [world.member(budget) for _ in range(3)], world.payee()
    for vault in vaults[:2]:
        world.vm.succeed(world.payment(vault, payee, 25))
    for vault in vaults:
        result = world.vm.refuse(RULE_ERRORS[RULES.index(rule)], world.payment(vault, payee, 1))
        assert result.violation is not None
        assert (result.violation.rule_name, result.violation.limit) == (rule, next(iter(limits.values())))
        assert (result.violation.attempted, result.violation.vault) == (attempted, vault)
        assert result.violation.budget == budget


def test_budget_is_judged_after_the_month_and_before_the_co_signature(world: VmWorld) -> None:
    payee, budget = world.payee(), world.budget(max_per_day=0, max_per_month=0, velocity_cap=0)
    vault = world.member(budget, Rules(max_per_month=0, require_co_sign=0))
    policy, refuse = world.fields(vault)["policy"], world.vm.refuse
    refuse("MaxPerMonthExceeded", world.payment(vault, payee, 1))
    world.update_policy(policy, Rules(require_co_sign=0))
    refuse("BudgetMaxPerDayExceeded", world.payment(vault, payee, 1))
    world.vm.succeed(world.budget_update(budget, max_per_month=0, velocity_cap=0))
    refuse("BudgetMaxPerMonthExceeded", world.payment(vault, payee, 1))
    world.vm.succeed(world.budget_update(budget, velocity_cap=0))
    refuse("BudgetVelocityCapExceeded", world.payment(vault, payee, 1))
    world.vm.succeed(world.budget_update(budget))
    refuse("CoSignRequired", world.payment(vault, payee, 1))


def test_each_ledger_has_its_own_time(world: VmWorld) -> None:
    budget, payee = world.budget(max_per_day=50), world.payee()
    ahead, behind = world.member(budget), world.member(budget)
    # Given a vault whose last payment is two days ahead of the clock, made before it joined
    world.vm.succeed(world.joining(ahead, None))
    world.vm.now = START + 2 * DAY
    world.vm.succeed(world.payment(ahead, payee, 1))
    world.vm.now = START
    world.vm.succeed(world.joining(ahead, budget))
    # When both pay, then the budget counts both now, and the vault where it is
    world.vm.succeed(world.payment(behind, payee, 25))
    world.vm.succeed(world.payment(ahead, payee, 25))
    assert world.fields(budget)["ledger"]["last"] == START
    assert world.fields(ahead)["ledger"]["last"] == START + 2 * DAY
    world.vm.refuse("BudgetMaxPerDayExceeded", world.payment(behind, payee, 1))
    # And a clock that steps back makes no room
    world.vm.now = START - 2 * DAY
    world.vm.refuse("BudgetMaxPerDayExceeded", world.payment(behind, payee, 1))
    world.vm.now = START + DAY + SLOT
    world.vm.succeed(world.payment(behind, payee, 50))


def test_what_was_spent_does_not_move_with_the_vault(world: VmWorld) -> None:
    first, second = world.budget(max_per_day=50), world.budget(max_per_day=50)
    vault, payee = world.member(first), world.payee()
    world.vm.succeed(world.payment(vault, payee, 50))
    world.vm.succeed(world.joining(vault, second))
    world.vm.succeed(world.payment(vault, payee, 50))
    assert (spent(world, first)[0], spent(world, second)[0]) == (50, 50)
    # Coming back, it finds the budget as it left it
    world.vm.succeed(world.joining(vault, first))
    world.vm.refuse("BudgetMaxPerDayExceeded", world.payment(vault, payee, 1))


def test_budget_closed_and_created_anew_has_an_empty_ledger(world: VmWorld) -> None:
    budget = world.budget(max_per_day=50)
    vault, payee = world.member(budget), world.payee()
    world.vm.succeed(world.payment(vault, payee, 50))
    key, created = world.fields(budget)["key"], world.fields(budget)["created_version"]
    world.vm.succeed(world.joining(vault, None))
    world.vm.succeed(world.budget_closing(budget))
    limits = BudgetLimits(max_per_day=7)
    anew = world.build.create_budget(payer=world.payer, authority=world.authority, key=key, limits=limits)
    world.vm.succeed(anew)
    assert world.fields(budget)["created_version"] > created
    world.vm.refuse("WrongBudget", world.payment(vault, payee, 1, budget=budget))
    world.vm.succeed(world.joining(vault, budget))
    world.vm.refuse("BudgetMaxPerDayExceeded", world.payment(vault, payee, 8))


def test_preview_gives_the_budgets_verdicts_before_the_co_signature(world: VmWorld) -> None:
    budget, payee = world.budget(max_per_day=50, max_per_month=60, velocity_cap=2), world.payee()
    vault, other = world.member(budget, Rules(require_co_sign=1)), world.member(budget)
    world.vm.succeed(world.payment(other, payee, 30))
    check = world.check(vault, payee, 25, co_signed=True)
    assert [rule["rule"] for rule in check["rules"]][-8:] == [15, 14, 13, 10, 11, 12, 9, 16]
    numbers = [(one["passed"], one["limit"], one["attempted"], one["headroom"]) for one in check["rules"][-5:-2]]
    assert numbers == [(False, 50, 55, 20), (True, 60, 55, 30), (True, 2, 2, 1)]
    assert (check["passed"], check["retry_at"]) == (False, START + SLOT + DAY)
    world.vm.now = START + SLOT + DAY - 1
    co_signed = {"co_signer": world.operator}
    world.vm.refuse("BudgetMaxPerDayExceeded", world.payment(vault, payee, 25, **co_signed))
    world.vm.now += 1
    world.vm.succeed(world.payment(vault, payee, 25, **co_signed))


def test_preview_needs_exactly_the_vaults_budget(world: VmWorld) -> None:
    budget, payee = world.budget(), world.payee()
    bound, free = world.member(budget), world.wallet()
    for vault, given, error in [
        (bound, None, "BudgetRequired"),
        (bound, world.budget(), "WrongBudget"),
        (free, budget, "WrongBudget"),
    ]:
        policy = world.fields(vault)["policy"]
        fixed: dict[str, Any] = {"amount": 1, "recipient": payee.owner, "co_signed": False}
        world.vm.refuse(error, world.build.check_payment(policy=policy, vault=vault, budget=given, **fixed))


@pytest.mark.parametrize(
    ("limits", "rule"),
    [
        ({"max_per_day": 50}, "max_per_day"),
        ({"max_per_month": 50}, "max_per_month"),
        ({"velocity_cap": 2}, "velocity_cap"),
    ],
)
@pytest.mark.parametrize("of_budget", [False, True])
def test_preview_counts_what_is_outstanding_as_if_it_were_paid(
    world: VmWorld, limits: dict[str, int], rule: str, of_budget: bool
) -> None:
    payee = world.payee()
    budget = world.budget(**(limits if of_budget else {}))
    vault = world.member(budget, Rules() if of_budget else replace(Rules(), **limits))  # type: ignore[arg-type] # by name
    name = f"budget_{rule}" if of_budget else rule
    before = world.vm.state()

    def failed(amount: int, **outstanding: Any) -> list[str]:
        rules = world.check(vault, payee, amount, **outstanding)["rules"]
        return [RULES[one["rule"]] for one in rules if not one["passed"]]

    assert failed(25, outstanding_amount=25, outstanding_count=1) == []
    assert failed(25, outstanding_amount=26, outstanding_count=2) == [name]
    assert world.vm.state() == before
    # As if paid: the payment itself finds the same
    assert failed(25) == []
    world.vm.succeed(world.payment(vault, payee, 13))
    world.vm.succeed(world.payment(vault, payee, 13))
    assert failed(25) == [name]


def test_preview_of_a_sum_that_does_not_fit_is_refused(world: VmWorld) -> None:
    vault, payee = world.wallet(), world.payee()
    world.vm.succeed(world.payment(vault, payee, 1))
    check = world.build.check_payment(
        policy=world.fields(vault)["policy"],
        vault=vault,
        amount=1,
        recipient=payee.owner,
        co_signed=False,
        outstanding_amount=2**64 - 1,
        outstanding_count=1,
    )
    world.vm.refuse("Overflow", check)


def test_budgets_of_other_organisations_are_refused(world: VmWorld) -> None:
    other = VmWorld(world.vm, org_id="other", mint=world.mint)
    vault, payee, theirs = world.wallet(), world.payee(), other.budget()
    world.vm.refuse("WrongOrg", world.build.set_wallet_budget(signer=world.operator, vault=vault, new_budget=theirs))
    world.vm.refuse("WrongBudget", world.payment(vault, payee, budget=theirs))
    world.vm.refuse(
        "WrongOrg", world.build.close_budget(authority=world.authority, budget=theirs, rent_receiver=other.payer)
    )
    version = other.fields(theirs)["version"]
    update = world.build.update_budget(authority=world.authority, budget=theirs, expected_version=version, limits=FULL)
    world.vm.refuse("WrongOrg", update)


def test_every_payment_of_a_vault_in_a_budget_costs_its_account(world: VmWorld) -> None:
    # A read-only account cannot be charged
    budget = world.budget()
    vault, payee = world.member(budget), world.payee()
    payment = world.payment(vault, payee)
    metas = [
        meta if meta.pubkey != budget else type(meta)(budget, is_signer=False, is_writable=False)
        for meta in payment.accounts
    ]
    world.vm.refuse("ConstraintMut", type(payment)(payment.program_id, payment.data, metas))


def test_vault_without_a_budget_is_archived_as_before(world: VmWorld) -> None:
    vault = world.wallet(funds=0)
    world.vm.succeed(closing(world, vault))
