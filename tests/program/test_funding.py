"""Funding vaults from the reserve, the operator's daily limit, and emptying the reserve."""

import pytest
from solders.instruction import Instruction
from solders.pubkey import Pubkey

from app.chain.instructions import UNLIMITED
from idl.codec import Event
from tests.support.vm import START
from tests.support.vm_tokens import USDC, mint_data, place_token_account
from tests.support.vm_world import VmWorld

DAY = 86_400
SLOT = 900


@pytest.fixture
def limited() -> VmWorld:
    """An organisation whose operator moves at most 100 micro-USDC into vaults in 24 hours."""
    return VmWorld(operator_daily_limit=100)


def emptying(world: VmWorld, destination: Pubkey, amount: int | None = None) -> Instruction:
    """Return the instruction that moves money out of the reserve."""
    return world.build.withdraw_reserve(
        authority=world.authority,
        destination=destination,
        amount=amount,
        reference=b"r" * 16,
        expected_sequence=world.fields(world.org)["authority_sequence"],
    )


@pytest.mark.proves(
    "instruction fund_wallet", "instruction withdraw", "instruction withdraw_reserve", "instruction close_wallet"
)
def test_funding_moves_the_amount_and_reports_both_balances(world: VmWorld) -> None:
    vault, reserve, reference = world.wallet(funds=4), world.balance(world.reserve), b"r" * 16
    sequence = world.fields(world.org)["sequence"]
    result = world.vm.succeed(world.funding(vault, 3, reference=reference))
    expected = {"org": world.org, "vault": vault, "sequence": 3, "org_sequence": sequence + 1, "amount": 3}
    expected |= {"vault_balance": 7, "reserve_balance": reserve - 3, "reference": reference}
    assert result.event == Event("WalletFunded", expected)
    assert (world.balance(world.tokens_of(vault)), world.balance(world.reserve)) == (7, reserve - 3)
    assert result.transfers == 1
    assert world.fields(world.org)["sequence"] == sequence + 1


def test_funding_zero_or_more_than_the_reserve_is_refused(world: VmWorld) -> None:
    vault, reserve = world.wallet(), world.balance(world.reserve)
    world.vm.refuse("ZeroAmount", world.funding(vault, 0))
    world.vm.refuse("ReserveInsufficient", world.funding(vault, reserve + 1))
    world.vm.succeed(world.funding(vault, reserve))


def test_vault_that_holds_enough_is_not_topped_up(world: VmWorld) -> None:
    vault = world.wallet(funds=4)
    world.vm.refuse("BalanceNotBelow", world.funding(vault, 3, only_below=0))
    world.vm.refuse("BalanceNotBelow", world.funding(vault, 3, only_below=4))
    fill = world.funding(vault, 3, only_below=5)
    world.vm.succeed(fill)
    world.vm.refuse("BalanceNotBelow", fill)
    world.vm.succeed(world.funding(vault, 1))
    assert world.balance(world.tokens_of(vault)) == 8


def test_operator_funds_up_to_its_limit_across_all_vaults(limited: VmWorld) -> None:
    first, second = (limited.wallet(funds=0) for _ in range(2))
    limited.vm.refuse("OperatorLimitExceeded", limited.funding(first, 101))
    limited.vm.succeed(limited.funding(first, 60))
    limited.vm.refuse("OperatorLimitExceeded", limited.funding(second, 41))
    limited.vm.succeed(limited.funding(second, 40))
    limited.vm.refuse("OperatorLimitExceeded", limited.funding(second, 1))


def test_insufficient_reserve_is_reported_before_the_limit(limited: VmWorld) -> None:
    vault, reserve = limited.wallet(funds=0), limited.balance(limited.reserve)
    limited.vm.refuse("OperatorLimitExceeded", limited.funding(vault, reserve))
    limited.vm.refuse("ReserveInsufficient", limited.funding(vault, reserve + 1))


def test_limit_counts_any_24_hours(limited: VmWorld) -> None:
    vault = limited.wallet(funds=0)
    limited.vm.now = START + SLOT - 1
    limited.vm.succeed(limited.funding(vault, 100))
    for later in (DAY, START - limited.vm.now + SLOT + DAY - 1):
        limited.vm.now = START + SLOT - 1 + later
        limited.vm.refuse("OperatorLimitExceeded", limited.funding(vault, 1))
    limited.vm.now = START + SLOT + DAY
    limited.vm.succeed(limited.funding(vault, 100))
    # A clock that steps back frees no budget
    limited.vm.now = START
    limited.vm.refuse("OperatorLimitExceeded", limited.funding(vault, 1))


