"""Budgets of teams in a company's budget: totals, ends, freezes, and charges at both levels."""

from dataclasses import replace
from typing import Any

import pytest
from solders.compute_budget import set_compute_unit_price
from solders.hash import Hash
from solders.instruction import Instruction
from solders.message import Message
from solders.pubkey import Pubkey
from solders.transaction import Transaction

from app.chain.instructions import compute_unit_limit
from app.chain.rules import RULE_ERRORS, RULES, BudgetLimits, Rules
from app.chain.transactions import MAX_SIZE
from idl.codec import Event
from tests.program.test_budgets import spent
from tests.support.vm import CODEC, START
from tests.support.vm_allowances import ALLOWING, MINUTE, delegates_transfer, grant, granting, settling
from tests.support.vm_escrows import close_wallet, completion, creation, decision, dispute, disputed, lock
from tests.support.vm_tokens import USDC
from tests.support.vm_world import NONE, VmWorld

KEY = b"the team's key.."
AMOUNT = 50
YEAR = 366 * 86_400


def total(world: VmWorld, budget: Pubkey) -> int:
    """Return what a budget has spent in its life."""
    spending: int = world.fields(budget)["total_spent"]
    return spending


def freeze(world: VmWorld, budget: Pubkey, signer: Pubkey | None = None) -> Instruction:
    """Return the freeze, by the operator unless `signer` is given."""
    return world.build.freeze_budget(signer=signer or world.operator, budget=budget)


def unfreeze(world: VmWorld, budget: Pubkey, authority: Pubkey | None = None, **given: int) -> Instruction:
    """Return the unfreeze, by the authority unless another key is given."""
    return world.build.unfreeze_budget(authority=authority or world.authority, budget=budget, **given)


@pytest.mark.proves("instruction create_budget")
def test_child_names_its_parent_for_life(world: VmWorld) -> None:
    company = world.budget()
    before = world.fields(company)
    create = world.build.create_budget(
        payer=world.payer, authority=world.authority, key=KEY, limits=BudgetLimits(), parent=company
    )
    result = world.vm.succeed(create)
    team = world.addresses.budget(world.org, KEY)
    assert world.fields(team)["parent"] == company
    assert world.fields(company) == {**before, "budget_count": 1}
    assert result.event.data["parent"] == company


def test_parent_has_the_agreed_version_and_no_parent_itself(world: VmWorld) -> None:
    company = world.budget()
    team, other = world.budget(company), VmWorld(world.vm, org_id="other", mint=world.mint)
    given: dict[str, Any] = {
        "payer": world.payer,
        "authority": world.authority,
        "key": KEY,
        "limits": BudgetLimits(),
    }
    create, refuse = world.build.create_budget, world.vm.refuse
    refuse("BudgetTooDeep", create(**given, parent=team))
    refuse("WrongOrg", create(**given, parent=other.budget()))
    refuse("BudgetParentRequired", create(**given, parent=company, parent_version=None))
    refuse("BudgetParentRequired", create(**given, parent_version=1))
    kept = create(**given, parent=company)
    world.vm.succeed(world.budget_update(company, max_per_day=1))
    refuse("VersionMismatch", kept)


@pytest.mark.proves("instruction close_budget")
def test_budget_with_children_cannot_be_closed(world: VmWorld) -> None:
    company = world.budget()
    team, other = world.budget(company), world.budget()
    world.vm.refuse("BudgetInUse", world.budget_closing(company))
    close: dict[str, Any] = {"authority": world.authority, "budget": team, "rent_receiver": world.payer}
    world.vm.refuse("BudgetParentRequired", world.build.close_budget(**close))
    world.vm.refuse("WrongBudget", world.build.close_budget(**close, parent=other))
    world.vm.succeed(world.build.close_budget(**close, parent=company))
    assert world.fields(company)["budget_count"] == 0
    world.vm.succeed(world.budget_closing(company))


