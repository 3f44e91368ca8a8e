"""Creating escrows: the whole policy applies, and the receiver must be payable."""

from typing import Any

import pytest
from solders.instruction import Instruction
from solders.pubkey import Pubkey
from solders.system_program import TransferParams, transfer

from app.chain.addresses import domain_hash
from app.chain.escrow_instructions import OpenEscrow
from app.chain.rules import Rules, category_bits
from tests.program.bumps import below_canonical
from tests.support.vm import START
from tests.support.vm_escrows import (
    ALL_KINDS,
    AMOUNT,
    FUNDS,
    HOUR,
    THIRTY_DAYS,
    close_wallet,
    completion,
    creation,
    held,
    is_gone,
    lock,
    next_escrow,
    replaced,
    terms,
    worker,
)
from tests.support.vm_tokens import USDC, place_token_account
from tests.support.vm_world import SESSION_ENDS, Payee, VmWorld

SUM = 2 * AMOUNT
"""Amount of two escrows."""
ADDRESS_WITH_SEED_MISMATCH = "System:5"
"""The system program's error for an address that is not derived with the seed."""


@pytest.mark.proves("instruction create_escrow")
@pytest.mark.parametrize(
    ("rules", "error", "violation"),
    [
        (Rules(expiry=START - 1), "PolicyExpired", ("expiry", START - 1, START)),
        (Rules(restricted=True), "RecipientNotAllowed", ("allowed_recipients", 0, 0)),
        (Rules(blocked_categories=1), "CategoryBlocked", ("blocked_categories", 1, 0)),
        (Rules(max_per_tx=AMOUNT - 1), "MaxPerTxExceeded", ("max_per_tx", AMOUNT - 1, AMOUNT)),
        (Rules(velocity_cap=0), "VelocityCapExceeded", ("velocity_cap", 0, 1)),
        (Rules(max_per_day=AMOUNT - 1), "MaxPerDayExceeded", ("max_per_day", AMOUNT - 1, AMOUNT)),
        (Rules(max_per_month=AMOUNT - 1), "MaxPerMonthExceeded", ("max_per_month", AMOUNT - 1, AMOUNT)),
        (Rules(require_co_sign=AMOUNT - 1), "CoSignRequired", ("require_co_sign", AMOUNT - 1, AMOUNT)),
    ],
)
def test_each_rule_refuses_and_is_reported(
    world: VmWorld, rules: Rules, error: str, violation: tuple[str, int, int]
) -> None:
    vault, receiver = world.wallet(rules), worker(world)
    reported = world.vm.refuse(error, creation(world, vault, receiver.vault)).violation
    assert reported is not None
    assert (reported.rule_name, reported.limit, reported.attempted) == violation
    assert (reported.vault, reported.recipient) == (vault, receiver.vault)


def test_escrows_and_payments_count_together_up_to_the_limits(world: VmWorld) -> None:
    receiver, payee = worker(world), world.payee()
    rules = Rules(
        max_per_tx=AMOUNT,
        max_per_day=SUM,
        max_per_month=SUM,
        velocity_cap=3,
        require_co_sign=AMOUNT,
        expiry=START,
        blocked_categories=category_bits(["gambling"]),
        restricted=True,
    )
    vault = world.wallet(world.policy(rules, [bytes(receiver.vault), bytes(payee.owner)]))
    lock(world, vault, receiver.vault)
    world.vm.succeed(world.payment(vault, payee, AMOUNT - 1))
    world.vm.refuse("MaxPerDayExceeded", creation(world, vault, receiver.vault, 2))
    lock(world, vault, receiver.vault, 1)
    world.vm.refuse("VelocityCapExceeded", creation(world, vault, receiver.vault, 1))
    world.vm.refuse("VelocityCapExceeded", world.payment(vault, payee, 1))


def test_pause_and_freeze_stop_creation_without_a_violation(world: VmWorld) -> None:
    vault, receiver = world.wallet(), worker(world)
    world.vm.succeed(world.freeze(vault))
    assert world.vm.refuse("WalletFrozen", creation(world, vault, receiver.vault)).violation is None
    world.pause()
    assert world.vm.refuse("OrgPaused", creation(world, vault, receiver.vault)).violation is None


def test_receiver_is_judged_by_its_attested_domain_and_category(world: VmWorld) -> None:
    receiver, other = worker(world), worker(world)
    rules = Rules(restricted=True, blocked_categories=category_bits(["uncategorized"]))
    vault = world.wallet(world.policy(rules, [domain_hash("shop.example")]))
    world.vm.succeed(world.registration(receiver.vault, 1, "shop.example"))
    world.vm.refuse("RecipientNotAllowed", creation(world, vault, other.vault))
    world.vm.refuse("RecipientAccountRequired", creation(world, vault, receiver.vault, recipient=None))
    theirs = world.addresses.recipient(world.org, receiver.vault)
    world.vm.refuse("WrongRecipientAccount", creation(world, vault, other.vault, recipient=theirs))
    lock(world, vault, receiver.vault)


