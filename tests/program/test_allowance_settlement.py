"""The settlement of allowances: who may, what comes back, and what counts as spent."""

from dataclasses import replace
from typing import Any

import pytest
from solders.instruction import AccountMeta, Instruction
from solders.pubkey import Pubkey

from app.chain.addresses import TOKEN_2022_PROGRAM, TOKEN_PROGRAM
from app.chain.allowance_instructions import OpenAllowance
from app.chain.rules import BudgetLimits
from idl.codec import Event
from tests.program.test_budgets import spent
from tests.support import nothing
from tests.support.vm import LAMPORTS, PROGRAM_ID, Vm
from tests.support.vm_allowances import (
    ALLOWING,
    AMOUNT,
    MINUTE,
    MOST,
    REFERENCE,
    delegates_transfer,
    grant,
    granting,
    is_gone,
    settling,
    tokens_of,
    transfer,
)
from tests.support.vm_escrows import DAY, FUNDS, replaced
from tests.support.vm_tokens import DECIMALS, USDC, mint_data, place_token_account, token_account_data
from tests.support.vm_world import NONE, VmWorld

PROGRAMS = [TOKEN_PROGRAM, TOKEN_2022_PROGRAM]
PAID = 2 * USDC
_REVOKE, _FREEZE, _THAW, _BURN_CHECKED = 5, 10, 11, 15
"""Instructions of the token program."""


def token_call(world: VmWorld, data: bytes, *accounts: Pubkey, signer: Pubkey) -> Instruction:
    """Return an instruction of the token program that writes its accounts."""
    metas = [AccountMeta(one, is_signer=False, is_writable=True) for one in accounts]
    return Instruction(world.token_program, data, [*metas, AccountMeta(signer, is_signer=True, is_writable=False)])


def burn(world: VmWorld, allowance: OpenAllowance, delegate: Pubkey, amount: int) -> Instruction:
    """Return the delegate's burning of what it may transfer."""
    data = bytes([_BURN_CHECKED]) + amount.to_bytes(8, "little") + bytes([DECIMALS])
    return token_call(world, data, tokens_of(world, allowance), world.mint, signer=delegate)


def donate(world: VmWorld, allowance: OpenAllowance, amount: int) -> None:
    """Send a stranger's money into an allowance."""
    tokens = place_token_account(world.vm, world.mint, world.stranger, amount, program=world.token_program)
    world.vm.succeed(transfer(world, tokens, tokens_of(world, allowance), world.stranger, amount))


def nobodys(world: VmWorld, allowance: OpenAllowance, **options: Any) -> Instruction:
    """Return the settlement that nobody signs."""
    return settling(world, allowance, signer=None, **options)


def with_budget(allowance: OpenAllowance, budget: Pubkey | None) -> OpenAllowance:
    """Return the allowance with another budget's account."""
    return replace(allowance, budget=budget)


@pytest.mark.proves("instruction settle_allowance")
@pytest.mark.parametrize("token_program", PROGRAMS)
@pytest.mark.parametrize("paid", [0, PAID, AMOUNT])
def test_what_is_left_comes_back_and_only_the_rest_counts(token_program: Pubkey, paid: int) -> None:
    world = VmWorld(token_program=token_program)
    vault, payee, delegate = world.wallet(ALLOWING), world.payee(), world.vm.key()
    before = world.vm.lamports(world.payer), world.vm.lamports(vault)
    allowance = grant(world, vault, payee, delegate)
    if paid:
        world.vm.succeed(delegates_transfer(world, allowance, delegate, payee.tokens, paid))
    sequence = world.fields(vault)["sequence"]
    result = world.vm.succeed(settling(world, allowance))
    assert world.balance(world.tokens_of(vault)) == FUNDS - paid
    assert world.balance(payee.tokens) == paid
    assert is_gone(world, allowance)
    assert (world.vm.lamports(world.payer), world.vm.lamports(vault)) == before
    # A grant counts towards velocity for good
    assert spent(world, vault) == (paid, paid, 1)
    assert world.fields(vault)["open_allowances"] == 0
    assert result.event == Event(
        "AllowanceSettled",
        {
            "org": world.org,
            "vault": vault,
            "allowance": allowance.address,
            "recipient": payee.owner,
            "destination": payee.tokens,
            "delegate": delegate,
            "signer": world.operator,
            "reference": REFERENCE,
            "sequence": sequence + 1,
            "amount": AMOUNT,
            "spent": paid,
            "swept": AMOUNT - paid,
            "vault_balance": FUNDS - paid,
            "timestamp": world.vm.now,
            # With the last of it the token program forgets the delegate
            "delegate_missing": int(paid == AMOUNT),
            "reserved": bytes(7),
        },
    )