def test_payment_is_charged_to_both_levels_each_at_its_own_time(world: VmWorld) -> None:
    company, payee = world.budget(), world.payee()
    first, second = world.budget(company), world.budget(company)
    world.vm.now = START + 900
    world.vm.succeed(world.payment(world.member(first), payee, AMOUNT))
    world.vm.now = START
    world.vm.succeed(world.payment(world.member(second), payee, AMOUNT))
    assert [spent(world, one) for one in (company, first, second)] == [(100, 100, 2), (50, 50, 1), (50, 50, 1)]
    assert [total(world, one) for one in (company, first, second)] == [100, 50, 50]
    times = [world.fields(one)["ledger"]["last"] for one in (company, first, second)]
    assert times == [START + 900, START + 900, START]


@pytest.mark.parametrize("way", ["payment", "escrow", "allowance", "check"])
def test_spending_needs_exactly_the_budgets_parent(world: VmWorld, way: str) -> None:
    company, payee, delegate = world.budget(), world.payee(), world.vm.key()
    vault, alone = world.member(world.budget(company), ALLOWING), world.member(world.budget(), ALLOWING)

    def spending(vault: Pubkey, **given: Any) -> Instruction:
        match way:
            case "payment":
                return world.payment(vault, payee, **given)
            case "escrow":
                return creation(world, vault, payee.owner, **given)
            case "allowance":
                return granting(world, vault, payee, delegate, **given)
        fixed = {"policy": world.fields(vault)["policy"], "amount": 1, "recipient": payee.owner, "co_signed": False}
        return world.build.check_payment(vault=vault, **{**fixed, **world.budgets_of(vault), **given})

    world.vm.refuse("BudgetParentRequired", spending(vault, budget_parent=None))
    world.vm.refuse("WrongBudget", spending(vault, budget_parent=world.budget()))
    world.vm.refuse("WrongBudget", spending(alone, budget_parent=company))
    world.vm.refuse("BudgetRequired", spending(vault, budget=None, budget_parent=None))
    assert world.vm.simulate(spending(vault)).error is None


@pytest.mark.proves("rule budget_max_total", "rule budget_expired", "rule budget_frozen")
@pytest.mark.parametrize("level", ["team", "company"])
@pytest.mark.parametrize(
    ("rule", "limits", "numbers"),
    [
        ("budget_max_per_day", {"max_per_day": AMOUNT}, (AMOUNT, AMOUNT + 1)),
        ("budget_max_per_month", {"max_per_month": AMOUNT}, (AMOUNT, AMOUNT + 1)),
        ("budget_velocity_cap", {"velocity_cap": 1}, (1, 2)),
        ("budget_max_total", {"max_total": AMOUNT}, (AMOUNT, AMOUNT + 1)),
        ("budget_expired", {"expires_at": START}, (START, START + 1)),
        ("budget_frozen", {}, (0, 0)),
    ],
)
def test_violation_names_the_level_that_refuses(
    world: VmWorld, level: str, rule: str, limits: dict[str, int], numbers: tuple[int, int]
) -> None:
    company = world.budget(**(limits if level == "company" else {}))
    team = world.budget(company, **(limits if level == "team" else {}))
    strict, vault, payee = company if level == "company" else team, world.member(team), world.payee()
    world.vm.succeed(world.payment(vault, payee, AMOUNT))
    if rule == "budget_expired":
        world.vm.now += 1
    if rule == "budget_frozen":
        world.vm.succeed(freeze(world, strict))
    result = world.vm.refuse(RULE_ERRORS[RULES.index(rule)], world.payment(vault, payee, 1))
    assert result.violation is not None
    assert (result.violation.rule_name, result.violation.budget) == (rule, strict)
    assert (result.violation.limit, result.violation.attempted) == numbers
    check = world.check(vault, payee, 1)
    (refusing,) = (one for one in check["rules"] if not one["passed"])
    assert (RULES[refusing["rule"]], refusing["level"]) == (rule, 1 if level == "team" else 2)
    assert (refusing["limit"], refusing["attempted"]) == numbers