def test_co_signed_escrow_passes_the_threshold(world: VmWorld) -> None:
    vault, receiver = world.wallet(Rules(require_co_sign=USDC)), worker(world)
    for role in ("authority", "session", "arbiter", "verifier", "stranger"):
        world.vm.refuse("Unauthorized", creation(world, vault, receiver.vault, co_signer=getattr(world, role)))
    operators = creation(world, vault, receiver.vault, signer=world.operator, co_signer=world.operator)
    world.vm.refuse("CoSignRequired", operators)
    result = world.vm.succeed(creation(world, vault, receiver.vault, co_signer=world.operator))
    assert (result.event.data["co_signed"], result.event.data["by_session"]) == (1, 1)


def test_approved_escrow_passes_once_and_closes_the_approval(world: VmWorld) -> None:
    vault, receiver, other = world.wallet(Rules(require_co_sign=USDC)), worker(world), worker(world)
    before = world.vm.lamports(world.payer)
    approval = world.approval(vault, Payee(receiver.vault, receiver.tokens), AMOUNT, kind="Escrow", terms=terms(world))
    for wrong in (
        creation(world, vault, other.vault, approval=approval),
        creation(world, vault, receiver.vault, AMOUNT + 1, approval=approval),
    ):
        world.vm.refuse("WrongApproval", wrong)
    for receiver_of_rent in (None, world.stranger):
        options: dict[str, Any] = {"approval": approval, "approval_rent_receiver": receiver_of_rent}
        error = "RentReceiverRequired" if receiver_of_rent is None else "WrongRentReceiver"
        world.vm.refuse(error, creation(world, vault, receiver.vault, **options))
    caller = world.vm.key(10**9)
    result = world.vm.succeed(creation(world, vault, receiver.vault, approval=approval, payer=caller))
    assert (result.event.data["approval"], result.event.data["co_signed"]) == (approval, 1)
    assert not world.vm.exists(approval)
    assert world.vm.lamports(world.payer) == before
    world.vm.refuse("AccountDataTooSmall", creation(world, vault, receiver.vault, approval=approval))


def test_approval_covers_exactly_the_terms_of_its_escrow(world: VmWorld) -> None:
    vault, receiver = world.wallet(Rules(require_co_sign=USDC)), worker(world)
    payee = Payee(receiver.vault, receiver.tokens)
    approved: dict[str, Any] = {"expected_output": b"x" * 32, "proof_kinds": 0b10, "timeout": 2 * HOUR}

    def made(**changed: Any) -> Instruction:
        given = {"approval": approval, **approved, **changed}
        return creation(world, vault, receiver.vault, **given)

    approval = world.approval(vault, payee, AMOUNT, kind="Escrow", terms=terms(world, **approved))
    for changed in (
        {"task_hash": b"u" * 32},
        {"expected_output": None},
        {"expected_output": b"y" * 32},
        {"proof_kinds": ALL_KINDS},
        {"timeout": HOUR},
    ):
        world.vm.refuse("WrongApproval", made(**changed))
    for role in ("verifier", "arbiter"):
        world.vm.succeed(world.org_update(**{role: world.stranger}))
        world.vm.refuse("WrongApproval", made())
        world.vm.succeed(world.org_update(**{role: getattr(world, role)}))
    world.vm.succeed(made())


def test_approvals_of_payments_and_escrows_are_not_interchangeable(world: VmWorld) -> None:
    vault, receiver = world.wallet(Rules(require_co_sign=USDC)), worker(world)
    payee = Payee(receiver.vault, receiver.tokens)
    to_pay = world.approval(vault, payee, AMOUNT)
    to_lock = world.approval(vault, payee, AMOUNT, kind="Escrow", terms=terms(world))
    world.vm.refuse("WrongApproval", creation(world, vault, receiver.vault, approval=to_pay))
    world.vm.refuse("WrongApproval", world.payment(vault, payee, AMOUNT, approval=to_lock))
    world.vm.succeed(creation(world, vault, receiver.vault, approval=to_lock))
    world.vm.succeed(world.payment(vault, payee, AMOUNT, approval=to_pay))


