"""Sides of an escrow that cannot be paid: dust keeps nobody from completing, and shares of a split wait."""

import struct

import pytest
from solders.instruction import AccountMeta, Instruction
from solders.pubkey import Pubkey

from app.chain.addresses import SYSTEM_PROGRAM, TOKEN_2022_PROGRAM
from app.chain.escrow_instructions import OpenEscrow
from idl.codec import Event
from tests.support.vm import START
from tests.support.vm_escrows import (
    AMOUNT,
    FUNDS,
    REFERENCE,
    SPLIT,
    THIRTY_DAYS,
    close_wallet,
    completion,
    decision,
    dispute,
    disputed,
    held,
    is_gone,
    lock,
    worker,
)
from tests.support.vm_tokens import USDC, token_account_data
from tests.support.vm_world import VmWorld

ACCOUNT_TYPE = 2
IMMUTABLE_OWNER, MEMO, CPI_GUARD = 7, 8, 11
"""Extensions of token accounts."""
SHARE = 2 * USDC
"""The receiver's share of the split."""


def place(world: VmWorld, owner: Pubkey, *, frozen: bool) -> None:
    """Freeze or thaw the associated token account of an address."""
    tokens = world.tokens_of(owner)
    data = token_account_data(world.mint, owner, world.balance(tokens), frozen=frozen)
    world.vm.put(tokens, data, world.token_program)


def collecting(world: VmWorld, escrow: OpenEscrow) -> Instruction:
    """Return the collection of what an escrow still owes, by a stranger."""
    return world.build.collect_escrow(escrow, payer=world.stranger)


def test_dust_and_a_frozen_requester_do_not_stop_a_completion(world: VmWorld) -> None:
    vault, receiver = world.wallet(), worker(world)
    escrow = lock(world, vault, receiver.vault)
    world.fill(world.addresses.escrow_tokens(escrow.address), escrow.address, AMOUNT + 1)
    place(world, vault, frozen=True)
    result = world.vm.succeed(completion(world, escrow))
    assert world.balance(receiver.tokens) == AMOUNT + 1
    assert (result.event.data["released"], result.event.data["surplus"]) == (AMOUNT, 1)
    assert result.event.data["reference"] == REFERENCE
    assert is_gone(world, escrow)


@pytest.mark.proves("instruction collect_escrow")
@pytest.mark.parametrize("unpaid", ["receiver", "vault"])
def test_side_that_cannot_be_paid_does_not_stop_the_other(world: VmWorld, unpaid: str) -> None:
    # Given a disputed escrow one side of which has a frozen token account
    vault, receiver = world.wallet(), worker(world)
    escrow = disputed(world, vault, receiver.vault)
    stuck = receiver.vault if unpaid == "receiver" else vault
    place(world, stuck, frozen=True)
    # When it is split
    result = world.vm.succeed(decision(world, escrow, SHARE))
    # Then the other side is paid, and the share stays in the escrow, which is still open
    owed = SHARE if unpaid == "receiver" else AMOUNT - SHARE
    assert held(world, escrow) == owed
    assert (result.event.data["receiver_owed"], result.event.data["vault_owed"]) == (
        int(unpaid == "receiver"),
        int(unpaid == "vault"),
    )
    fields = world.fields(escrow.address)
    assert (fields["outcome"], fields["released"]) == (SPLIT, SHARE)
    assert world.fields(vault)["open_escrows"] == 1
    assert world.fields(vault)["ledger"]["day"]["total"] == SHARE
    # And it is collected by anyone once it can be paid, dust included
    world.vm.refuse("NothingToCollect", collecting(world, escrow))
    place(world, stuck, frozen=False)
    world.fill(world.addresses.escrow_tokens(escrow.address), escrow.address, owed + 1)
    result = world.vm.succeed(collecting(world, escrow))
    released, refunded = (SHARE, 0) if unpaid == "receiver" else (0, AMOUNT - SHARE)
    assert result.event == Event(
        "EscrowCollected",
        {
            "org": world.org,
            "vault": vault,
            "escrow": escrow.address,
            "receiver": receiver.vault,
            "reference": REFERENCE,
            "sequence": world.fields(vault)["sequence"],
            "released": released,
            "refunded": refunded,
            "surplus": 1,
            "vault_balance": FUNDS - SHARE + 1,
            "receiver_balance": SHARE if released else 0,
            "timestamp": START,
            "receiver_is_vault": 1,
            "remains": 0,
            "surplus_to_receiver": 0,
            "reserved": bytes(5),
        },
    )
    assert is_gone(world, escrow)
    assert world.fields(vault)["open_escrows"] == 0
    assert world.fields(vault)["ledger"]["day"]["total"] == SHARE


