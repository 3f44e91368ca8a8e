"""Receivers that changed after the escrow was created: archived, without a token account, or unpayable."""

import pytest
from solders.instruction import AccountMeta, Instruction
from solders.pubkey import Pubkey

from app.chain.addresses import ASSOCIATED_TOKEN_PROGRAM, SYSTEM_PROGRAM
from tests.program.adversaries.ways import slots
from tests.support import nothing
from tests.support.vm import PROGRAM_ID, START
from tests.support.vm_escrows import (
    AMOUNT,
    COMPLETED,
    FUNDS,
    HOUR,
    OUTPUT,
    OUTPUT_HASH,
    SIGNED_ATTESTATION,
    attested,
    close_wallet,
    completion,
    decision,
    dispute,
    disputed,
    lock,
    replaced,
    worker,
)
from tests.support.vm_tokens import USDC, place_token_account, token_account_data
from tests.support.vm_world import NONE, VmWorld


def test_outside_address_is_paid_into_its_associated_token_account(world: VmWorld) -> None:
    vault, payee = world.wallet(), world.payee()
    escrow = lock(world, vault, payee.owner)
    assert world.fields(escrow.address)["receiver_is_vault"] == 0
    result = world.vm.succeed(completion(world, escrow))
    assert world.balance(payee.tokens) == result.event.data["receiver_balance"] == AMOUNT
    assert result.event.data["receiver_is_vault"] == 0


@pytest.mark.parametrize("ending", ["complete", "split"])
def test_receivers_token_account_is_created_at_the_callers_cost(world: VmWorld, ending: str) -> None:
    vault, outsider, caller = world.wallet(), Pubkey.new_unique(), world.vm.key(10**9)
    escrow = (lock if ending == "complete" else disputed)(world, vault, outsider)
    settle = (
        world.build.complete_escrow(escrow, payer=caller, kind=OUTPUT_HASH, output_hash=OUTPUT, signer=world.operator)
        if ending == "complete"
        else world.build.resolve_dispute(escrow, payer=caller, arbiter=world.arbiter, released=USDC)
    )
    world.vm.succeed(settle)
    tokens = world.tokens_of(outsider)
    assert world.balance(tokens) == (AMOUNT if ending == "complete" else USDC)
    assert 10**9 - world.vm.lamports(caller) == world.vm.lamports(tokens) == world.vm.rent(165)


def test_archived_receiver_is_paid_by_the_operator_and_its_session_is_over(world: VmWorld) -> None:
    vault, receiver = world.wallet(), worker(world)
    shown, signed = (lock(world, vault, receiver.vault) for _ in range(2))
    world.vm.succeed(close_wallet(world, receiver.vault))
    archived = world.fields(receiver.vault)
    assert (archived["session_authority"], archived["session_expires_at"]) == (NONE, 0)
    world.vm.refuse("Unauthorized", completion(world, shown, signer=receiver.key))
    world.vm.refuse("Unauthorized", dispute(world, shown, receiver.key))
    proof = attested(world, signed, SIGNED_ATTESTATION, receiver.key)
    world.vm.refuse("InvalidProof", proof, completion(world, signed, SIGNED_ATTESTATION))
    for escrow in (shown, signed):
        world.vm.succeed(completion(world, escrow, signer=world.operator))
    assert world.balance(receiver.tokens) == 2 * AMOUNT
    home = world.build.withdraw(operator=world.operator, vault=receiver.vault, amount=None, reference=bytes(16))
    world.vm.succeed(home)
    assert world.balance(receiver.tokens) == 0


def test_receivers_closed_token_account_is_created_again(world: VmWorld) -> None:
    vault, payee = world.wallet(), world.payee()
    escrow = lock(world, vault, payee.owner)
    world.vm.put(payee.tokens, b"", SYSTEM_PROGRAM, 0)
    world.vm.succeed(completion(world, escrow))
    assert world.balance(payee.tokens) == AMOUNT