def test_preview_has_the_verdicts_of_each_level(world: VmWorld) -> None:
    company = world.budget(max_total=80)
    team, payee = world.budget(company, max_total=60), world.payee()
    vault, other = world.member(team), world.member(world.budget(company))
    world.vm.succeed(world.payment(vault, payee, 10))
    world.vm.succeed(world.payment(other, payee, 30))
    rules = world.check(vault, payee, 5, outstanding_amount=7, outstanding_count=1)["rules"]
    of_budget = [15, 14, 13, 10, 11, 12]
    assert [(one["rule"], one["level"]) for one in rules] == [
        *((rule, 0) for rule in range(9)),
        *((rule, level) for level in (1, 2) for rule in of_budget),
        *((9, 0), (16, 0)),
    ]
    totals = [one for one in rules if RULES[one["rule"]] == "budget_max_total"]
    assert [(one["limit"], one["attempted"], one["headroom"]) for one in totals] == [(60, 22, 43), (80, 52, 33)]
    assert [one["set"] for one in rules if RULES[one["rule"]] == "budget_frozen"] == [True, True]
    # A vault whose budget has no parent has one level less
    assert len(world.check(world.member(company), payee, 5)["rules"]) == 17


def test_waiting_helps_only_until_a_budget_expires(world: VmWorld) -> None:
    payee = world.payee()
    for end, helps in ((START + 3_660, True), (START + 3_659, False)):
        company = world.budget(expires_at=end)
        vault = world.member(world.budget(company, velocity_cap=1))
        world.vm.succeed(world.payment(vault, payee, 1))
        check = world.check(vault, payee, 1)
        assert (check["passed"], check["retry_at"]) == (False, START + 3_660 if helps else None)


def test_total_counts_for_life_and_a_refund_lowers_it(world: VmWorld) -> None:
    company, payee = world.budget(max_total=100, velocity_cap=10), world.payee()
    team = world.budget(company)
    vault = world.member(team)
    escrow = disputed(world, vault, payee.owner, 100)
    world.vm.now += YEAR
    world.vm.refuse("BudgetMaxTotalExceeded", world.payment(vault, payee, 1))
    # The refund lowers the total even after the month of the charge, as it lowers that month's sum
    world.vm.now = START + 60
    world.vm.succeed(decision(world, escrow, 60))
    assert [total(world, one) for one in (company, team)] == [60, 60]
    assert [spent(world, one) for one in (company, team)] == [(60, 60, 1), (60, 60, 1)]
    world.vm.refuse("BudgetMaxTotalExceeded", world.payment(vault, payee, 41))
    world.vm.succeed(world.payment(vault, payee, 40))
    # An update of the limits keeps the total
    world.vm.succeed(world.budget_update(company, max_total=101))
    world.vm.refuse("BudgetMaxTotalExceeded", world.payment(vault, payee, 2))
    world.vm.succeed(world.payment(vault, payee, 1))


def test_held_money_counts_towards_the_total_at_both_levels(world: VmWorld) -> None:
    company, payee, delegate = world.budget(max_total=100), world.payee(), world.vm.key()
    team = world.budget(company)
    vault, other = world.member(team, ALLOWING), world.member(company)
    allowance = grant(world, vault, payee, delegate, 100)
    stored = world.fields(allowance.address)
    assert stored["level_count"] == 2
    assert stored["levels"] == [
        {"budget": one, "created_version": world.fields(one)["created_version"]} for one in (team, company)
    ]
    assert [(total(world, one), world.fields(one)["ledger"]["held"]) for one in (team, company)] == [(0, 100)] * 2
    world.vm.refuse("BudgetMaxTotalExceeded", world.payment(other, payee, 1))
    world.vm.succeed(delegates_transfer(world, allowance, delegate, payee.tokens, 30))
    world.vm.refuse("BudgetParentRequired", settling(world, replace(allowance, budget_parent=None)))
    world.vm.succeed(settling(world, allowance))
    assert [(total(world, one), world.fields(one)["ledger"]["held"]) for one in (team, company)] == [(30, 0)] * 2
    world.vm.refuse("BudgetMaxTotalExceeded", world.payment(other, payee, 71))
    world.vm.succeed(world.payment(other, payee, 70))


