"""Allowances: money set aside for a delegate, granted by the operator and judged as a payment."""

from dataclasses import replace
from typing import Any

import pytest
from solders.pubkey import Pubkey

from app.chain.addresses import TOKEN_2022_PROGRAM, TOKEN_PROGRAM, domain_hash
from app.chain.rules import Rules, category_bits
from idl.codec import Event
from tests.program.test_budgets import spent
from tests.support.vm_allowances import (
    ALLOWING,
    AMOUNT,
    LONGEST,
    MINUTE,
    MOST,
    REFERENCE,
    delegates_transfer,
    grant,
    granting,
    next_allowance,
    settling,
    tokens_of,
    unsigned,
)
from tests.support.vm_escrows import FUNDS, close_wallet, creation, terms, worker
from tests.support.vm_tokens import USDC, mint_data, place_token_account, token_account_data
from tests.support.vm_world import NONE, OPEN, Payee, VmWorld

PROGRAMS = [TOKEN_PROGRAM, TOKEN_2022_PROGRAM]


def allowing(**rules: Any) -> Rules:
    """Return rules that allow allowances."""
    return replace(ALLOWING, **rules)


def figures(world: VmWorld, vault: Pubkey) -> tuple[int, int, int]:
    """Return what the day, the month and the hour of a vault hold."""
    return spent(world, vault)


@pytest.mark.proves("instruction grant_allowance")
@pytest.mark.parametrize("token_program", PROGRAMS)
def test_granted_amount_is_set_aside_for_the_delegate(token_program: Pubkey) -> None:
    world = VmWorld(token_program=token_program)
    vault, payee, delegate = world.wallet(ALLOWING), world.payee(), world.vm.key()
    allowance = grant(world, vault, payee, delegate)
    # It is in a token account of the vault's with the delegate for exactly the amount, and nobody who could close it
    expected = token_account_data(world.mint, vault, AMOUNT, delegate=delegate)
    assert world.vm.data(tokens_of(world, allowance)) == expected
    # The vault's own never has a delegate
    own = token_account_data(world.mint, vault, FUNDS - AMOUNT)
    assert world.vm.data(world.tokens_of(vault))[: len(own)] == own
    # The delegate pays with a transfer of the token program alone
    result = world.vm.succeed(delegates_transfer(world, allowance, delegate, payee.tokens))
    assert (world.balance(payee.tokens), result.events) == (AMOUNT, [])
    more = world.vm.send(delegates_transfer(world, allowance, delegate, payee.tokens, 1))
    assert more.error in {"Token:1", "Token2022:1"}


def test_grant_is_stored_and_reported(world: VmWorld) -> None:
    vault, payee, delegate = world.wallet(ALLOWING), world.payee(), world.vm.key()
    allowance, before = next_allowance(world, vault), world.fields(vault)
    result = world.vm.succeed(granting(world, vault, payee, delegate))
    stored, now = world.fields(allowance.address), world.vm.now
    shared = {
        "org": world.org,
        "vault": vault,
        "policy": before["policy"],
        "recipient": payee.owner,
        "destination": payee.tokens,
        "delegate": delegate,
        "tokens": tokens_of(world, allowance),
        "payer": world.payer,
        "reference": REFERENCE,
        "counter": 0,
        "amount": AMOUNT,
        "policy_version": world.fields(before["policy"])["version"],
        "expires_at": now + MINUTE,
    }
    own = {"level_count": 0, "levels": [{"budget": NONE, "created_version": 0}] * 2, "granted_at": now}
    own |= {"bump": stored["bump"], "layout": 1, "padding": bytes(6)}
    assert stored == {**shared, **own}
    assert result.event == Event(
        "AllowanceGranted",
        {
            **shared,
            "allowance": allowance.address,
            "signer": world.session,
            "approval": NONE,
            "budget": NONE,
            "sequence": before["sequence"] + 1,
            "balance": FUNDS - AMOUNT,
            "timestamp": now,
            "co_signed": 0,
            "by_session": 1,
            "payee": 0,
            "reserved": bytes(5),
        },
    )
    after = world.fields(vault)
    assert (after["open_allowances"], after["allowance_counter"]) == (1, 1)
    assert after["escrow_counter"] == before["escrow_counter"]
    assert (figures(world, vault), after["ledger"]["held"]) == ((0, 0, 1), AMOUNT)


