"""The life of an escrow: what each transition does to money, accounts and events, and which are allowed."""

import hashlib
from collections.abc import Callable

import pytest
from solders.instruction import Instruction
from solders.system_program import TransferParams, transfer

from app.chain.escrow_instructions import OpenEscrow
from idl.codec import Event
from tests.support.vm import START, Receipt
from tests.support.vm_escrows import (
    ALL_KINDS,
    AMOUNT,
    COMPLETED,
    EVIDENCE,
    FUNDS,
    HOUR,
    OUTPUT,
    OUTPUT_HASH,
    REASON,
    REFERENCE,
    REFUNDED,
    RELEASED,
    SIGNED_ATTESTATION,
    SPLIT,
    TASK,
    THIRTY_DAYS,
    TIMED_OUT,
    UNDECIDED,
    WEBHOOK_CALLBACK,
    attested,
    completion,
    creation,
    decision,
    dispute,
    disputed,
    held,
    is_gone,
    lock,
    next_escrow,
    worker,
)
from tests.support.vm_tokens import USDC
from tests.support.vm_world import NONE, VmWorld

FEBRUARY = 1_801_440_000
"""date -u -d 2027-02-01 +%s"""
GONE = "AccountDataTooSmall"
"""The error of any instruction on a settled escrow, whose account is empty."""


def settled(world: VmWorld, escrow: OpenEscrow, receipt: Receipt, outcome: int, released: int = 0) -> None:
    """Check balances, event and accounts after the only escrow between two vaults was settled."""
    refunded = AMOUNT - released
    vault_balance, receiver_balance = FUNDS - AMOUNT + refunded, released
    assert world.balance(world.tokens_of(escrow.vault)) == vault_balance
    assert world.balance(world.tokens_of(escrow.receiver)) == receiver_balance
    by_proof = outcome == COMPLETED
    assert receipt.event == Event(
        "EscrowSettled",
        {
            "org": world.org,
            "vault": escrow.vault,
            "escrow": escrow.address,
            "receiver": escrow.receiver,
            "output_hash": OUTPUT if by_proof else bytes(32),
            "reference": REFERENCE,
            "sequence": world.fields(escrow.vault)["sequence"],
            "amount": AMOUNT,
            "released": released,
            "refunded": refunded,
            "surplus": 0,
            "vault_balance": vault_balance,
            "receiver_balance": receiver_balance,
            "timestamp": world.vm.now,
            "outcome": outcome,
            "proof_kind": receipt.event.data["proof_kind"] if by_proof else 0,
            "receiver_is_vault": 1,
            "receiver_owed": 0,
            "vault_owed": 0,
            "surplus_to_receiver": 0,
            "reserved": bytes(2),
        },
    )
    assert is_gone(world, escrow)
    assert world.fields(escrow.vault)["open_escrows"] == 0


def test_creation_moves_the_amount_and_reports_everything(world: VmWorld) -> None:
    vault, receiver = world.wallet(), worker(world)
    escrow, reference = next_escrow(world, vault, receiver.vault), b"r" * 16
    result = world.vm.succeed(creation(world, vault, receiver.vault, reference=reference, expected_output=OUTPUT))
    tokens = world.addresses.escrow_tokens(escrow.address)
    assert (world.balance(world.tokens_of(vault)), world.balance(tokens)) == (FUNDS - AMOUNT, AMOUNT)
    expected = {
        "org": world.org,
        "vault": vault,
        "receiver": receiver.vault,
        "payer": world.payer,
        "task_hash": TASK,
        "output_commitment": hashlib.sha256(OUTPUT).digest(),
        "reference": reference,
        "counter": 0,
        "amount": AMOUNT,
        "deadline": START + HOUR,
        "proof_kinds": ALL_KINDS,
        "has_output_commitment": 1,
        "receiver_is_vault": 1,
    }
    stored = world.fields(escrow.address)
    assert stored == {
        **expected,
        "receiver_tokens": receiver.tokens,
        "tokens": tokens,
        "verifier": world.verifier,
        "arbiter": world.arbiter,
        "created_at": START,
        "disputed_at": 0,
        "disputed_by": NONE,
        "disputed_by_receiver": 0,
        "released": 0,
        "outcome": 0,
        "receiver_owed": 0,
        "vault_owed": 0,
        "raised": 0,
        "layout": 1,
        "dispute_sequence": 0,
        "padding": bytes(6),
        "charged": {
            "slot": START // 900,
            "month": FEBRUARY,
            "level_count": 0,
            "levels": [{"budget": NONE, "created_version": 0, "slot": 0, "month": 0}] * 2,
        },
        "bump": stored["bump"],
    }
    assert result.event == Event(
        "EscrowCreated",
        {
            **expected,
            "policy": world.fields(vault)["policy"],
            "escrow": escrow.address,
            "signer": world.session,
            "approval": NONE,
            "sequence": 3,
            "balance": FUNDS - AMOUNT,
            "timestamp": START,
            "co_signed": 0,
            "by_session": 1,
            "payee": 0,
            "reserved": bytes(2),
        },
    )


