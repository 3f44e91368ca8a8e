"""Settlement always works, whatever happened to the parties, and the rent returns to whoever paid it."""

import struct
from collections.abc import Callable

import pytest
from solders.instruction import AccountMeta, Instruction
from solders.pubkey import Pubkey

from app.chain.addresses import SYSTEM_PROGRAM, TOKEN_2022_PROGRAM, TOKEN_PROGRAM
from app.chain.escrow_instructions import OpenEscrow
from app.chain.rules import CATEGORIES, Rules, category_bits
from tests.support import nothing
from tests.support.vm import CODEC, PROGRAM_ID, START
from tests.support.vm_escrows import (
    AMOUNT,
    FUNDS,
    HOUR,
    close_wallet,
    completion,
    creation,
    decision,
    dispute,
    disputed,
    held,
    is_gone,
    lock,
    replaced,
    worker,
)
from tests.support.vm_tokens import USDC, place_token_account, token_account_data
from tests.support.vm_world import Payee, VmWorld

LAMPORTS = 10**10
End = Callable[[VmWorld, OpenEscrow], Instruction]


def by_completion(world: VmWorld, escrow: OpenEscrow) -> Instruction:
    return completion(world, escrow)


def by_refund(world: VmWorld, escrow: OpenEscrow) -> Instruction:
    world.vm.now = START + HOUR
    return world.build.refund_escrow(escrow)


def by_split(world: VmWorld, escrow: OpenEscrow) -> Instruction:
    world.vm.succeed(dispute(world, escrow))
    return decision(world, escrow, 2 * USDC)


RELEASED: dict[End, int] = {by_completion: AMOUNT, by_refund: 0, by_split: 2 * USDC}
"""What the receiver gets from each kind of settlement."""
ENDS = list(RELEASED)
SURPLUS = ("surplus", "surplus_to_receiver")


@pytest.mark.parametrize("end", ENDS)
def test_rent_of_both_accounts_goes_back_to_whoever_paid_it(world: VmWorld, end: End) -> None:
    vault, receiver, payer = world.wallet(), worker(world), world.vm.key(LAMPORTS)
    escrow = lock(world, vault, receiver.vault, payer=payer)
    rent = world.vm.lamports(escrow.address) + world.vm.lamports(world.addresses.escrow_tokens(escrow.address))
    assert world.vm.lamports(payer) == LAMPORTS - rent
    before = world.vm.lamports(world.payer), world.vm.lamports(vault)
    world.vm.succeed(end(world, escrow))
    assert world.vm.lamports(payer) == LAMPORTS
    assert (world.vm.lamports(world.payer), world.vm.lamports(vault)) == before


@pytest.mark.parametrize("end", ENDS)
def test_rent_cannot_go_to_anyone_else(world: VmWorld, end: End) -> None:
    vault, receiver, payer = world.wallet(), worker(world), world.vm.key(LAMPORTS)
    escrow = lock(world, vault, receiver.vault, payer=payer)
    settle = end(world, escrow)
    at = [meta.pubkey for meta in settle.accounts].index(payer)
    for instead in (world.stranger, world.session, world.payer, PROGRAM_ID):
        world.vm.refuse("WrongRentReceiver", replaced(settle, at, instead))
    world.vm.refuse("ConstraintDuplicateMutableAccount", replaced(settle, at, vault))


@pytest.mark.parametrize("end", ENDS)
def test_payer_without_lamports_gets_the_rent(world: VmWorld, end: End) -> None:
    vault, receiver, payer = world.wallet(), worker(world), world.vm.key(LAMPORTS)
    escrow = lock(world, vault, receiver.vault, payer=payer)
    rent = LAMPORTS - world.vm.lamports(payer)
    world.vm.put(payer, b"", SYSTEM_PROGRAM, 0)
    world.vm.succeed(end(world, escrow))
    assert world.vm.lamports(payer) == rent


def with_payer(settle: Instruction, payer: Pubkey, *, writable: bool) -> Instruction:
    """Return the settlement with the account that paid the rent passed writable or read-only."""
    at = [meta.pubkey for meta in settle.accounts].index(payer)
    accounts = list(settle.accounts)
    accounts[at] = AccountMeta(payer, is_signer=False, is_writable=writable)
    return Instruction(settle.program_id, settle.data, accounts)