def test_policies_permit_allowances_only_by_their_flag(world: VmWorld) -> None:
    payee, delegate = world.payee(), world.vm.key()
    for preset in ("conservative", "moderate", "permissive", "locked"):
        fields = world.fields(world.addresses.preset(world.org, f"pol_{preset}"))
        assert not Rules.from_account(fields).allow_allowances
    vault = world.wallet(OPEN)
    policy = world.fields(vault)["policy"]
    world.vm.refuse("AllowancesNotAllowed", granting(world, vault, payee, delegate))
    world.update_policy(policy, ALLOWING)
    assert Rules.from_account(world.fields(policy)) == ALLOWING
    allowance = grant(world, vault, payee, delegate)
    world.update_policy(policy, OPEN)
    assert Rules.from_account(world.fields(policy)) == OPEN
    world.vm.refuse("AllowancesNotAllowed", granting(world, vault, payee, delegate))
    # What is outstanding can still be settled
    world.vm.succeed(settling(world, allowance))


@pytest.mark.proves("instruction grant_allowance")
def test_session_key_alone_cannot_grant(world: VmWorld) -> None:
    vault, payee, delegate = world.wallet(ALLOWING), world.payee(), world.vm.key()
    valid = granting(world, vault, payee, delegate)
    world.vm.refuse("MissingRequiredSignature", unsigned(valid, world.operator))
    for role in ("session", "authority", "arbiter", "verifier", "stranger"):
        world.vm.refuse("Unauthorized", granting(world, vault, payee, delegate, operator=getattr(world, role)))
    # Nor can an operator whose role has ended
    world.vm.succeed(world.org_update(operator=world.stranger))
    world.vm.refuse("Unauthorized", valid)


def test_operator_grants_with_the_session_authority_or_alone(world: VmWorld) -> None:
    vault, payee, delegate = world.wallet(ALLOWING), world.payee(), world.vm.key()
    for role in ("authority", "arbiter", "verifier", "stranger"):
        world.vm.refuse("Unauthorized", granting(world, vault, payee, delegate, signer=getattr(world, role)))
    valid = granting(world, vault, payee, delegate)
    world.vm.refuse("MissingRequiredSignature", unsigned(valid, world.session))
    result = world.vm.succeed(granting(world, vault, payee, delegate, signer=world.operator))
    assert (result.event.data["signer"], result.event.data["by_session"]) == (world.operator, 0)
    world.vm.succeed(granting(world, vault, payee, delegate))


def test_operators_signature_is_no_co_signature(world: VmWorld) -> None:
    vault, payee, delegate = world.wallet(allowing(require_co_sign=USDC)), world.payee(), world.vm.key()
    world.vm.succeed(granting(world, vault, payee, delegate, USDC))
    refused = world.vm.refuse("CoSignRequired", granting(world, vault, payee, delegate, USDC + 1))
    assert refused.violation is not None
    assert (refused.violation.rule_name, refused.violation.attempted) == ("require_co_sign", USDC + 1)
    # A payment of the same amount passes with it
    world.vm.succeed(world.payment(vault, payee, USDC + 1, co_signer=world.operator))
    # Nor can the operator grant above the threshold alone, with an approval or without
    approval = world.approval(vault, payee, USDC + 1, kind="Allowance")
    for options in ({}, {"approval": approval}):
        alone = granting(world, vault, payee, delegate, USDC + 1, signer=world.operator, **options)
        world.vm.refuse("CoSignRequired", alone)