@pytest.mark.parametrize("paid", [0, PAID, AMOUNT])
def test_donations_change_nothing_but_what_the_vault_gets(world: VmWorld, paid: int) -> None:
    vault, payee, delegate = world.wallet(ALLOWING), world.payee(), world.vm.key()
    allowance = grant(world, vault, payee, delegate)
    donate(world, allowance, 7)
    if paid:
        world.vm.succeed(delegates_transfer(world, allowance, delegate, payee.tokens, paid))
    donate(world, allowance, AMOUNT)
    # The delegate has no more to give than was granted
    more = world.vm.send(delegates_transfer(world, allowance, delegate, payee.tokens, AMOUNT - paid + 1))
    assert more.error is not None
    data = world.vm.succeed(settling(world, allowance)).event.data
    assert (data["spent"], data["swept"]) == (paid, AMOUNT - paid + AMOUNT + 7)
    assert spent(world, vault) == (paid, paid, 1)
    assert world.balance(world.tokens_of(vault)) == FUNDS - paid + AMOUNT + 7


@pytest.mark.parametrize("token_program", PROGRAMS)
@pytest.mark.parametrize("burnt", [PAID, AMOUNT])
def test_what_the_delegate_burns_counts_as_spent(token_program: Pubkey, burnt: int) -> None:
    world = VmWorld(token_program=token_program)
    vault, payee, delegate = world.wallet(ALLOWING), world.payee(), world.vm.key()
    allowance = grant(world, vault, payee, delegate)
    world.vm.succeed(burn(world, allowance, delegate, burnt))
    data = world.vm.succeed(settling(world, allowance)).event.data
    assert (data["spent"], data["swept"], data["delegate_missing"]) == (burnt, AMOUNT - burnt, int(burnt == AMOUNT))
    assert spent(world, vault) == (burnt, burnt, 1)


@pytest.mark.parametrize("instead", ["nobody", "another"])
def test_missing_delegate_counts_as_all_spent_and_stops_nothing(world: VmWorld, instead: str) -> None:
    vault, payee, delegate = world.wallet(ALLOWING), world.payee(), world.vm.key()
    allowance = grant(world, vault, payee, delegate)
    other = None if instead == "nobody" else Pubkey.new_unique()
    data = token_account_data(world.mint, vault, AMOUNT, delegate=other)
    if instead == "nobody":
        # The bytes of the delegate stay behind the tag that says that there is none
        data = data[:76] + bytes(delegate) + data[108:]
    world.vm.put(tokens_of(world, allowance), data, world.token_program)
    event = world.vm.succeed(settling(world, allowance)).event.data
    assert (event["spent"], event["swept"], event["delegate_missing"]) == (AMOUNT, AMOUNT, 1)
    # What came back counts as spent
    assert spent(world, vault) == (AMOUNT, AMOUNT, 1)
    assert world.balance(world.tokens_of(vault)) == FUNDS
    assert is_gone(world, allowance)


def test_delegate_that_gives_itself_up_changes_no_settlement() -> None:
    world = VmWorld(token_program=TOKEN_2022_PROGRAM)
    vault, payee, delegate = world.wallet(ALLOWING), world.payee(), world.vm.key()
    allowance = grant(world, vault, payee, delegate)
    world.vm.succeed(token_call(world, bytes([_REVOKE]), tokens_of(world, allowance), signer=delegate))
    event = world.vm.succeed(settling(world, allowance)).event.data
    assert (event["spent"], event["swept"], event["delegate_missing"]) == (AMOUNT, AMOUNT, 1)