@pytest.mark.parametrize("end", ENDS)
def test_payer_that_belongs_to_a_program_gets_its_rent(world: VmWorld, end: End) -> None:
    vault, receiver, payer = world.wallet(), worker(world), world.vm.key(LAMPORTS)
    escrow = lock(world, vault, receiver.vault, payer=payer)
    rent = LAMPORTS - world.vm.lamports(payer)
    world.vm.put(payer, b"something", Pubkey.new_unique(), LAMPORTS)
    before = world.vm.lamports(vault)
    settle = end(world, escrow)
    world.vm.refuse("ConstraintMut", with_payer(settle, payer, writable=False))
    world.vm.succeed(settle)
    assert (world.vm.lamports(payer), world.vm.lamports(vault)) == (LAMPORTS + rent, before)


@pytest.mark.parametrize("end", ENDS)
def test_rent_stays_in_the_vault_if_the_payer_is_a_program(world: VmWorld, end: End) -> None:
    # Given an escrow whose payer then became a program, which the runtime passes read-only
    vault, receiver, payer = world.wallet(), worker(world), world.vm.key(LAMPORTS)
    escrow = lock(world, vault, receiver.vault, payer=payer)
    rent = LAMPORTS - world.vm.lamports(payer)
    world.vm.svm.add_program(payer, nothing.program())
    before, theirs = world.vm.lamports(vault), world.vm.lamports(payer)
    # When it is settled
    world.vm.succeed(end(world, escrow))
    # Then the vault holds the rent, and a withdrawal or its end hands it to who paid for the vault
    assert (world.vm.lamports(payer), world.vm.lamports(vault)) == (theirs, before + rent)
    payers = world.vm.lamports(world.payer)
    withdraw = world.build.withdraw(
        operator=world.operator, vault=vault, amount=None, reference=bytes(16), rent_receiver=world.payer
    )
    assert world.vm.simulate(withdraw).error is None
    world.vm.refuse("WrongRentReceiver", replaced(withdraw, len(withdraw.accounts) - 3, world.stranger))
    world.vm.succeed(withdraw)
    assert (world.vm.lamports(vault), world.vm.lamports(world.payer)) == (before, payers + rent)


def test_archiving_a_vault_sweeps_what_is_above_its_rent(world: VmWorld) -> None:
    vault = world.wallet(funds=0)
    before, held = world.vm.lamports(world.payer), world.vm.lamports(vault)
    world.vm.put(vault, world.vm.data(vault), PROGRAM_ID, held + 5_000_000)
    world.vm.succeed(close_wallet(world, vault))
    left = world.vm.rent(len(world.vm.data(vault)))
    assert world.vm.lamports(vault) == left
    assert world.vm.lamports(world.payer) == before + held + 5_000_000 - left


def test_no_settlement_writes_the_organisation() -> None:
    settling = {"complete_escrow", "refund_escrow", "resolve_dispute", "collect_escrow"}
    found = [item for item in CODEC.idl["instructions"] if item["name"] in settling]
    assert len(found) == len(settling)
    for item in found:
        (org,) = (account for account in item["accounts"] if account["name"] == "org")
        assert not org.get("writable", False)


@pytest.mark.parametrize("end", ENDS)
def test_surplus_returns_to_the_vault_and_credits_nothing(world: VmWorld, end: End) -> None:
    vault, receiver, gift = world.wallet(), worker(world), 7 * USDC
    escrow = lock(world, vault, receiver.vault)
    world.vm.succeed(world.payment(vault, world.payee(), 3 * USDC))
    world.fill(world.addresses.escrow_tokens(escrow.address), escrow.address, AMOUNT + gift)
    result = world.vm.succeed(end(world, escrow))
    released = RELEASED[end]
    assert world.balance(receiver.tokens) == released
    assert world.balance(world.tokens_of(vault)) == FUNDS - 3 * USDC - released + gift
    reported = {name: result.event.data[name] for name in ("amount", "released", "refunded", *SURPLUS)}
    assert reported == {
        "amount": AMOUNT,
        "released": released,
        "refunded": AMOUNT - released,
        "surplus": gift,
        "surplus_to_receiver": 0,
    }
    ledger = world.fields(vault)["ledger"]
    assert ledger["day"]["total"] == ledger["month_spent"] == 3 * USDC + released