def test_above_the_threshold_only_an_approval_of_its_kind_counts(world: VmWorld) -> None:
    vault, delegate, receiver = world.wallet(allowing(require_co_sign=USDC)), world.vm.key(), worker(world)
    payee, other = Payee(receiver.vault, receiver.tokens), world.payee()
    before = world.vm.lamports(world.payer)
    to_pay = world.approval(vault, payee, AMOUNT)
    to_lock = world.approval(vault, payee, AMOUNT, kind="Escrow", terms=terms(world))
    to_grant = world.approval(vault, payee, AMOUNT, kind="Allowance")
    assert [world.fields(approval)["kind"] for approval in (to_pay, to_lock, to_grant)] == [0, 1, 2]
    for approval in (to_pay, to_lock):
        world.vm.refuse("WrongApproval", granting(world, vault, payee, delegate, approval=approval))
    world.vm.refuse("WrongApproval", world.payment(vault, payee, AMOUNT, approval=to_grant))
    world.vm.refuse("WrongApproval", creation(world, vault, receiver.vault, AMOUNT, approval=to_grant))
    world.vm.refuse("WrongApproval", granting(world, vault, payee, delegate, AMOUNT - 1, approval=to_grant))
    world.vm.refuse("WrongApproval", granting(world, vault, other, delegate, approval=to_grant))
    stranger: dict[str, Any] = {"approval": to_grant, "approval_rent_receiver": world.stranger}
    world.vm.refuse("WrongRentReceiver", granting(world, vault, payee, delegate, **stranger))
    caller = world.vm.key(10**9)
    result = world.vm.succeed(granting(world, vault, payee, delegate, approval=to_grant, payer=caller))
    assert (result.event.data["approval"], result.event.data["co_signed"]) == (to_grant, 1)
    world.vm.refuse("AccountDataTooSmall", granting(world, vault, payee, delegate, approval=to_grant))
    world.vm.succeed(world.payment(vault, payee, AMOUNT, approval=to_pay))
    world.vm.succeed(creation(world, vault, receiver.vault, AMOUNT, approval=to_lock, payer=caller))
    assert not any(map(world.vm.exists, (to_pay, to_lock, to_grant)))
    assert world.vm.lamports(world.payer) == before


RULES: dict[str, dict[str, Any]] = {
    "PolicyExpired": {"expiry": 0},
    "RecipientNotAllowed": {"restricted": True},
    "CategoryBlocked": {"blocked_categories": category_bits(["uncategorized"])},
    "MaxPerTxExceeded": {"max_per_tx": AMOUNT - 1},
    "VelocityCapExceeded": {"velocity_cap": 0},
    "MaxPerDayExceeded": {"max_per_day": AMOUNT - 1},
    "MaxPerMonthExceeded": {"max_per_month": AMOUNT - 1},
    "CoSignRequired": {"require_co_sign": AMOUNT - 1},
}


@pytest.mark.proves("instruction grant_allowance")
@pytest.mark.parametrize("error", RULES)
def test_each_rule_refuses_a_grant_as_it_does_a_payment(world: VmWorld, error: str) -> None:
    vault, payee, delegate = world.wallet(allowing(**RULES[error])), world.payee(), world.vm.key()
    paid = world.vm.refuse(error, world.payment(vault, payee, AMOUNT))
    granted = world.vm.refuse(error, granting(world, vault, payee, delegate))
    assert granted.violation == paid.violation
    assert granted.violation is not None


def test_recipient_is_judged_by_what_is_attested_about_the_owner(world: VmWorld) -> None:
    # Given a policy that lists a domain and blocks a category
    rules = allowing(restricted=True, blocked_categories=category_bits(["gambling"]))
    policy = world.policy(rules, [domain_hash("shop.example")])
    vault, payee, delegate = world.wallet(policy), world.payee(), world.vm.key()
    # Then the owner of the destination needs the domain's attestation, in another category
    world.vm.refuse("RecipientNotAllowed", granting(world, vault, payee, delegate))
    world.vm.succeed(world.registration(payee.owner, 8, "shop.example", signer=world.authority))
    world.vm.refuse("CategoryBlocked", granting(world, vault, payee, delegate))
    world.vm.refuse("RecipientAccountRequired", granting(world, vault, payee, delegate, recipient=None))
    world.vm.succeed(world.registration(payee.owner, 1, "shop.example", signer=world.authority))
    world.vm.succeed(granting(world, vault, payee, delegate))
    # Whichever of the owner's token accounts is named
    second = Payee(payee.owner, place_token_account(world.vm, world.mint, payee.owner))
    world.vm.succeed(granting(world, vault, second, delegate))


