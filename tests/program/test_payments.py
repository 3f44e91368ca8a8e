"""Payments: what moves, what the event reports, who signs, and what is not a payment at all."""

import struct
from collections.abc import Callable

import pytest
from solders.instruction import AccountMeta, Instruction
from solders.pubkey import Pubkey

from app.chain.rules import Rules
from idl.codec import EVENT_IX_TAG, Event
from tests.support.vm import CODEC, PROGRAM_ID, START
from tests.support.vm_tokens import USDC, mint_data, place_token_account, token_account_data
from tests.support.vm_world import NONE, SESSION_ENDS, Payee, VmWorld

MEMO_PROGRAM = Pubkey.from_string("MemoSq4gqABAXKb96qnH8TysNcWxMyWCqXgDLGmfcHr")


@pytest.mark.proves("instruction execute_payment")
@pytest.mark.parametrize("by_session", [True, False])
def test_payment_moves_the_amount_and_reports_everything(world: VmWorld, by_session: bool) -> None:
    vault, payee = world.wallet(funds=10 * USDC), world.payee()
    signer, reference = world.session if by_session else world.operator, b"r" * 16
    result = world.vm.succeed(world.payment(vault, payee, 3 * USDC, signer=signer, reference=reference))
    assert (world.balance(world.tokens_of(vault)), world.balance(payee.tokens)) == (7 * USDC, 3 * USDC)
    assert result.transfers == 1
    assert result.event == Event(
        "PaymentExecuted",
        {
            "org": world.org,
            "vault": vault,
            "policy": world.fields(vault)["policy"],
            "recipient": payee.owner,
            "destination": payee.tokens,
            "signer": signer,
            "approval": NONE,
            "sequence": 3,
            "amount": 3 * USDC,
            "balance": 7 * USDC,
            "timestamp": START,
            "reference": reference,
            "co_signed": 0,
            "by_session": int(by_session),
            "payee": 0,
            "reserved": bytes(5),
        },
    )