def test_receiver_gets_the_surplus_if_the_vault_cannot(world: VmWorld) -> None:
    vault, receiver = world.wallet(), worker(world)
    escrow = lock(world, vault, receiver.vault)
    world.fill(world.addresses.escrow_tokens(escrow.address), escrow.address, AMOUNT + 7)
    frozen = token_account_data(world.mint, vault, FUNDS - AMOUNT, frozen=True)
    world.vm.put(world.tokens_of(vault), frozen, world.token_program)
    result = world.vm.succeed(completion(world, escrow))
    assert world.balance(receiver.tokens) == AMOUNT + 7
    assert [result.event.data[name] for name in ("released", *SURPLUS)] == [AMOUNT, 7, 1]
    assert is_gone(world, escrow)


@pytest.mark.parametrize(("end", "shares"), [(by_completion, (5, 0)), (by_refund, (0, 5)), (by_split, (2, 3))])
def test_what_is_left_is_paid_if_money_is_missing(world: VmWorld, end: End, shares: tuple[int, int]) -> None:
    vault, receiver = world.wallet(), worker(world)
    escrow = lock(world, vault, receiver.vault)
    world.fill(world.addresses.escrow_tokens(escrow.address), escrow.address, 5 * USDC)
    result = world.vm.succeed(end(world, escrow))
    paid = world.balance(receiver.tokens), world.balance(world.tokens_of(vault)) - (FUNDS - AMOUNT)
    assert paid == tuple(one * USDC for one in shares)
    assert result.event.data["surplus"] == 0
    assert is_gone(world, escrow)


def test_payment_into_an_escrow_does_not_reach_its_receiver(world: VmWorld) -> None:
    # Given an escrow of a millionth of a dollar for a receiver that the policy blocks by now
    vault, receiver = world.wallet(), worker(world)
    escrow = lock(world, vault, receiver.vault, 1)
    world.update_policy(world.fields(vault)["policy"], Rules(blocked_categories=category_bits(["gambling"])))
    world.vm.succeed(world.registration(receiver.vault, CATEGORIES.index("gambling")))
    # When the session pays the escrow's token account and completes the escrow
    tokens = Payee(escrow.address, world.addresses.escrow_tokens(escrow.address))
    world.vm.succeed(world.payment(vault, tokens, 90 * USDC))
    world.vm.succeed(completion(world, escrow))
    # Then the receiver has the promised amount
    assert world.balance(receiver.tokens) == 1
    assert world.balance(world.tokens_of(vault)) == FUNDS - 1


@pytest.mark.parametrize("end", ENDS)
def test_neither_pause_nor_freeze_nor_policy_stops_a_settlement(world: VmWorld, end: End) -> None:
    # Given an escrow whose vault then gets another policy, which forbids everything and expires
    vault, receiver = world.wallet(Rules(expiry=START)), worker(world)
    escrow = lock(world, vault, receiver.vault)
    forbidding = world.policy(Rules(max_per_tx=0, max_per_day=0, velocity_cap=0, restricted=True, expiry=START))
    first = world.fields(vault)["policy"]
    world.vm.succeed(
        world.build.update_wallet(operator=world.operator, vault=vault, policy=first, new_policy=forbidding)
    )
    closing = world.policy_closing(first)
    world.vm.succeed(closing)
    for frozen in (vault, receiver.vault):
        world.vm.succeed(world.freeze(frozen))
    world.pause()
    world.vm.now = START + 1
    # When it is settled, then both sides are paid
    world.vm.succeed(end(world, escrow))
    assert world.balance(receiver.tokens) == RELEASED[end]
    assert world.balance(world.tokens_of(vault)) == FUNDS - RELEASED[end]


def test_vault_with_an_open_escrow_cannot_be_archived(world: VmWorld) -> None:
    vault, receiver = world.wallet(funds=AMOUNT), worker(world)
    escrow = lock(world, vault, receiver.vault)
    world.vm.refuse("OpenEscrows", close_wallet(world, vault))
    world.vm.succeed(completion(world, escrow))
    world.vm.succeed(close_wallet(world, vault))