@pytest.mark.parametrize("role", ["authority", "arbiter", "verifier", "stranger"])
def test_only_the_session_authority_and_the_operator_create(world: VmWorld, role: str) -> None:
    vault, receiver = world.wallet(), worker(world)
    world.vm.refuse("Unauthorized", creation(world, vault, receiver.vault, signer=getattr(world, role)))
    world.vm.refuse("Unauthorized", creation(world, vault, receiver.vault, signer=receiver.key))


def test_session_creates_until_it_expires(world: VmWorld) -> None:
    vault, receiver = world.wallet(), worker(world)
    world.vm.now = SESSION_ENDS - 1
    lock(world, vault, receiver.vault)
    world.vm.now = SESSION_ENDS
    world.vm.refuse("SessionExpired", creation(world, vault, receiver.vault))


def test_receiver_is_a_live_vault_of_the_organisation_or_an_outsider(world: VmWorld) -> None:
    vault, receiver = world.wallet(), worker(world)
    elsewhere = VmWorld(world.vm, org_id="elsewhere", mint=world.mint)
    foreign, frozen, archived = worker(elsewhere), worker(world), worker(world)
    world.vm.succeed(world.freeze(frozen.vault))
    world.vm.succeed(close_wallet(world, archived.vault))
    refuse = world.vm.refuse
    refuse("WrongOrg", creation(world, vault, foreign.vault))
    refuse("ReceiverFrozen", creation(world, vault, frozen.vault))
    refuse("ReceiverArchived", creation(world, vault, archived.vault))
    refuse("ConstraintDuplicateMutableAccount", creation(world, vault, vault))
    world.vm.succeed(world.registration(world.stranger, 1))
    policy = world.policy(Rules(restricted=True), [bytes(32)])
    owned = [
        world.org,
        world.fields(vault)["policy"],
        world.fields(policy)["allowlist"],
        world.addresses.recipient(world.org, world.stranger),
        world.approval(vault, Payee(receiver.vault, receiver.tokens), AMOUNT),
        lock(world, vault, receiver.vault).address,
    ]
    for address in owned:
        refuse("WrongVault", creation(world, vault, address))
    world.vm.succeed(world.freeze(frozen.vault, "Unfreeze", signer=world.authority))
    lock(world, vault, frozen.vault)


def test_escrow_cannot_be_its_own_receiver(world: VmWorld) -> None:
    vault = world.wallet()
    escrow = world.addresses.escrow(vault, 0)
    for receiver in (escrow, world.addresses.escrow_tokens(escrow)):
        world.vm.refuse("ConstraintDuplicateMutableAccount", creation(world, vault, receiver))


def test_token_account_must_be_the_receivers_associated_one(world: VmWorld) -> None:
    vault, receiver, payee = world.wallet(), worker(world), world.payee()
    for address in (receiver.vault, payee.owner):
        create = creation(world, vault, address)
        named = [meta.pubkey for meta in create.accounts].index(world.tokens_of(address))
        aside = place_token_account(world.vm, world.mint, address)
        for wrong in (aside, payee.tokens if address == receiver.vault else receiver.tokens, address):
            world.vm.refuse("WrongTokenAccount", replaced(create, named, wrong))


def test_zero_and_more_than_the_balance_cannot_be_locked(world: VmWorld) -> None:
    vault, receiver = world.wallet(funds=5), worker(world)
    world.vm.refuse("ZeroAmount", creation(world, vault, receiver.vault, 0))
    for amount in (6, 2**64 - 1):
        world.vm.refuse("InsufficientBalance", creation(world, vault, receiver.vault, amount))
    escrow = lock(world, vault, receiver.vault, 5)
    assert (held(world, escrow), world.balance(world.tokens_of(vault))) == (5, 0)


@pytest.mark.parametrize("kinds", [0, 0b1000, 0b1001, 0b1111, 255])
def test_proof_kinds_are_at_least_one_of_the_three(world: VmWorld, kinds: int) -> None:
    vault, receiver = world.wallet(), worker(world)
    world.vm.refuse("InvalidProofKinds", creation(world, vault, receiver.vault, proof_kinds=kinds))


def test_timeout_is_from_a_minute_to_thirty_days(world: VmWorld) -> None:
    vault, receiver = world.wallet(), worker(world)
    for timeout in (0, 1, 59, THIRTY_DAYS + 1, 2**32 - 1):
        world.vm.refuse("InvalidTimeout", creation(world, vault, receiver.vault, timeout=timeout))
    for timeout in (60, THIRTY_DAYS):
        escrow = lock(world, vault, receiver.vault, timeout=timeout)
        assert world.fields(escrow.address)["deadline"] == START + timeout