def test_withdrawal_does_not_credit_the_limit(limited: VmWorld) -> None:
    vault = limited.wallet(funds=100)
    limited.vm.succeed(limited.build.withdraw(operator=limited.operator, vault=vault, amount=100, reference=bytes(16)))
    limited.vm.refuse("OperatorLimitExceeded", limited.funding(vault, 1))


def test_limit_counts_what_was_funded_before_it_was_set(world: VmWorld) -> None:
    vault = world.wallet(funds=50)
    world.vm.succeed(world.org_update(operator_daily_limit=60))
    world.vm.refuse("OperatorLimitExceeded", world.funding(vault, 11))
    world.vm.succeed(world.funding(vault, 10))
    world.vm.succeed(world.org_update(operator_daily_limit=0))
    world.vm.refuse("OperatorLimitExceeded", world.funding(vault, 1))
    world.vm.succeed(world.org_update(operator_daily_limit=UNLIMITED))
    world.vm.succeed(world.funding(vault, 1000 * USDC))


def test_frozen_vault_can_be_funded(world: VmWorld) -> None:
    vault = world.wallet()
    world.vm.succeed(world.freeze(vault))
    world.vm.succeed(world.funding(vault, 1))


@pytest.mark.proves(
    "instruction fund_wallet", "instruction withdraw", "instruction withdraw_reserve", "instruction close_wallet"
)
def test_authority_can_move_the_reserve_anywhere(world: VmWorld) -> None:
    payee, reserve = world.payee(), world.balance(world.reserve)
    first = world.vm.succeed(emptying(world, payee.tokens, 30))
    expected = {"org": world.org, "destination": payee.tokens, "sequence": 6, "amount": 30}
    assert first.event == Event(
        "ReserveWithdrawn", {**expected, "reserve_balance": reserve - 30, "reference": b"r" * 16}
    )
    world.pause()
    rest = world.vm.succeed(emptying(world, payee.tokens))
    assert (rest.event.data["amount"], rest.event.data["reserve_balance"]) == (reserve - 30, 0)
    assert (world.balance(payee.tokens), world.balance(world.reserve)) == (reserve, 0)
    world.vm.refuse("ZeroAmount", emptying(world, payee.tokens))


def test_late_withdrawal_of_the_reserve_is_refused(world: VmWorld) -> None:
    # Given a withdrawal that was signed and not sent, and one that was made since
    payee = world.payee()
    kept = emptying(world, payee.tokens, 30)
    world.vm.succeed(emptying(world, payee.tokens, 20))
    # Then it withdraws nothing more
    world.vm.refuse("SequenceMismatch", kept)
    assert world.balance(payee.tokens) == 20


def test_withdrawing_zero_or_more_than_the_reserve_is_refused(world: VmWorld) -> None:
    payee = world.payee()
    world.vm.refuse("ReserveInsufficient", emptying(world, payee.tokens, world.balance(world.reserve) + 1))
    world.vm.refuse("ZeroAmount", emptying(world, payee.tokens, 0))


@pytest.mark.parametrize("role", ["operator", "arbiter", "verifier", "session", "stranger"])
def test_nobody_else_can_empty_the_reserve(world: VmWorld, role: str) -> None:
    world.vm.refuse(
        "Unauthorized",
        world.build.withdraw_reserve(
            authority=getattr(world, role),
            destination=world.payee().tokens,
            amount=1,
            reference=bytes(16),
            expected_sequence=world.fields(world.org)["authority_sequence"],
        ),
    )


def test_reserve_cannot_move_into_itself_or_another_mints_account(world: VmWorld) -> None:
    world.vm.refuse("ConstraintDuplicateMutableAccount", emptying(world, world.reserve, 1))
    other_mint = world.vm.put(Pubkey.new_unique(), mint_data(), world.token_program)
    foreign = place_token_account(world.vm, other_mint, world.authority)
    world.vm.refuse("Token:3", emptying(world, foreign, 1))