@pytest.mark.parametrize("end", ENDS)
def test_escrow_settles_only_with_its_own_tokens_and_vault(world: VmWorld, end: End) -> None:
    vault, other, receiver = world.wallet(), world.wallet(), worker(world)
    escrow, twin, theirs = (lock(world, one, receiver.vault) for one in (vault, vault, other))
    settle = end(world, escrow)
    tokens = world.addresses.escrow_tokens
    places = [meta.pubkey for meta in settle.accounts]
    for mine, instead, error in (
        (tokens(escrow.address), tokens(twin.address), "WrongTokenAccount"),
        (tokens(escrow.address), tokens(theirs.address), "WrongTokenAccount"),
        (tokens(escrow.address), place_token_account(world.vm, world.mint, escrow.address, 1), "WrongTokenAccount"),
        (escrow.address, theirs.address, "WrongEscrow"),
        (escrow.address, twin.address, "WrongTokenAccount"),
        (world.tokens_of(vault), world.tokens_of(other), "WrongTokenAccount"),
        (vault, other, "WrongTokenAccount"),
    ):
        world.vm.refuse(error, replaced(settle, places.index(mine), instead))
    assert (held(world, escrow), held(world, twin), held(world, theirs)) == (AMOUNT,) * 3


def test_each_settlement_of_a_transaction_has_its_own_sequence(world: VmWorld) -> None:
    vault, receiver = world.wallet(), worker(world)
    first, second = (lock(world, vault, receiver.vault, amount) for amount in (1, 2))
    third = disputed(world, vault, receiver.vault, 4)
    result = world.vm.succeed(completion(world, first), completion(world, second), decision(world, third, 1))
    assert [event.data["sequence"] for event in result.events] == [7, 8, 9]
    assert [event.data["receiver_balance"] for event in result.events] == [1, 3, 4]
    assert world.fields(vault)["open_escrows"] == 0


def test_one_transaction_can_create_and_complete_an_escrow(world: VmWorld) -> None:
    vault, receiver = world.wallet(), worker(world)
    escrow = OpenEscrow(world.addresses.escrow(vault, 0), vault, receiver.vault, world.payer)
    result = world.vm.succeed(creation(world, vault, receiver.vault), completion(world, escrow))
    assert [event.name for event in result.events] == ["EscrowCreated", "EscrowSettled"]
    assert (is_gone(world, escrow), world.balance(receiver.tokens)) == (True, AMOUNT)


@pytest.mark.parametrize("token_program", [TOKEN_PROGRAM, TOKEN_2022_PROGRAM])
@pytest.mark.parametrize("end", ENDS)
def test_both_token_programs_work(token_program: Pubkey, end: End) -> None:
    world = VmWorld(token_program=token_program)
    vault, outsider = world.wallet(), Pubkey.new_unique()
    escrow = lock(world, vault, outsider)
    world.vm.succeed(end(world, escrow))
    if RELEASED[end]:
        assert world.balance(world.tokens_of(outsider)) == RELEASED[end]
    assert world.balance(world.tokens_of(vault)) == FUNDS - RELEASED[end]
    assert is_gone(world, escrow)


def test_one_key_in_all_roles_can_settle(world: VmWorld) -> None:
    everybody = world.vm.key(LAMPORTS)
    for role in ("operator", "arbiter"):
        world.vm.succeed(world.org_update(**{role: everybody}))
    vault = world.addresses.vault(world.org, "one")
    build, policy = world.build, world.policy()
    session = (everybody, START + 10 * HOUR)
    world.vm.succeed(
        build.create_wallet(payer=everybody, operator=everybody, agent_id="one", policy=policy, session=session)
    )
    world.fill(world.tokens_of(vault), vault, FUNDS)
    first, second, third = (lock(world, vault, everybody, signer=everybody, payer=everybody) for _ in range(3))
    world.vm.succeed(build.complete_escrow(first, payer=everybody, kind=0, output_hash=bytes(32), signer=everybody))
    world.vm.succeed(dispute(world, second, everybody))
    world.vm.succeed(build.resolve_dispute(second, payer=everybody, arbiter=everybody, released=1))
    world.vm.now = START + HOUR
    world.vm.succeed(build.refund_escrow(third))
    assert world.balance(world.tokens_of(everybody)) == AMOUNT + 1
    assert all(is_gone(world, escrow) for escrow in (first, second, third))


def test_exhausted_sequence_is_an_error(world: VmWorld) -> None:
    vault, receiver = world.wallet(), worker(world)
    escrow = lock(world, vault, receiver.vault)
    data = bytearray(world.vm.data(vault))
    struct.pack_into("<Q", data, 16 + 6 * 32 + 8, 2**64 - 1)
    world.vm.put(vault, bytes(data), PROGRAM_ID)
    for last in (completion(world, escrow), dispute(world, escrow), creation(world, vault, receiver.vault)):
        world.vm.refuse("Overflow", last)