def test_lamports_sent_ahead_do_not_block_the_receivers_token_account(world: VmWorld) -> None:
    vault, outsider = world.wallet(), Pubkey.new_unique()
    escrow = lock(world, vault, outsider)
    world.vm.put(world.tokens_of(outsider), b"", SYSTEM_PROGRAM, 10**6)
    world.vm.succeed(completion(world, escrow))
    assert world.balance(world.tokens_of(outsider)) == AMOUNT


@pytest.mark.parametrize("trouble", ["another owner's", "frozen"])
def test_unpayable_receiver_does_not_lock_the_requesters_money(world: VmWorld, trouble: str) -> None:
    vault, payee = world.wallet(), world.payee()
    timed, argued = (lock(world, vault, payee.owner) for _ in range(2))
    owner = world.stranger if trouble == "another owner's" else payee.owner
    data = token_account_data(world.mint, owner, frozen=trouble == "frozen")
    world.vm.put(payee.tokens, data, world.token_program)
    error = "WrongTokenAccount" if trouble == "another owner's" else "Token:17"
    world.vm.refuse(error, completion(world, timed))
    world.vm.succeed(dispute(world, argued))
    world.vm.refuse(error, decision(world, argued, AMOUNT))
    world.vm.succeed(decision(world, argued, 0))
    world.vm.now = START + HOUR
    world.vm.succeed(world.build.refund_escrow(timed))
    assert world.balance(world.tokens_of(vault)) == FUNDS


def test_release_goes_only_to_the_receivers_own_token_account(world: VmWorld) -> None:
    vault, receiver, payee = world.wallet(), worker(world), world.payee()
    for address in (receiver.vault, payee.owner):
        escrow = lock(world, vault, address)
        complete = completion(world, escrow)
        at = [meta.pubkey for meta in complete.accounts].index(world.tokens_of(address))
        aside = place_token_account(world.vm, world.mint, address)
        theirs = payee.tokens if address == receiver.vault else receiver.tokens
        for wrong in (aside, theirs, world.reserve, world.stranger):
            world.vm.refuse("WrongTokenAccount", replaced(complete, at, wrong))
        world.vm.refuse("ReceiverRequired", replaced(complete, at, PROGRAM_ID))
        world.vm.succeed(complete)


@pytest.mark.parametrize("left_out", ["payer", "receiver", "associated_token_program", "system_program"])
def test_token_account_is_not_created_without_the_needed_accounts(world: VmWorld, left_out: str) -> None:
    vault, outsider = world.wallet(), Pubkey.new_unique()
    escrow = lock(world, vault, outsider)
    complete = completion(world, escrow)
    named = [slot.name for slot in slots("complete_escrow")]
    metas = list(complete.accounts)
    metas[named.index(left_out)] = AccountMeta(PROGRAM_ID, is_signer=False, is_writable=False)
    world.vm.refuse("ReceiverRequired", Instruction(complete.program_id, complete.data, metas))
    # Nor with somebody else's address
    if left_out == "receiver":
        metas[named.index(left_out)] = AccountMeta(world.stranger, is_signer=False, is_writable=False)
        world.vm.refuse("WrongReceiver", Instruction(complete.program_id, complete.data, metas))


def test_lookalike_of_the_associated_token_program_is_refused(world: VmWorld) -> None:
    vault, outsider, lookalike = world.wallet(), Pubkey.new_unique(), Pubkey.new_unique()
    world.vm.svm.add_program(lookalike, nothing.program())
    complete = completion(world, lock(world, vault, outsider))
    at = [meta.pubkey for meta in complete.accounts].index(ASSOCIATED_TOKEN_PROGRAM)
    world.vm.refuse("IncorrectProgramId", replaced(complete, at, lookalike))


def test_event_reports_the_receivers_whole_balance(world: VmWorld) -> None:
    vault, receiver = world.wallet(), worker(world, funds=9)
    escrow = lock(world, vault, receiver.vault)
    event = world.vm.succeed(completion(world, escrow)).event
    assert (event.data["outcome"], event.data["receiver_balance"]) == (COMPLETED, AMOUNT + 9)