def test_grants_and_payments_count_together_up_to_the_limits(world: VmWorld) -> None:
    budget = world.budget(max_per_day=3 * AMOUNT)
    vault = world.member(budget, allowing(max_per_day=2 * AMOUNT))
    other, payee, delegate = world.member(budget, ALLOWING), world.payee(), world.vm.key()
    grant(world, vault, payee, delegate)
    world.vm.refuse("MaxPerDayExceeded", world.payment(vault, payee, AMOUNT + 1))
    world.vm.succeed(world.payment(vault, payee, AMOUNT))
    world.vm.refuse("MaxPerDayExceeded", granting(world, vault, payee, delegate, 1))
    world.vm.refuse("BudgetMaxPerDayExceeded", granting(world, other, payee, delegate, AMOUNT + 1))
    grant(world, other, payee, delegate)
    world.vm.refuse("BudgetMaxPerDayExceeded", world.payment(other, payee, 1))
    assert figures(world, vault) == (AMOUNT, AMOUNT, 2)
    assert spent(world, budget) == (AMOUNT, AMOUNT, 3)


def test_grant_is_held_by_the_budget_that_it_remembers(world: VmWorld) -> None:
    budget, payee, delegate = world.budget(max_per_day=AMOUNT), world.payee(), world.vm.key()
    vault = world.member(budget, ALLOWING)
    world.vm.refuse("BudgetRequired", granting(world, vault, payee, delegate, budget=None))
    world.vm.refuse("WrongBudget", granting(world, vault, payee, delegate, budget=world.budget()))
    stored = world.fields(grant(world, vault, payee, delegate).address)
    level = {"budget": budget, "created_version": world.fields(budget)["created_version"]}
    assert (stored["level_count"], stored["levels"][0]) == (1, level)


def test_preview_is_that_of_a_payment(world: VmWorld) -> None:
    vault, payee, delegate = world.wallet(allowing(max_per_day=AMOUNT)), world.payee(), world.vm.key()
    assert world.check(vault, payee, AMOUNT)["passed"]
    grant(world, vault, payee, delegate)
    assert not world.check(vault, payee, 1)["passed"]


def test_destination_is_a_token_account_that_can_be_paid(world: VmWorld) -> None:
    vault, payee, delegate = world.wallet(ALLOWING), world.payee(), world.vm.key()
    owner, put = payee.owner, world.vm.put

    def refuse(error: str, tokens: Pubkey) -> None:
        world.vm.refuse(error, granting(world, vault, Payee(owner, tokens), delegate))

    other_mint = put(Pubkey.new_unique(), mint_data(), TOKEN_PROGRAM)
    data = token_account_data(world.mint, owner)
    refuse("NotATokenAccount", owner)
    refuse("NotATokenAccount", put(Pubkey.new_unique(), data, TOKEN_2022_PROGRAM))
    refuse("NotATokenAccount", put(Pubkey.new_unique(), data[:-1], TOKEN_PROGRAM))
    refuse("NotATokenAccount", put(Pubkey.new_unique(), data.ljust(355, b"\2"), TOKEN_PROGRAM))
    refuse("WrongMint", place_token_account(world.vm, other_mint, owner))
    frozen = token_account_data(world.mint, owner, frozen=True)
    refuse("UnusableTokenAccount", put(Pubkey.new_unique(), frozen, TOKEN_PROGRAM))
    uninitialized = data[:108] + b"\0" + data[109:]
    refuse("UnusableTokenAccount", put(Pubkey.new_unique(), uninitialized, TOKEN_PROGRAM))


def test_destination_requires_no_memo() -> None:
    world = VmWorld(token_program=TOKEN_2022_PROGRAM)
    vault, payee, delegate = world.wallet(ALLOWING), world.payee(), world.vm.key()
    plain = token_account_data(world.mint, payee.owner)
    for required, error in ((1, "UnusableTokenAccount"), (0, None)):
        # The account type, then the extension's type, its length and whether it is switched on
        extended = plain + bytes([2, 8, 0, 1, 0, required])
        tokens = world.vm.put(Pubkey.new_unique(), extended, TOKEN_2022_PROGRAM)
        result = world.vm.simulate(granting(world, vault, Payee(payee.owner, tokens), delegate))
        assert result.error == error