def test_vault_has_at_most_64_open_escrows(world: VmWorld) -> None:
    vault, receiver = world.wallet(), worker(world)
    escrows = [lock(world, vault, receiver.vault, 1) for _ in range(64)]
    world.vm.refuse("TooManyEscrows", creation(world, vault, receiver.vault, 1))
    world.vm.now = START + HOUR
    world.vm.succeed(world.build.refund_escrow(escrows[17]))
    assert lock(world, vault, receiver.vault, 1).address == world.addresses.escrow(vault, 64)
    world.vm.refuse("TooManyEscrows", creation(world, vault, receiver.vault, 1))
    fields = world.fields(vault)
    assert (fields["open_escrows"], fields["escrow_counter"]) == (64, 65)


def test_only_the_vaults_next_escrow_can_be_created(world: VmWorld) -> None:
    vault, other, receiver = world.wallet(), world.wallet(), worker(world)
    first = lock(world, vault, receiver.vault)
    for counter in (0, 2, 2**64 - 1):
        world.vm.refuse("InvalidSeeds", creation(world, vault, receiver.vault, counter=counter))
    create, others = (creation(world, one, receiver.vault) for one in (vault, other))
    escrow = world.addresses.escrow(vault, 1)
    wrong = {escrow: "InvalidSeeds", world.addresses.escrow_tokens(escrow): ADDRESS_WITH_SEED_MISMATCH}
    for mine, error in wrong.items():
        at = [meta.pubkey for meta in create.accounts].index(mine)
        world.vm.refuse(error, replaced(create, at, others.accounts[at].pubkey))
    assert held(world, first) == AMOUNT


def test_bump_must_match_the_address_and_need_not_be_canonical(world: VmWorld) -> None:
    vault, receiver, tokens = world.wallet(), worker(world), world.addresses.escrow_tokens
    canonical = world.addresses.escrow(vault, 0)
    address, lower = below_canonical(b"escrow", bytes(vault), bytes(8))
    create = creation(world, vault, receiver.vault)
    given = [meta.pubkey for meta in create.accounts]
    moved = replaced(create, given.index(canonical), address)
    moved = replaced(moved, given.index(tokens(canonical)), tokens(address))

    for wrong in (_with_bump(create, lower), _with_bump(create, 0), moved):
        world.vm.refuse("InvalidSeeds", wrong)
    world.vm.succeed(_with_bump(moved, lower))

    escrow = OpenEscrow(address, vault, receiver.vault, world.payer)
    assert held(world, escrow) == AMOUNT
    world.vm.succeed(completion(world, escrow))
    assert (world.balance(receiver.tokens), is_gone(world, escrow)) == (AMOUNT, True)


def _with_bump(create: Instruction, bump: int) -> Instruction:
    """Return a creation with another bump: the last byte."""
    return Instruction(create.program_id, create.data[:-1] + bytes([bump]), create.accounts)


@pytest.mark.parametrize("lamports", [1, 10**6, 10**9])
def test_lamports_sent_ahead_do_not_block_creation_and_go_to_the_payer(world: VmWorld, lamports: int) -> None:
    vault, receiver = world.wallet(), worker(world)
    escrow = next_escrow(world, vault, receiver.vault)
    tokens = world.addresses.escrow_tokens(escrow.address)
    for address in (escrow.address, tokens):
        world.vm.put(address, b"", Pubkey.default(), lamports)
    before = world.vm.lamports(world.payer)
    world.vm.succeed(creation(world, vault, receiver.vault))
    assert (held(world, escrow), world.balance(world.tokens_of(vault))) == (AMOUNT, FUNDS - AMOUNT)
    world.vm.succeed(transfer(TransferParams(from_pubkey=world.payer, to_pubkey=tokens, lamports=7)))
    world.vm.now = START + HOUR
    world.vm.succeed(world.build.refund_escrow(escrow))
    assert world.vm.lamports(world.payer) == before + 2 * lamports


def test_creation_uses_the_ledgers_time_when_the_clock_steps_back(world: VmWorld) -> None:
    vault, receiver = world.wallet(), worker(world)
    world.vm.succeed(world.payment(vault, world.payee()))
    world.vm.now = START - 10**6
    stored = world.fields(lock(world, vault, receiver.vault).address)
    assert (stored["created_at"], stored["deadline"], stored["charged"]["slot"]) == (START, START + HOUR, START // 900)


def test_refused_creation_rolls_back_its_whole_transaction(world: VmWorld) -> None:
    vault, receiver = world.wallet(Rules(max_per_day=AMOUNT)), worker(world)
    counter = world.fields(vault)["escrow_counter"]
    both = [creation(world, vault, receiver.vault, counter=counter + one) for one in range(2)]
    world.vm.refuse("MaxPerDayExceeded", *both)
    assert world.fields(vault)["escrow_counter"] == counter