def test_payment_is_charged_even_if_no_rule_is_set(world: VmWorld) -> None:
    vault, payee = world.wallet(), world.payee()
    for _ in range(3):
        world.vm.succeed(world.payment(vault, payee, 7))
    ledger = world.fields(vault)["ledger"]
    assert (ledger["last"], ledger["month_spent"]) == (START, 21)
    assert ledger["month_ends_at"] == 1_801_440_000  # date -u -d 2027-02-01 +%s
    assert (ledger["day"]["total"], ledger["day"]["newest"]) == (21, START // 900)
    assert (ledger["hour"]["total"], ledger["hour"]["newest"]) == (3, START // 60)
    assert ledger["day"]["slots"][START // 900 % 97] == 21
    assert ledger["hour"]["slots"][START // 60 % 61] == 3


def test_vaults_sequence_has_no_gap(world: VmWorld) -> None:
    vault, payee = world.wallet(), world.payee()
    other = world.policy()
    policy, build = world.fields(vault)["policy"], world.build
    steps: list[Callable[[], Instruction]] = [
        lambda: world.payment(vault, payee),
        lambda: world.funding(vault, 1),
        lambda: build.update_wallet(operator=world.operator, vault=vault),
        lambda: world.approving(vault, payee.owner, 1, START + 60, bytes(16)),
        lambda: build.close_approval(
            signer=world.operator,
            vault=vault,
            approval=world.addresses.approval(vault, bytes(16)),
            rent_receiver=world.payer,
        ),
        lambda: world.freeze(vault),
        lambda: world.freeze(vault, "Unfreeze", signer=world.authority),
        lambda: build.update_wallet(operator=world.operator, vault=vault, policy=policy, new_policy=other),
        lambda: build.withdraw(operator=world.operator, vault=vault, amount=None, reference=bytes(16)),
        lambda: build.close_wallet(operator=world.operator, vault=vault, policy=other, rent_receiver=world.payer),
    ]
    numbers = [world.vm.succeed(step()).event.data["sequence"] for step in steps]
    assert numbers == list(range(3, 13))


@pytest.mark.parametrize("role", ["authority", "arbiter", "verifier", "stranger"])
def test_only_the_session_authority_and_the_operator_pay(world: VmWorld, role: str) -> None:
    vault = world.wallet()
    world.vm.refuse("Unauthorized", world.payment(vault, world.payee(), signer=getattr(world, role)))


def test_session_authority_of_another_vault_does_not_pay(world: VmWorld) -> None:
    vault, other, elsewhere = world.wallet(), world.wallet(), world.vm.key()
    world.vm.succeed(world.build.update_wallet(operator=world.operator, vault=other, session=(elsewhere, SESSION_ENDS)))
    world.vm.refuse("Unauthorized", world.payment(vault, world.payee(), signer=elsewhere))


def test_zero_and_more_than_the_balance_cannot_be_paid(world: VmWorld) -> None:
    vault, payee = world.wallet(funds=5), world.payee()
    world.vm.refuse("ZeroAmount", world.payment(vault, payee, 0))
    for amount in (6, 2**64 - 1):
        world.vm.refuse("InsufficientBalance", world.payment(vault, payee, amount))
    world.vm.succeed(world.payment(vault, payee, 5))


def test_vault_cannot_pay_itself(world: VmWorld) -> None:
    vault = world.wallet()
    aside = place_token_account(world.vm, world.mint, vault)
    world.vm.refuse("PaymentToSelf", world.payment(vault, Payee(vault, aside)))
    own = Payee(vault, world.tokens_of(vault))
    world.vm.refuse("ConstraintDuplicateMutableAccount", world.payment(vault, own))


def test_another_vault_and_the_reserve_are_payees_like_any_other(world: VmWorld) -> None:
    vault, other = world.wallet(), world.wallet(funds=0)
    world.vm.succeed(world.payment(vault, Payee(other, world.tokens_of(other)), 5))
    world.vm.succeed(world.payment(vault, Payee(world.org, world.reserve), 5))
    assert world.balance(world.tokens_of(other)) == 5


def test_any_token_account_of_the_recipient_can_be_paid(world: VmWorld) -> None:
    vault, owner = world.wallet(), Pubkey.new_unique()
    aside = place_token_account(world.vm, world.mint, owner)
    result = world.vm.succeed(world.payment(vault, Payee(owner, aside), 5))
    assert (result.event.data["recipient"], result.event.data["destination"]) == (owner, aside)


def test_only_token_accounts_of_the_mint_can_be_paid(world: VmWorld) -> None:
    vault, owner = world.wallet(), Pubkey.new_unique()
    other_mint = world.vm.put(Pubkey.new_unique(), mint_data(), world.token_program)
    foreign = place_token_account(world.vm, other_mint, owner)
    frozen = world.vm.put(Pubkey.new_unique(), token_account_data(world.mint, owner, frozen=True), world.token_program)
    forged = world.vm.put(Pubkey.new_unique(), token_account_data(world.mint, owner), PROGRAM_ID)
    refuse = world.vm.refuse
    refuse("Token:3", world.payment(vault, Payee(owner, foreign)))
    refuse("Token:17", world.payment(vault, Payee(owner, frozen)))
    refuse("NotATokenAccount", world.payment(vault, Payee(owner, forged)))
    refuse("NotATokenAccount", world.payment(vault, Payee(owner, Pubkey.new_unique())))
    refuse("NotATokenAccount", world.payment(vault, Payee(owner, world.stranger)))
    refuse("NotATokenAccount", world.payment(vault, Payee(owner, world.policy())))


def test_payment_stays_within_what_wallets_and_facilitators_accept(world: VmWorld) -> None:
    vault, payee = world.wallet(), world.payee()
    memo = Instruction(MEMO_PROGRAM, b"thanks", [])
    result = world.vm.succeed(world.payment(vault, payee), memo)
    assert (result.transfers, len(result.events)) == (1, 1)
    assert result.meta.compute_units_consumed() < 400_000


def test_two_equal_payments_in_a_transaction_both_count(world: VmWorld) -> None:
    vault, payee = world.wallet(), world.payee()
    pay = world.payment(vault, payee, 5)
    result = world.vm.succeed(pay, pay)
    assert [event.data["sequence"] for event in result.events] == [3, 4]
    assert world.balance(payee.tokens) == 10


def test_refusal_rolls_back_the_other_payments_of_its_transaction(world: VmWorld) -> None:
    vault, payee = world.wallet(Rules(max_per_tx=5)), world.payee()
    world.vm.refuse("MaxPerTxExceeded", world.payment(vault, payee, 5), world.payment(vault, payee, 6))


def test_same_signed_payment_is_paid_once(world: VmWorld) -> None:
    vault, payee = world.wallet(), world.payee()
    transaction = world.vm.transaction(world.payment(vault, payee, 5))
    assert world.vm.submit(transaction).error is None
    world.vm.refuse_transaction("AlreadyProcessed", transaction)


def test_payment_uses_the_ledgers_time_when_the_clock_steps_back(world: VmWorld) -> None:
    vault, payee = world.wallet(), world.payee()
    world.vm.succeed(world.payment(vault, payee))
    world.vm.now = START - 10**6
    result = world.vm.succeed(world.payment(vault, payee))
    assert result.event.data["timestamp"] == START


def test_amount_that_the_ledger_cannot_count_is_an_error(world: VmWorld) -> None:
    vault, payee, whole = world.wallet(), world.payee(), 2**64 - 1
    world.fill(world.tokens_of(vault), vault, whole)
    world.vm.succeed(world.payment(vault, payee, whole))
    world.fill(world.tokens_of(vault), vault, 1)
    world.fill(payee.tokens, payee.owner, 0)
    world.vm.refuse("Overflow", world.payment(vault, payee, 1))


def test_exhausted_sequence_is_an_error(world: VmWorld) -> None:
    vault, payee = world.wallet(), world.payee()
    sequence = 16 + 6 * 32 + 8
    data = bytearray(world.vm.data(vault))
    struct.pack_into("<Q", data, sequence, 2**64 - 1)
    world.vm.put(vault, bytes(data), PROGRAM_ID)
    assert world.fields(vault)["sequence"] == 2**64 - 1
    world.vm.refuse("Overflow", world.payment(vault, payee))


@pytest.mark.parametrize("name", [event["name"] for event in CODEC.idl["events"]])
def test_only_the_program_can_emit_its_events(world: VmWorld, name: str) -> None:
    discriminator = next(bytes(e["discriminator"]) for e in CODEC.idl["events"] if e["name"] == name)
    data = EVENT_IX_TAG + discriminator + bytes(512)

    def forge(address: Pubkey, *, signs: bool) -> Instruction:
        return Instruction(PROGRAM_ID, data, [AccountMeta(address, signs, is_writable=False)])

    world.vm.refuse("InvalidSeeds", forge(world.stranger, signs=True))
    world.vm.refuse("InvalidSeeds", forge(world.operator, signs=True))
    world.vm.refuse("MissingRequiredSignature", forge(CODEC.event_authority, signs=False))
    world.vm.refuse("NotEnoughAccountKeys", Instruction(PROGRAM_ID, data, []))


@pytest.mark.parametrize("data", [b"", b"\0", bytes(8), b"\xff" * 64])
def test_unknown_instruction_is_refused(world: VmWorld, data: bytes) -> None:
    metas = world.payment(world.wallet(), world.payee()).accounts
    world.vm.refuse("InvalidInstructionData", Instruction(PROGRAM_ID, data, metas))


def test_truncated_arguments_and_missing_accounts_are_refused(world: VmWorld) -> None:
    pay = world.payment(world.wallet(), world.payee())
    world.vm.refuse("InvalidInstructionData", Instruction(PROGRAM_ID, pay.data[:-1], pay.accounts))
    world.vm.refuse("NotEnoughAccountKeys", Instruction(PROGRAM_ID, pay.data, pay.accounts[:-1]))


def test_multisig_that_looks_like_a_token_account_is_not_paid(world: VmWorld) -> None:
    # Given a multisig whose signers' bytes are those of a token account of the payee, the account type among them
    vault, owner = world.wallet(), Pubkey.new_unique()
    account = token_account_data(world.mint, owner)
    multisig = (account + bytes([2])).ljust(355, b"\0")
    world.vm.refuse(
        "NotATokenAccount",
        world.payment(vault, Payee(owner, world.vm.put(Pubkey.new_unique(), multisig, world.token_program))),
    )