def test_vault_grants_nothing_to_itself(world: VmWorld) -> None:
    vault, payee, delegate = world.wallet(ALLOWING), world.payee(), world.vm.key()
    own = Payee(vault, world.tokens_of(vault))
    world.vm.refuse("ConstraintDuplicateMutableAccount", granting(world, vault, own, delegate))
    second = Payee(vault, place_token_account(world.vm, world.mint, vault))
    world.vm.refuse("PaymentToSelf", granting(world, vault, second, delegate))
    first = grant(world, vault, payee, delegate)
    again = Payee(vault, tokens_of(world, first))
    world.vm.refuse("PaymentToSelf", granting(world, vault, again, delegate))
    world.vm.refuse("ZeroAmount", granting(world, vault, payee, delegate, 0))


def test_delegate_is_a_key_without_a_role(world: VmWorld) -> None:
    vault, other, payee = world.wallet(ALLOWING), world.wallet(), world.payee()
    outstanding = grant(world, vault, payee, world.vm.key())
    foreign = VmWorld(world.vm, org_id="another", mint=world.mint).wallet()
    policy = world.fields(vault)["policy"]
    world.vm.succeed(world.registration(payee.owner))
    world.vm.refuse("ConstraintDuplicateMutableAccount", granting(world, vault, payee, vault))
    of_the_program = (other, foreign, policy, world.org, outstanding.address)
    recipient = world.addresses.recipient(world.org, payee.owner)
    with_a_role = (NONE, world.session, world.operator, world.authority)
    for delegate in (*of_the_program, recipient, *with_a_role):
        world.vm.refuse("UnusableDelegate", granting(world, vault, payee, delegate))
        world.vm.refuse("UnusableDelegate", granting(world, vault, payee, delegate, signer=world.operator))
    # Any other key will do, whether or not it has an account
    for delegate in (world.vm.key(), world.vm.key(10**9)):
        grant(world, vault, payee, delegate)


def test_vault_has_at_most_four_outstanding(world: VmWorld) -> None:
    vault, payee, delegate = world.wallet(ALLOWING), world.payee(), world.vm.key()
    first, *_ = [grant(world, vault, payee, delegate) for _ in range(MOST)]
    assert world.fields(vault)["open_allowances"] == MOST
    world.vm.refuse("TooManyAllowances", granting(world, vault, payee, delegate))
    # Another vault has its own, and a settled one makes room
    grant(world, world.wallet(ALLOWING), payee, delegate)
    world.vm.succeed(settling(world, first))
    grant(world, vault, payee, delegate)
    world.vm.refuse("TooManyAllowances", granting(world, vault, payee, delegate))


def test_addresses_are_never_used_again(world: VmWorld) -> None:
    vault, payee, delegate = world.wallet(ALLOWING), world.payee(), world.vm.key()
    first = next_allowance(world, vault)
    late = granting(world, vault, payee, delegate)
    world.vm.succeed(late)
    world.vm.refuse("InvalidSeeds", late)
    world.vm.succeed(settling(world, first))
    world.vm.refuse("InvalidSeeds", late)
    assert grant(world, vault, payee, delegate).address == world.addresses.allowance(vault, 1) != first.address


def test_allowance_ends_within_three_minutes(world: VmWorld) -> None:
    vault, payee, delegate = world.wallet(ALLOWING), world.payee(), world.vm.key()
    for seconds in (-1, 0, LONGEST + 1):
        world.vm.refuse("InvalidAllowanceTime", granting(world, vault, payee, delegate, expires_in=seconds))
    for seconds in (1, LONGEST):
        grant(world, vault, payee, delegate, expires_in=seconds)


def test_allowance_ends_with_the_session_and_the_policy_at_the_latest(world: VmWorld) -> None:
    payee, delegate, now = world.payee(), world.vm.key(), world.vm.now
    vault = world.wallet(allowing(expiry=now + 100))
    session = (world.session, now + 50)
    world.vm.refuse("InvalidAllowanceTime", granting(world, vault, payee, delegate, expires_in=101))
    grant(world, vault, payee, delegate, expires_in=100)
    world.vm.succeed(world.build.update_wallet(operator=world.operator, vault=vault, session=session))
    world.vm.refuse("InvalidAllowanceTime", granting(world, vault, payee, delegate, expires_in=51))
    grant(world, vault, payee, delegate, expires_in=50)
    # The session's end binds what the session signs
    alone: dict[str, Any] = {"signer": world.operator}
    world.vm.refuse("InvalidAllowanceTime", granting(world, vault, payee, delegate, expires_in=101, **alone))
    grant(world, vault, payee, delegate, expires_in=100, **alone)
    world.vm.now += 50
    world.vm.refuse("SessionExpired", granting(world, vault, payee, delegate, expires_in=1))