@pytest.mark.parametrize("role", ["operator", "session", "authority"])
def test_who_has_a_say_settles_at_any_time(world: VmWorld, role: str) -> None:
    vault, payee, signer = world.wallet(ALLOWING), world.payee(), getattr(world, role)
    allowance = grant(world, vault, payee, world.vm.key())
    result = world.vm.succeed(settling(world, allowance, signer=signer))
    assert result.event.data["signer"] == signer


def test_nobody_else_settles_before_its_end(world: VmWorld) -> None:
    vault, payee, delegate = world.wallet(ALLOWING), world.payee(), world.vm.key()
    allowance, policy = grant(world, vault, payee, delegate), world.fields(vault)["policy"]
    other = world.policy(ALLOWING)
    for signer in (None, world.stranger, world.arbiter, world.verifier, delegate):
        world.vm.refuse("AllowanceNotExpired", settling(world, allowance, signer=signer))
        world.vm.refuse("AllowanceNotExpired", settling(world, allowance, signer=signer, policy=policy))
        world.vm.refuse("WrongPolicy", settling(world, allowance, signer=signer, policy=other))
    # A session authority that was replaced has no say any more
    session = (world.stranger, world.vm.now + MINUTE)
    world.vm.succeed(world.build.update_wallet(operator=world.operator, vault=vault, session=session))
    world.vm.refuse("AllowanceNotExpired", settling(world, allowance, signer=world.session))
    world.vm.succeed(settling(world, allowance, signer=world.stranger))


def test_session_settles_until_its_own_end(world: VmWorld) -> None:
    vault, payee, now = world.wallet(ALLOWING), world.payee(), world.vm.now
    allowance = grant(world, vault, payee, world.vm.key())
    session = (world.session, now + 10)
    world.vm.succeed(world.build.update_wallet(operator=world.operator, vault=vault, session=session))
    world.vm.now = now + 10
    world.vm.refuse("SessionExpired", settling(world, allowance, signer=world.session))
    world.vm.now = now + 9
    world.vm.succeed(settling(world, allowance, signer=world.session))


@pytest.mark.proves("instruction settle_allowance")
@pytest.mark.parametrize("signed", [False, True])
def test_anyone_settles_from_its_end_on(world: VmWorld, signed: bool) -> None:
    vault, payee, delegate, now = world.wallet(ALLOWING), world.payee(), world.vm.key(), world.vm.now
    first, second = (grant(world, vault, payee, delegate) for _ in range(2))
    settle = settling(world, first, signer=world.stranger if signed else None)
    world.vm.now = now + MINUTE - 1
    world.vm.refuse("AllowanceNotExpired", settle)
    world.vm.now = now + MINUTE
    # The end alone stops no transfer
    world.vm.succeed(delegates_transfer(world, second, delegate, payee.tokens))
    result = world.vm.succeed(settle)
    assert result.event.data["signer"] == (world.stranger if signed else NONE)
    world.vm.refuse("InvalidAccountData", delegates_transfer(world, first, delegate, payee.tokens))


def test_end_is_judged_at_the_vaults_time(world: VmWorld) -> None:
    vault, payee, now = world.wallet(ALLOWING), world.payee(), world.vm.now
    allowance = grant(world, vault, payee, world.vm.key())
    world.vm.now = now + MINUTE
    world.vm.succeed(world.payment(vault, payee, 1))
    world.vm.now = now
    result = world.vm.succeed(nobodys(world, allowance))
    assert result.event.data["timestamp"] == now + MINUTE