def test_escrow_remembers_its_place_at_each_level(world: VmWorld) -> None:
    company, payee = world.budget(), world.payee()
    team = world.budget(company)
    vault, other = world.member(team), world.member(company)
    # Given a company whose ledger is ahead of the team's
    world.vm.now = START + 4 * 900
    world.vm.succeed(world.payment(other, payee, 1))
    world.vm.now = START
    escrow = disputed(world, vault, payee.owner, AMOUNT)
    charged = world.fields(escrow.address)["charged"]
    assert charged["level_count"] == 2
    assert [(one["budget"], one["slot"]) for one in charged["levels"]] == [
        (team, START // 900),
        (company, START // 900 + 4),
    ]
    world.vm.refuse("BudgetParentRequired", decision(world, replace(escrow, budget_parent=None), 0))
    world.vm.refuse("WrongBudget", decision(world, replace(escrow, budget_parent=world.budget()), 0))
    world.vm.succeed(decision(world, escrow, 0))
    assert [spent(world, one)[:2] for one in (team, company)] == [(0, 0), (1, 1)]


@pytest.mark.parametrize("anew", [False, True])
def test_refund_goes_to_each_level_that_is_still_the_same_budget(world: VmWorld, anew: bool) -> None:
    company, payee = world.budget(), world.payee()
    team = world.budget(company)
    vault = world.member(team)
    escrow = disputed(world, vault, payee.owner, AMOUNT)
    world.vm.succeed(world.joining(vault, None))
    key = world.fields(team)["key"]
    world.vm.succeed(world.budget_closing(team))
    if anew:
        create = {"payer": world.payer, "authority": world.authority, "key": key, "limits": BudgetLimits()}
        world.vm.succeed(world.build.create_budget(**create, parent=company))
        world.vm.succeed(world.joining(vault, team))
        world.vm.succeed(world.payment(vault, payee, AMOUNT))
    world.vm.succeed(decision(world, escrow, 0))
    assert total(world, company) == (AMOUNT if anew else 0)
    if anew:
        assert (total(world, team), spent(world, team)[:2]) == (AMOUNT, (AMOUNT, AMOUNT))


@pytest.mark.proves("instruction freeze_budget", "instruction unfreeze_budget")
def test_operator_freezes_a_team_and_the_authority_lifts_it(world: VmWorld) -> None:
    company, payee = world.budget(), world.payee()
    team, others = world.budget(company), world.budget(company)
    vault, other = world.member(team), world.member(others)
    version = world.fields(team)["version"]
    result = world.vm.succeed(freeze(world, team))
    sequence = world.fields(world.org)["sequence"]
    frozen = {"org": world.org, "budget": team, "signer": world.operator, "sequence": sequence}
    assert result.event == Event("BudgetFrozen", frozen)
    fields = world.fields(team)
    assert (fields["frozen"], fields["frozen_sequence"], fields["version"]) == (1, sequence, version)
    world.vm.refuse("AlreadyFrozen", freeze(world, team))
    # No vault below the frozen budget can pay; the rest of the company can
    world.vm.refuse("BudgetFrozen", world.payment(vault, payee))
    world.vm.refuse("BudgetFrozen", creation(world, vault, payee.owner))
    world.vm.succeed(world.payment(other, payee))
    # Only the authority lifts it, naming the freeze
    world.vm.refuse("Unauthorized", unfreeze(world, team, world.operator))
    world.vm.refuse("SequenceMismatch", unfreeze(world, team, expected_sequence=sequence - 1))
    result = world.vm.succeed(unfreeze(world, team))
    lifted = {**frozen, "signer": world.authority, "sequence": sequence + 1}
    assert result.event == Event("BudgetUnfrozen", lifted)
    assert (world.fields(team)["frozen"], world.fields(team)["frozen_sequence"]) == (0, sequence + 1)
    world.vm.refuse("NotFrozen", unfreeze(world, team))
    world.vm.succeed(world.payment(vault, payee))


@pytest.mark.parametrize("role", ["arbiter", "verifier", "session", "stranger"])
def test_other_roles_freeze_no_budget(world: VmWorld, role: str) -> None:
    budget, other = world.budget(), VmWorld(world.vm, org_id="other", mint=world.mint)
    signer = getattr(world, role)
    world.vm.refuse("Unauthorized", freeze(world, budget, signer))
    world.vm.refuse("WrongOrg", freeze(world, other.budget()))
    world.vm.succeed(freeze(world, budget, world.authority))
    world.vm.refuse("Unauthorized", unfreeze(world, budget, signer))


def test_frozen_company_stops_every_team(world: VmWorld) -> None:
    company, payee = world.budget(), world.payee()
    vaults = [world.member(one) for one in (company, world.budget(company), world.budget(company))]
    world.vm.succeed(freeze(world, company))
    for vault in vaults:
        world.vm.refuse("BudgetFrozen", world.payment(vault, payee))


@pytest.mark.parametrize("level", ["team", "company"])
def test_vault_cannot_leave_a_frozen_budget(world: VmWorld, level: str) -> None:
    company, other = world.budget(), world.budget()
    team = world.budget(company)
    vault, empty = world.member(team), world.wallet(funds=0)
    world.vm.succeed(world.joining(empty, team))
    leave = {"signer": world.authority, "vault": vault, "budget": team}
    world.vm.refuse("BudgetParentRequired", world.build.set_wallet_budget(**leave))
    world.vm.succeed(freeze(world, team if level == "team" else company))
    world.vm.refuse("BudgetFrozen", world.joining(vault, None))
    world.vm.refuse("BudgetFrozen", world.joining(vault, other))
    # An archived vault cannot pay, so it may leave
    world.vm.succeed(close_wallet(world, empty))
    assert world.fields(team)["wallet_count"] == 1


@pytest.mark.proves("instruction set_wallet_budget")
def test_attaching_names_the_versions_of_both_levels(world: VmWorld) -> None:
    company = world.budget()
    team, vault, other = world.budget(company), world.wallet(), world.budget()
    build = world.build
    given: dict[str, Any] = {"signer": world.operator, "vault": vault, "new_budget": team}
    world.vm.refuse("BudgetParentRequired", build.set_wallet_budget(**given))
    world.vm.refuse("WrongBudget", build.set_wallet_budget(**given, new_parent=other))
    world.vm.refuse("BudgetParentRequired", build.set_wallet_budget(**given, new_parent=company, parent_version=None))
    kept = build.set_wallet_budget(**given, new_parent=company)
    world.vm.succeed(world.budget_update(company, max_total=1))
    world.vm.refuse("VersionMismatch", kept)
    world.vm.succeed(build.set_wallet_budget(**given, new_parent=company))
    assert (world.fields(team)["wallet_count"], world.fields(company)["wallet_count"]) == (1, 0)


def test_move_between_a_budget_and_its_parent_takes_two_instructions(world: VmWorld) -> None:
    company = world.budget()
    first, second = world.budget(company), world.budget(company)
    below, above = world.member(first), world.member(company)
    world.vm.refuse("ConstraintDuplicateMutableAccount", world.joining(below, company))
    world.vm.refuse("ConstraintDuplicateMutableAccount", world.joining(above, first))
    # A move between two teams of one company takes one
    world.vm.succeed(world.joining(below, second))
    world.vm.succeed(world.joining(below, None))
    world.vm.succeed(world.joining(below, company))
    assert [world.fields(one)["wallet_count"] for one in (company, first, second)] == [2, 0, 0]


def test_expired_budget_refuses_and_settles(world: VmWorld) -> None:
    company, payee = world.budget(max_per_day=1_000, expires_at=START + 60), world.payee()
    team = world.budget(company)
    vault = world.member(team)
    escrow = lock(world, vault, payee.owner, AMOUNT)
    world.vm.now = START + 60
    world.vm.succeed(world.payment(vault, payee, 1))
    world.vm.now += 1
    world.vm.refuse("BudgetExpired", world.payment(vault, payee, 1))
    world.vm.succeed(completion(world, escrow))
    world.vm.succeed(world.budget_update(company, expires_at=START + 61))
    world.vm.succeed(world.payment(vault, payee, 1))


@pytest.mark.parametrize("level", ["team", "company"])
def test_allowance_ends_no_later_than_its_budgets(world: VmWorld, level: str) -> None:
    end = START + MINUTE
    company = world.budget(**({"expires_at": end} if level == "company" else {}))
    team = world.budget(company, **({"expires_at": end} if level == "team" else {}))
    vault, payee, delegate = world.member(team, ALLOWING), world.payee(), world.vm.key()
    world.vm.refuse("InvalidAllowanceTime", granting(world, vault, payee, delegate, expires_at=end + 1))
    grant(world, vault, payee, delegate, expires_at=end)


@pytest.mark.parametrize("level", ["team", "company"])
def test_anyone_settles_an_allowance_of_a_frozen_budget(world: VmWorld, level: str) -> None:
    company, payee = world.budget(), world.payee()
    team = world.budget(company)
    allowance = grant(world, world.member(team, ALLOWING), payee, world.vm.key())
    settle = settling(world, allowance, signer=None)
    world.vm.refuse("AllowanceNotExpired", settle)
    world.vm.succeed(freeze(world, team if level == "team" else company))
    world.vm.succeed(settle)


def test_escrow_of_a_frozen_budget_is_settled_and_disputed_as_ever(world: VmWorld) -> None:
    team, payee = world.budget(world.budget()), world.payee()
    vault = world.member(team)
    paid, refunded = lock(world, vault, payee.owner), lock(world, vault, payee.owner)
    world.vm.succeed(freeze(world, team))
    world.vm.succeed(completion(world, paid))
    world.vm.succeed(dispute(world, refunded))
    world.vm.succeed(decision(world, refunded, 0))


def test_team_and_company_are_written_and_different(world: VmWorld) -> None:
    team = world.budget(world.budget())
    vault, payee = world.member(team), world.payee()
    world.vm.refuse("ConstraintDuplicateMutableAccount", world.payment(vault, payee, budget_parent=team))


def test_largest_payment_fits_into_a_transaction() -> None:
    """Two budgets, an allowlist, an approval used, and the payee's token account opened by another payer."""
    world = VmWorld()
    payee, team = world.payee(), world.budget(world.budget())
    policy = world.policy(Rules(restricted=True, require_co_sign=0, blocked_categories=2), [bytes(payee.owner)])
    vault = world.member(team, policy)
    approval = world.approval(vault, payee, USDC)
    pay = world.payment(vault, payee, USDC, approval=approval, approval_rent_receiver=world.vm.key())
    assert not any(meta.pubkey == CODEC.program_id for index, meta in enumerate(pay.accounts[:-1]) if index != 10)
    opening = world.build.create_token_account(payer=world.payer, owner=payee.owner)
    instructions = [compute_unit_limit(200_000), set_compute_unit_price(1), opening, pay]
    message = Message.new_with_blockhash(instructions, world.payer, Hash.default())
    size = len(bytes(Transaction.new_unsigned(message)))
    assert size <= MAX_SIZE == 1_232
    assert NONE not in {meta.pubkey for meta in pay.accounts}