def test_time_is_the_vaults_when_the_clock_steps_back(world: VmWorld) -> None:
    vault, payee, delegate, now = world.wallet(ALLOWING), world.payee(), world.vm.key(), world.vm.now
    world.vm.succeed(world.payment(vault, payee, 1))
    world.vm.now = now - 1_000
    world.vm.refuse("InvalidAllowanceTime", granting(world, vault, payee, delegate, expires_at=now))
    allowance = grant(world, vault, payee, delegate, expires_at=now + LONGEST)
    assert world.fields(allowance.address)["granted_at"] == now


def test_pause_and_freeze_refuse_new_ones(world: VmWorld) -> None:
    vault, frozen = world.wallet(ALLOWING), world.wallet(ALLOWING)
    payee, delegate = world.payee(), world.vm.key()
    world.vm.succeed(world.freeze(frozen))
    world.vm.refuse("WalletFrozen", granting(world, frozen, payee, delegate))
    world.pause()
    world.vm.refuse("OrgPaused", granting(world, vault, payee, delegate))


def test_freeze_depends_on_no_allowance(world: VmWorld) -> None:
    vault, payee, delegate = world.wallet(ALLOWING), world.payee(), world.vm.key()
    outstanding = [grant(world, vault, payee, delegate) for _ in range(MOST)]
    freeze = world.freeze(vault)
    named = {tokens_of(world, one) for one in outstanding} | {one.address for one in outstanding}
    assert not named & {meta.pubkey for meta in freeze.accounts}
    # All are settled in the transaction of the freeze, after it
    result = world.vm.succeed(freeze, *[settling(world, one) for one in outstanding])
    assert [event.name for event in result.events] == ["WalletFrozen", *["AllowanceSettled"] * MOST]


def test_delegate_can_pay_another_than_was_judged(world: VmWorld) -> None:
    # Given a policy that allows one recipient
    payee, other, delegate = world.payee(), world.payee(), world.vm.key()
    vault = world.wallet(world.policy(allowing(restricted=True), [bytes(payee.owner)]))
    world.vm.refuse("RecipientNotAllowed", granting(world, vault, other, delegate))
    allowance = grant(world, vault, payee, delegate)
    # Then the token program still lets the delegate choose, which is why the operator signs every grant
    world.vm.succeed(delegates_transfer(world, allowance, delegate, other.tokens))
    event = world.vm.succeed(settling(world, allowance)).event.data
    assert (event["destination"], event["spent"], world.balance(other.tokens)) == (payee.tokens, AMOUNT, AMOUNT)


def test_vault_with_outstanding_allowances_is_not_archived(world: VmWorld) -> None:
    vault, payee, delegate = world.wallet(ALLOWING, AMOUNT), world.payee(), world.vm.key()
    allowance = grant(world, vault, payee, delegate)
    world.vm.refuse("OpenAllowances", close_wallet(world, vault))
    world.vm.succeed(delegates_transfer(world, allowance, delegate, payee.tokens))
    world.vm.refuse("OpenAllowances", close_wallet(world, vault))
    world.vm.succeed(settling(world, allowance))
    world.vm.succeed(close_wallet(world, vault))


def test_vault_grants_only_what_it_holds(world: VmWorld) -> None:
    vault, payee, delegate = world.wallet(ALLOWING, AMOUNT), world.payee(), world.vm.key()
    grant(world, vault, payee, delegate, AMOUNT - 1)
    world.vm.refuse("InsufficientBalance", granting(world, vault, payee, delegate, 2))
    grant(world, vault, payee, delegate, 1)


def test_lamports_sent_ahead_do_not_stop_a_grant(world: VmWorld) -> None:
    vault, payee, delegate = world.wallet(ALLOWING), world.payee(), world.vm.key()
    allowance, before = next_allowance(world, vault), world.vm.lamports(world.payer)
    for address in (allowance.address, tokens_of(world, allowance)):
        world.vm.put(address, b"", NONE, 1)
    world.vm.succeed(granting(world, vault, payee, delegate))
    world.vm.succeed(settling(world, allowance))
    assert world.vm.lamports(world.payer) == before + 2