@pytest.mark.parametrize("why", ["frozen", "paused", "policy changed", "policy replaced"])
def test_anyone_settles_once_its_ground_is_gone(world: VmWorld, why: str) -> None:
    vault, payee, delegate = world.wallet(ALLOWING), world.payee(), world.vm.key()
    allowance, policy = grant(world, vault, payee, delegate), world.fields(vault)["policy"]
    given: dict[str, Any] = {}
    match why:
        case "frozen":
            world.vm.succeed(world.freeze(vault))
        case "paused":
            world.pause()
        case "policy changed":
            world.update_policy(policy, ALLOWING)
            # Which version it has shows only in the policy
            world.vm.refuse("AllowanceNotExpired", nobodys(world, allowance))
            given["policy"] = policy
        case _:
            new = world.policy(ALLOWING)
            world.vm.succeed(
                world.build.update_wallet(operator=world.operator, vault=vault, policy=policy, new_policy=new)
            )
    world.vm.succeed(nobodys(world, allowance, **given))
    assert is_gone(world, allowance)


def test_frozen_vault_and_its_delegate_until_the_settlement(world: VmWorld) -> None:
    vault, payee, delegate = world.wallet(ALLOWING), world.payee(), world.vm.key()
    first, second = (grant(world, vault, payee, delegate) for _ in range(2))
    world.vm.succeed(world.freeze(vault))
    # A freeze alone does not stop the delegate; the settlement does, in one transaction with it
    world.vm.succeed(delegates_transfer(world, first, delegate, payee.tokens))
    world.vm.succeed(nobodys(world, second))
    world.vm.refuse("InvalidAccountData", delegates_transfer(world, second, delegate, payee.tokens))


def test_nothing_is_settled_twice(world: VmWorld) -> None:
    vault, payee, delegate = world.wallet(ALLOWING), world.payee(), world.vm.key()
    grant(world, vault, payee, delegate)
    allowance = grant(world, vault, payee, delegate)
    world.vm.succeed(settling(world, allowance))
    world.vm.refuse("AccountDataTooSmall", settling(world, allowance))
    world.vm.refuse("AccountDataTooSmall", settling(world, allowance), settling(world, allowance))
    assert (spent(world, vault), world.fields(vault)["ledger"]["held"]) == ((0, 0, 2), AMOUNT)
    assert world.fields(vault)["open_allowances"] == 1


def test_payload_kept_back_is_dead_after_the_settlement(world: VmWorld) -> None:
    vault, payee, delegate = world.wallet(ALLOWING), world.payee(), world.vm.key()
    allowance = grant(world, vault, payee, delegate)
    kept = delegates_transfer(world, allowance, delegate, payee.tokens)
    world.vm.succeed(settling(world, allowance))
    world.vm.refuse("InvalidAccountData", kept)
    # The next allowance has an account of its own, even with the same delegate
    second = grant(world, vault, payee, delegate)
    world.vm.refuse("InvalidAccountData", kept)
    assert world.balance(tokens_of(world, second)) == AMOUNT


@pytest.mark.parametrize("token_program", PROGRAMS)
@pytest.mark.parametrize("which", ["the allowance's", "the vault's"])
def test_frozen_by_the_issuer_it_stays_recorded_until_a_thaw(token_program: Pubkey, which: str) -> None:
    # Given an allowance whose token account, or the vault's, the issuer freezes
    vm = Vm()
    mint = vm.put(Pubkey.new_unique(), mint_data(freeze_authority=vm.fee_payer), token_program)
    world = VmWorld(vm, mint=mint, token_program=token_program)
    vault, payee, delegate = world.wallet(ALLOWING), world.payee(), world.vm.key()
    allowance = grant(world, vault, payee, delegate)
    tokens = tokens_of(world, allowance) if which == "the allowance's" else world.tokens_of(vault)
    vm.succeed(token_call(world, bytes([_FREEZE]), tokens, mint, signer=vm.fee_payer))
    # Then nobody can settle it, and nothing of it is forgotten
    vm.succeed(world.freeze(vault))
    frozen = "Token:17" if token_program == TOKEN_PROGRAM else "Token2022:17"
    for settle in (settling(world, allowance), nobodys(world, allowance)):
        vm.refuse(frozen, settle)
    assert world.fields(vault)["open_allowances"] == 1
    assert (spent(world, vault), world.fields(vault)["ledger"]["held"]) == ((0, 0, 1), AMOUNT)
    if which == "the allowance's":
        vm.refuse(frozen, delegates_transfer(world, allowance, delegate, payee.tokens))
    # And after the thaw it is settled as any other
    vm.succeed(token_call(world, bytes([_THAW]), tokens, mint, signer=vm.fee_payer))
    assert vm.succeed(nobodys(world, allowance)).event.data["spent"] == 0
    assert spent(world, vault) == (0, 0, 1)