def test_creation_is_charged_like_a_payment(world: VmWorld) -> None:
    vault, receiver = world.wallet(), worker(world)
    lock(world, vault, receiver.vault, signer=world.operator)
    fields = world.fields(vault)
    ledger = fields["ledger"]
    assert (fields["escrow_counter"], fields["open_escrows"], fields["sequence"]) == (1, 1, 3)
    assert (ledger["last"], ledger["month_spent"], ledger["day"]["total"]) == (START, AMOUNT, AMOUNT)
    assert (ledger["day"]["slots"][START // 900 % 97], ledger["hour"]["total"]) == (AMOUNT, 1)


@pytest.mark.parametrize("kind", [OUTPUT_HASH, SIGNED_ATTESTATION, WEBHOOK_CALLBACK])
def test_completion_pays_the_receiver(world: VmWorld, kind: int) -> None:
    vault, receiver = world.wallet(), worker(world)
    escrow = lock(world, vault, receiver.vault)
    key = {SIGNED_ATTESTATION: receiver.key, WEBHOOK_CALLBACK: world.verifier}.get(kind)
    before = [] if key is None else [attested(world, escrow, kind, key)]
    world.vm.now = START + HOUR - 1
    result = world.vm.succeed(*before, completion(world, escrow, kind))
    settled(world, escrow, result, COMPLETED, AMOUNT)
    assert result.event.data["proof_kind"] == kind
    # What was released stays spent
    ledger = world.fields(vault)["ledger"]
    assert (ledger["day"]["total"], ledger["month_spent"], ledger["last"]) == (AMOUNT, AMOUNT, START)


@pytest.mark.proves("instruction refund_escrow")
def test_anyone_can_refund_from_the_deadline_on(world: VmWorld) -> None:
    vault, receiver = world.wallet(), worker(world)
    escrow = lock(world, vault, receiver.vault)
    refund = world.build.refund_escrow(escrow)
    world.vm.now = START + HOUR - 1
    world.vm.refuse("EscrowNotExpired", refund)
    world.vm.now = START + HOUR
    for late in (completion(world, escrow), dispute(world, escrow)):
        world.vm.refuse("EscrowExpired", late)
    # Nobody signs but the fee payer of the transaction
    assert not any(meta.is_signer for meta in refund.accounts)
    settled(world, escrow, world.vm.succeed(refund), TIMED_OUT)


def test_dispute_stops_everyone_but_the_arbiter(world: VmWorld) -> None:
    vault, receiver = world.wallet(), worker(world)
    escrow = lock(world, vault, receiver.vault)
    world.vm.now = START + HOUR - 1
    result = world.vm.succeed(dispute(world, escrow))
    parties = {"org": world.org, "vault": vault, "receiver": receiver.vault, "signer": world.session}
    hashes = {"reason_hash": REASON, "evidence_hash": EVIDENCE}
    expected = {**parties, **hashes, "escrow": escrow.address, "sequence": 4, "timestamp": START + HOUR - 1}
    assert result.event == Event("EscrowDisputed", expected)
    assert world.fields(escrow.address)["disputed_at"] == START + HOUR - 1
    assert held(world, escrow) == AMOUNT
    proof = attested(world, escrow, SIGNED_ATTESTATION, receiver.key)
    for now in (START + HOUR - 1, START + HOUR, START + HOUR - 2 + THIRTY_DAYS):
        world.vm.now = now
        world.vm.refuse("EscrowDisputed", completion(world, escrow))
        world.vm.refuse("EscrowDisputed", proof, completion(world, escrow, SIGNED_ATTESTATION))
        world.vm.refuse("EscrowDisputed", dispute(world, escrow, world.operator))
        world.vm.refuse("EscrowNotExpired", world.build.refund_escrow(escrow))


@pytest.mark.parametrize(
    ("released", "outcome"), [(AMOUNT, RELEASED), (0, REFUNDED), (1, SPLIT), (2 * USDC, SPLIT), (AMOUNT - 1, SPLIT)]
)
def test_arbiter_decides(world: VmWorld, released: int, outcome: int) -> None:
    vault, receiver = world.wallet(), worker(world)
    escrow = disputed(world, vault, receiver.vault)
    world.vm.now = START + 2 * THIRTY_DAYS
    settled(world, escrow, world.vm.succeed(decision(world, escrow, released)), outcome, released)


def test_anyone_can_refund_a_dispute_undecided_for_thirty_days(world: VmWorld) -> None:
    vault, receiver = world.wallet(), worker(world)
    escrow = lock(world, vault, receiver.vault)
    world.vm.now = START + 7
    world.vm.succeed(dispute(world, escrow))
    refund = world.build.refund_escrow(escrow)
    world.vm.now = START + 7 + THIRTY_DAYS - 1
    world.vm.refuse("EscrowNotExpired", refund)
    world.vm.now = START + 7 + THIRTY_DAYS
    settled(world, escrow, world.vm.succeed(refund), UNDECIDED)


def _complete(world: VmWorld, escrow: OpenEscrow) -> Instruction:
    return completion(world, escrow)


def _refund(world: VmWorld, escrow: OpenEscrow) -> Instruction:
    return world.build.refund_escrow(escrow)


def _release(world: VmWorld, escrow: OpenEscrow) -> Instruction:
    return decision(world, escrow, AMOUNT)


MOVES: list[Callable[[VmWorld, OpenEscrow], Instruction]] = [_complete, _refund, _release, dispute]


@pytest.mark.parametrize("move", MOVES[:3])
def test_settled_escrow_is_gone_for_every_instruction(
    world: VmWorld, move: Callable[[VmWorld, OpenEscrow], Instruction]
) -> None:
    vault, receiver = world.wallet(), worker(world)
    make = disputed if move is _release else lock
    escrow = make(world, vault, receiver.vault)
    world.vm.now = START + (THIRTY_DAYS if move is _refund else 0)
    first = move(world, escrow)
    world.vm.refuse(GONE, first, first)
    world.vm.succeed(first)
    for now in (START, START + HOUR, START + 2 * THIRTY_DAYS):
        world.vm.now = now
        for again in MOVES:
            world.vm.refuse(GONE, again(world, escrow))


@pytest.mark.parametrize("move", MOVES)
def test_sending_lamports_does_not_revive_an_escrow(
    world: VmWorld, move: Callable[[VmWorld, OpenEscrow], Instruction]
) -> None:
    vault, receiver = world.wallet(), worker(world)
    escrow = lock(world, vault, receiver.vault)
    revive = transfer(TransferParams(from_pubkey=world.payer, to_pubkey=escrow.address, lamports=world.vm.rent(1_000)))
    world.vm.refuse(GONE, completion(world, escrow), revive, move(world, escrow))


def test_escrow_without_a_dispute_cannot_be_decided(world: VmWorld) -> None:
    vault, receiver = world.wallet(), worker(world)
    escrow = lock(world, vault, receiver.vault)
    for released in (0, 1, AMOUNT):
        world.vm.refuse("EscrowNotDisputed", decision(world, escrow, released))


def test_more_than_the_amount_cannot_be_released(world: VmWorld) -> None:
    vault, receiver = world.wallet(), worker(world)
    lock(world, vault, receiver.vault)
    escrow = disputed(world, vault, receiver.vault)
    for released in (AMOUNT + 1, 2**64 - 1):
        world.vm.refuse("EscrowAmountExceeded", decision(world, escrow, released))


def test_escrows_of_a_vault_are_numbered_and_independent(world: VmWorld) -> None:
    vault, receiver = world.wallet(), worker(world)
    first, second = (lock(world, vault, receiver.vault, amount) for amount in (1, 2))
    assert (first.address, second.address) == tuple(world.addresses.escrow(vault, counter) for counter in (0, 1))
    world.vm.succeed(completion(world, second))
    assert (held(world, first), world.balance(receiver.tokens)) == (1, 2)
    third = lock(world, vault, receiver.vault, 4)
    assert third.address == world.addresses.escrow(vault, 2)
    fields = world.fields(vault)
    assert (fields["escrow_counter"], fields["open_escrows"]) == (3, 2)