@pytest.mark.parametrize("first", ["receiver", "vault"])
def test_both_sides_can_be_collected_one_after_the_other(world: VmWorld, first: str) -> None:
    vault, receiver = world.wallet(funds=AMOUNT), worker(world)
    escrow = disputed(world, vault, receiver.vault)
    for owner in (vault, receiver.vault):
        place(world, owner, frozen=True)
    world.vm.succeed(decision(world, escrow, SHARE))
    assert held(world, escrow) == AMOUNT
    sides = (receiver.vault, vault) if first == "receiver" else (vault, receiver.vault)
    for owner, remains in zip(sides, (1, 0), strict=True):
        world.vm.refuse("OpenEscrows", close_wallet(world, vault))
        place(world, owner, frozen=False)
        assert world.vm.succeed(collecting(world, escrow)).event.data["remains"] == remains
    assert (world.balance(receiver.tokens), world.balance(world.tokens_of(vault))) == (SHARE, AMOUNT - SHARE)
    assert is_gone(world, escrow)


def test_token_account_that_is_no_longer_the_receivers_waits(world: VmWorld) -> None:
    vault, payee = world.wallet(), world.payee()
    escrow = disputed(world, vault, payee.owner)
    world.vm.put(payee.tokens, token_account_data(world.mint, world.stranger), world.token_program)
    world.vm.succeed(decision(world, escrow, SHARE))
    assert (held(world, escrow), world.balance(world.tokens_of(vault))) == (SHARE, FUNDS - SHARE)
    world.vm.refuse("NothingToCollect", collecting(world, escrow))
    world.vm.put(payee.tokens, b"", SYSTEM_PROGRAM, 0)
    world.vm.succeed(collecting(world, escrow))
    assert world.balance(payee.tokens) == SHARE


def memo_transfers(tokens: Pubkey, owner: Pubkey, *, required: bool) -> Instruction:
    """Return what makes the owner's Token-2022 account require memos of incoming transfers, or no more."""
    data = bytes([30, 0 if required else 1])
    return Instruction(TOKEN_2022_PROGRAM, data, [AccountMeta(tokens, False, True), AccountMeta(owner, True, False)])


def with_room(tokens: Pubkey, owner: Pubkey, *extensions: int) -> Instruction:
    """Return what makes room for extensions in a Token-2022 account, at its owner's cost."""
    data = bytes([29]) + b"".join(one.to_bytes(2, "little") for one in extensions)
    metas = [(tokens, False, True), (owner, True, True), (SYSTEM_PROGRAM, False, False), (owner, True, False)]
    return Instruction(TOKEN_2022_PROGRAM, data, [AccountMeta(*one) for one in metas])


@pytest.mark.parametrize("extensions", [[MEMO], [IMMUTABLE_OWNER, MEMO, CPI_GUARD]])
def test_receiver_that_requires_memos_does_not_stop_the_requester(extensions: list[int]) -> None:
    # Given a disputed escrow whose receiver makes its token account refuse transfers without a memo
    world = VmWorld(token_program=TOKEN_2022_PROGRAM)
    vault, receiver = world.wallet(), world.vm.key(10**9)
    tokens = world.tokens_of(receiver)
    world.fill(tokens, receiver, 0)
    if IMMUTABLE_OWNER in extensions:
        data = world.vm.data(tokens) + bytes([ACCOUNT_TYPE]) + struct.pack("<HH", IMMUTABLE_OWNER, 0)
        world.vm.put(tokens, data, TOKEN_2022_PROGRAM)
    escrow = disputed(world, vault, receiver)
    added = [one for one in extensions if one != IMMUTABLE_OWNER]
    world.vm.succeed(with_room(tokens, receiver, *added), memo_transfers(tokens, receiver, required=True))
    # When it is split
    result = world.vm.succeed(decision(world, escrow, SHARE))
    # Then the requester is paid, and the receiver's share waits until it requires none
    assert (result.event.data["receiver_owed"], result.event.data["vault_owed"]) == (1, 0)
    assert (held(world, escrow), world.balance(world.tokens_of(vault))) == (SHARE, FUNDS - SHARE)
    world.vm.refuse("NothingToCollect", collecting(world, escrow))
    world.vm.succeed(memo_transfers(tokens, receiver, required=False))
    world.vm.renew_blockhash()
    world.vm.succeed(collecting(world, escrow))
    assert world.balance(tokens) == SHARE
    assert is_gone(world, escrow)


def test_decided_escrow_allows_nothing_but_collecting(world: VmWorld) -> None:
    vault, receiver = world.wallet(), worker(world)
    escrow, open_one = disputed(world, vault, receiver.vault), lock(world, vault, receiver.vault)
    place(world, receiver.vault, frozen=True)
    world.vm.succeed(decision(world, escrow, SHARE))
    place(world, receiver.vault, frozen=False)
    world.vm.now = START + THIRTY_DAYS
    for call in (
        completion(world, escrow),
        world.build.refund_escrow(escrow),
        dispute(world, escrow),
        decision(world, escrow, AMOUNT),
        world.build.withdraw_dispute(escrow, signer=world.operator),
    ):
        world.vm.refuse("EscrowDecided", call)
    world.vm.refuse("EscrowUndecided", collecting(world, open_one))
    world.vm.succeed(collecting(world, escrow))