def test_settlement_needs_the_account_of_the_budget_charged(world: VmWorld) -> None:
    budget, other, payee, delegate = world.budget(), world.budget(), world.payee(), world.vm.key()
    charged = grant(world, world.member(budget, ALLOWING), payee, delegate)
    free = grant(world, world.wallet(ALLOWING), payee, delegate)
    for allowance, given, error in [
        (charged, None, "BudgetRequired"),
        (charged, other, "WrongBudget"),
        (free, budget, "WrongBudget"),
    ]:
        world.vm.refuse(error, settling(world, with_budget(allowance, given)))


@pytest.mark.parametrize("becomes", ["the same", "none", "another", "updated"])
def test_budget_of_the_grant_records_it_whatever_the_vaults_is_now(world: VmWorld, becomes: str) -> None:
    budget, other, payee = world.budget(max_per_day=AMOUNT), world.budget(), world.payee()
    vault, delegate = world.member(budget, ALLOWING), world.vm.key()
    allowance = grant(world, vault, payee, delegate)
    world.vm.succeed(delegates_transfer(world, allowance, delegate, payee.tokens, PAID))
    if becomes == "updated":
        world.vm.succeed(world.budget_update(budget, max_per_day=2 * AMOUNT))
    elif becomes != "the same":
        world.vm.succeed(world.joining(vault, other if becomes == "another" else None))
    world.vm.succeed(settling(world, allowance))
    assert spent(world, budget) == (PAID, PAID, 1)
    assert spent(world, other) == (0, 0, 0)
    assert spent(world, vault) == (PAID, PAID, 1)


@pytest.mark.parametrize("anew", [False, True])
def test_closed_budget_stops_no_settlement_and_records_nothing(world: VmWorld, anew: bool) -> None:
    budget, payee = world.budget(), world.payee()
    vault = world.member(budget, ALLOWING)
    allowance = grant(world, vault, payee, world.vm.key())
    key = world.fields(budget)["key"]
    world.vm.succeed(world.joining(vault, None))
    world.vm.succeed(world.budget_closing(budget))
    if anew:
        # The same address, whose ledger does not hold the allowance
        create = {"payer": world.payer, "authority": world.authority, "key": key}
        world.vm.succeed(world.build.create_budget(**create, limits=BudgetLimits()))
        world.vm.succeed(world.joining(vault, budget))
        world.vm.succeed(world.payment(vault, payee, AMOUNT))
    world.vm.succeed(settling(world, allowance))
    assert is_gone(world, allowance)
    if anew:
        assert spent(world, budget) == (AMOUNT, AMOUNT, 1)


def test_refund_makes_no_room_beyond_the_limits(world: VmWorld) -> None:
    vault, payee, delegate = world.wallet(replace(ALLOWING, max_per_day=AMOUNT)), world.payee(), world.vm.key()
    for _ in range(3):
        allowance = grant(world, vault, payee, delegate)
        world.vm.refuse("MaxPerDayExceeded", world.payment(vault, payee, 1))
        world.vm.succeed(settling(world, allowance))
    allowance = grant(world, vault, payee, delegate)
    world.vm.succeed(delegates_transfer(world, allowance, delegate, payee.tokens, PAID))
    world.vm.succeed(settling(world, allowance))
    world.vm.refuse("MaxPerDayExceeded", world.payment(vault, payee, AMOUNT - PAID + 1))
    world.vm.succeed(world.payment(vault, payee, AMOUNT - PAID))


def test_rent_goes_to_who_paid_it_and_nobody_else(world: VmWorld) -> None:
    vault, payee, payer = world.wallet(ALLOWING), world.payee(), world.vm.key(LAMPORTS)
    allowance = grant(world, vault, payee, world.vm.key(), payer=payer)
    rent = world.vm.lamports(allowance.address) + world.vm.lamports(tokens_of(world, allowance))
    assert world.vm.lamports(payer) == LAMPORTS - rent
    settle = settling(world, allowance)
    at = [meta.pubkey for meta in settle.accounts].index(payer)
    for instead in (world.stranger, world.session, world.payer, PROGRAM_ID):
        world.vm.refuse("WrongRentReceiver", replaced(settle, at, instead))
    world.vm.succeed(settle)
    assert world.vm.lamports(payer) == LAMPORTS


def test_payer_that_belongs_to_a_program_gets_its_rent(world: VmWorld) -> None:
    vault, payee, payer = world.wallet(ALLOWING), world.payee(), world.vm.key(LAMPORTS)
    allowance = grant(world, vault, payee, world.vm.key(), payer=payer)
    rent = LAMPORTS - world.vm.lamports(payer)
    world.vm.put(payer, b"something", Pubkey.new_unique(), LAMPORTS)
    world.vm.succeed(settling(world, allowance))
    assert world.vm.lamports(payer) == LAMPORTS + rent


def test_rent_stays_in_the_vault_if_the_payer_is_a_program(world: VmWorld) -> None:
    vault, payee, payer = world.wallet(ALLOWING), world.payee(), world.vm.key(LAMPORTS)
    allowance = grant(world, vault, payee, world.vm.key(), payer=payer)
    rent, before = LAMPORTS - world.vm.lamports(payer), world.vm.lamports(vault)
    world.vm.svm.add_program(payer, nothing.program())
    world.vm.succeed(settling(world, allowance))
    assert world.vm.lamports(vault) == before + rent


def test_allowance_is_settled_with_its_own_accounts(world: VmWorld) -> None:
    vault, other, payee, delegate = world.wallet(ALLOWING), world.wallet(ALLOWING), world.payee(), world.vm.key()
    first, second = (grant(world, vault, payee, delegate) for _ in range(2))
    settle = settling(world, first)
    at = {meta.pubkey: number for number, meta in enumerate(settle.accounts)}
    for mine, theirs, error in [
        (tokens_of(world, first), tokens_of(world, second), "WrongTokenAccount"),
        (world.tokens_of(vault), payee.tokens, "WrongTokenAccount"),
        (world.tokens_of(vault), tokens_of(world, second), "WrongTokenAccount"),
    ]:
        world.vm.refuse(error, replaced(settle, at[mine], theirs))
    world.vm.refuse("WrongAllowance", settling(world, replace(first, vault=other)))


def test_all_outstanding_are_settled_with_a_change_of_session(world: VmWorld) -> None:
    vault, payee, delegate = world.wallet(ALLOWING), world.payee(), world.vm.key()
    outstanding = [grant(world, vault, payee, delegate) for _ in range(MOST)]
    session = (world.vm.key(), world.vm.now + DAY)
    change = world.build.update_wallet(operator=world.operator, vault=vault, session=session)
    result = world.vm.succeed(change, *[settling(world, one) for one in outstanding])
    assert [event.name for event in result.events] == ["WalletUpdated", *["AllowanceSettled"] * MOST]
    assert spent(world, vault) == (0, 0, MOST)


def test_grant_payment_and_settlement_fit_into_one_transaction(world: VmWorld) -> None:
    vault, payee, delegate = world.wallet(ALLOWING), world.payee(), world.vm.key()
    allowance = OpenAllowance(world.addresses.allowance(vault, 0), vault, world.payer)
    pay = delegates_transfer(world, allowance, delegate, payee.tokens)
    world.vm.succeed(granting(world, vault, payee, delegate), pay, settling(world, allowance))
    assert (is_gone(world, allowance), world.balance(payee.tokens)) == (True, AMOUNT)
