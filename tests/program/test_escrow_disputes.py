"""Disputes: who can open one, who can decide it, and until when."""

import pytest
from solders.instruction import Instruction
from solders.pubkey import Pubkey

from app.chain.escrow_instructions import OpenEscrow
from idl.codec import Event
from tests.support.vm import PROGRAM_ID, START
from tests.support.vm_escrows import (
    AMOUNT,
    HOUR,
    REFUNDED,
    THIRTY_DAYS,
    completion,
    creation,
    decision,
    dispute,
    disputed,
    lock,
    replaced,
    worker,
)
from tests.support.vm_world import NONE, SESSION_ENDS, VmWorld


@pytest.mark.proves("instruction dispute_escrow", "instruction resolve_dispute")
@pytest.mark.parametrize("role", ["session", "operator", "receiver", "outsider"])
def test_either_side_can_dispute(world: VmWorld, role: str) -> None:
    vault, receiver, outsider = world.wallet(), worker(world), world.vm.key()
    escrow = lock(world, vault, outsider if role == "outsider" else receiver.vault)
    signer = {"receiver": receiver.key, "outsider": outsider}.get(role) or getattr(world, role)
    result = world.vm.succeed(dispute(world, escrow, signer))
    assert result.event.data["signer"] == signer


@pytest.mark.parametrize("role", ["authority", "arbiter", "verifier", "stranger"])
def test_nobody_else_can_dispute(world: VmWorld, role: str) -> None:
    vault, receiver = world.wallet(), worker(world)
    for escrow in (lock(world, vault, receiver.vault), lock(world, vault, world.vm.key())):
        world.vm.refuse("Unauthorized", dispute(world, escrow, getattr(world, role)))
        world.vm.refuse("Unauthorized", dispute(world, escrow, worker(world).key))


def test_receivers_session_disputes_only_with_its_vault(world: VmWorld) -> None:
    vault, receiver, other = world.wallet(), worker(world), worker(world)
    escrow = lock(world, vault, receiver.vault)
    by_receiver = dispute(world, escrow, receiver.key)
    at = [meta.pubkey for meta in by_receiver.accounts].index(receiver.vault)
    for instead in (PROGRAM_ID, other.vault, world.org):
        world.vm.refuse("Unauthorized", replaced(by_receiver, at, instead))
    # The requester does not need the receiver's account
    world.vm.succeed(replaced(dispute(world, escrow), at, PROGRAM_ID))


def test_sessions_can_dispute_until_they_expire(world: VmWorld) -> None:
    vault, receiver = world.wallet(), worker(world)
    world.vm.now = SESSION_ENDS - 2
    escrow = lock(world, vault, receiver.vault)
    world.vm.now = SESSION_ENDS
    for key in (world.session, receiver.key):
        world.vm.refuse("SessionExpired", dispute(world, escrow, key))
    world.vm.now = SESSION_ENDS - 1
    for key in (world.session, receiver.key):
        assert world.vm.simulate(dispute(world, escrow, key)).error is None
    world.vm.now = SESSION_ENDS
    world.vm.succeed(dispute(world, escrow, world.operator))


def test_key_of_both_sides_acts_for_the_side_whose_session_is_valid(world: VmWorld) -> None:
    # Given one session key for both vaults, whose session on the requester's vault ends first
    vault, receiver = world.wallet(), worker(world)
    world.vm.now = SESSION_ENDS - 10
    escrow = lock(world, vault, receiver.vault)
    own = (receiver.key, SESSION_ENDS - 5)
    world.vm.succeed(world.build.update_wallet(operator=world.operator, vault=vault, session=own))
    world.vm.now = SESSION_ENDS - 4
    by_key = dispute(world, escrow, receiver.key)
    assert world.vm.simulate(by_key).error is None
    world.vm.now = SESSION_ENDS
    world.vm.refuse("SessionExpired", by_key)


@pytest.mark.proves("instruction dispute_escrow", "instruction resolve_dispute")
@pytest.mark.parametrize("role", ["authority", "operator", "session", "verifier", "stranger"])
def test_only_the_arbiter_can_decide(world: VmWorld, role: str) -> None:
    vault, receiver = world.wallet(), worker(world)
    escrow = disputed(world, vault, receiver.vault)
    for signer in (getattr(world, role), receiver.key):
        for released in (0, 1, AMOUNT):
            decide = world.build.resolve_dispute(escrow, payer=world.payer, arbiter=signer, released=released)
            world.vm.refuse("Unauthorized", decide)


def test_unsigned_decision_is_refused(world: VmWorld) -> None:
    vault, receiver = world.wallet(), worker(world)
    escrow = disputed(world, vault, receiver.vault)
    decide = decision(world, escrow, AMOUNT)
    at = [meta.pubkey for meta in decide.accounts].index(world.arbiter)
    unsigned = list(decide.accounts)
    unsigned[at] = type(unsigned[at])(PROGRAM_ID, is_signer=False, is_writable=False)
    world.vm.refuse("Unauthorized", type(decide)(decide.program_id, decide.data, unsigned))


def test_arbiter_at_creation_decides_and_not_its_successor(world: VmWorld) -> None:
    vault, receiver, successor = world.wallet(), worker(world), world.vm.key()
    escrow = lock(world, vault, receiver.vault)
    world.vm.succeed(world.org_update(arbiter=successor))
    world.vm.succeed(dispute(world, escrow))
    theirs = world.build.resolve_dispute(escrow, payer=world.payer, arbiter=successor, released=0)
    world.vm.refuse("Unauthorized", theirs)
    world.vm.succeed(decision(world, escrow, 0))
    # The next escrow is the successor's
    following = disputed(world, vault, receiver.vault)
    world.vm.refuse("Unauthorized", decision(world, following, 0))


def test_dispute_without_an_arbiter_ends_in_a_refund(world: VmWorld) -> None:
    vault, receiver = world.wallet(), worker(world)
    world.vm.succeed(world.org_update(arbiter=NONE))
    escrow = disputed(world, vault, receiver.vault)
    world.vm.refuse("Unauthorized", decision(world, escrow, 0))
    world.vm.now = START + THIRTY_DAYS
    world.vm.succeed(world.build.refund_escrow(escrow))


def test_late_decision_is_valid_until_somebody_refunds(world: VmWorld) -> None:
    vault, receiver = world.wallet(), worker(world)
    decided, refunded = (disputed(world, vault, receiver.vault) for _ in range(2))
    world.vm.now = START + THIRTY_DAYS
    assert world.vm.succeed(decision(world, decided, 0)).event.data["outcome"] == REFUNDED
    world.vm.succeed(world.build.refund_escrow(refunded))
    world.vm.refuse("AccountDataTooSmall", decision(world, refunded, AMOUNT))


def test_dispute_moves_no_money_and_changes_no_ledger(world: VmWorld) -> None:
    vault, receiver = world.wallet(), worker(world)
    escrow = lock(world, vault, receiver.vault)
    before = world.fields(vault)
    world.vm.succeed(dispute(world, escrow, receiver.key))
    assert world.fields(vault) == {**before, "sequence": before["sequence"] + 1}


def test_dispute_and_completion_need_the_vaults_own_escrow(world: VmWorld) -> None:
    vault, other, receiver = world.wallet(), world.wallet(), worker(world)
    escrow, theirs = lock(world, vault, receiver.vault), lock(world, other, receiver.vault)
    for make in (dispute, completion):
        mine = make(world, escrow)
        at = [meta.pubkey for meta in mine.accounts].index(escrow.address)
        world.vm.refuse("WrongEscrow", replaced(mine, at, theirs.address))


def test_freeze_and_pause_do_not_stop_disputes_and_decisions(world: VmWorld) -> None:
    vault, receiver = world.wallet(), worker(world)
    escrow = lock(world, vault, receiver.vault)
    for frozen in (vault, receiver.vault):
        world.vm.succeed(world.freeze(frozen))
    world.pause()
    world.vm.succeed(dispute(world, escrow, receiver.key))
    world.vm.succeed(decision(world, escrow, 1))
    assert world.balance(receiver.tokens) == 1


def test_clock_that_steps_back_reopens_nothing(world: VmWorld) -> None:
    vault, receiver = world.wallet(), worker(world)
    escrow = lock(world, vault, receiver.vault)
    world.vm.now = START + HOUR
    world.vm.succeed(world.payment(vault, world.payee()))
    world.vm.now = START + 1
    for late in (completion(world, escrow), dispute(world, escrow)):
        world.vm.refuse("EscrowExpired", late)
    later = world.fields(vault)["escrow_counter"]
    world.vm.succeed(creation(world, vault, receiver.vault))
    assert world.fields(world.addresses.escrow(vault, later))["deadline"] == START + 2 * HOUR
    world.vm.succeed(world.build.refund_escrow(escrow))


def withdrawing(world: VmWorld, escrow: OpenEscrow, signer: Pubkey) -> Instruction:
    """Return the withdrawal of a dispute."""
    return world.build.withdraw_dispute(escrow, signer=signer)


@pytest.mark.proves("instruction withdraw_dispute")
@pytest.mark.parametrize("side", ["requester", "receiver"])
def test_withdrawn_dispute_gives_the_time_that_was_left(world: VmWorld, side: str) -> None:
    vault, receiver = world.wallet(), worker(world)
    escrow = lock(world, vault, receiver.vault)
    world.vm.now = START + HOUR - 10
    signer = world.session if side == "requester" else receiver.key
    world.vm.succeed(dispute(world, escrow, signer))
    world.vm.now = START + 5 * HOUR
    result = world.vm.succeed(withdrawing(world, escrow, signer))
    expected: dict[str, object] = {"org": world.org, "vault": vault, "escrow": escrow.address}
    expected |= {"receiver": receiver.vault, "signer": signer, "sequence": world.fields(vault)["sequence"]}
    expected |= {"timestamp": START + 5 * HOUR, "deadline": START + 5 * HOUR + 10}
    assert result.event == Event("DisputeWithdrawn", expected)
    fields = world.fields(escrow.address)
    assert (fields["disputed_at"], fields["disputed_by"], fields["disputed_by_receiver"]) == (0, NONE, 0)
    world.vm.refuse("EscrowNotDisputed", withdrawing(world, escrow, signer))
    world.vm.now = START + 5 * HOUR + 9
    assert world.vm.simulate(completion(world, escrow)).error is None
    world.vm.now = START + 5 * HOUR + 10
    world.vm.refuse("EscrowExpired", completion(world, escrow))
    world.vm.succeed(world.build.refund_escrow(escrow))


@pytest.mark.parametrize("raiser", ["session", "operator", "receiver"])
def test_only_the_raiser_or_its_operator_withdraws(world: VmWorld, raiser: str) -> None:
    vault, receiver = world.wallet(), worker(world)
    escrow = lock(world, vault, receiver.vault)
    keys = {"session": world.session, "operator": world.operator, "receiver": receiver.key}
    world.vm.succeed(dispute(world, escrow, keys[raiser]))
    others = {name: key for name, key in keys.items() if name not in {raiser, "operator"}}
    for key in (*others.values(), world.authority, world.arbiter, world.stranger, worker(world).key):
        world.vm.refuse("Unauthorized", withdrawing(world, escrow, key))
    assert world.vm.simulate(withdrawing(world, escrow, world.operator)).error is None
    world.vm.succeed(withdrawing(world, escrow, keys[raiser]))


def test_operator_does_not_withdraw_an_outsiders_dispute(world: VmWorld) -> None:
    vault, outsider = world.wallet(), world.vm.key()
    escrow = lock(world, vault, outsider)
    world.vm.succeed(dispute(world, escrow, outsider))
    world.vm.refuse("Unauthorized", withdrawing(world, escrow, world.operator))
    world.vm.succeed(withdrawing(world, escrow, outsider))


def test_raisers_rotated_session_no_longer_withdraws(world: VmWorld) -> None:
    vault, receiver = world.wallet(), worker(world)
    escrow = disputed(world, vault, receiver.vault)
    rotate = world.build.update_wallet(operator=world.operator, vault=vault, session=(world.vm.key(), SESSION_ENDS))
    world.vm.succeed(rotate)
    world.vm.refuse("Unauthorized", withdrawing(world, escrow, world.session))
    world.vm.succeed(withdrawing(world, escrow, world.operator))


def test_other_side_disputes_after_a_withdrawal(world: VmWorld) -> None:
    vault, receiver = world.wallet(), worker(world)
    escrow = disputed(world, vault, receiver.vault)
    world.vm.succeed(withdrawing(world, escrow, world.session))
    for own in (world.session, world.operator):
        world.vm.refuse("DisputeRaisedBefore", dispute(world, escrow, own))
    world.vm.succeed(dispute(world, escrow, receiver.key))
    assert world.fields(escrow.address)["disputed_by"] == receiver.key
    world.vm.succeed(decision(world, escrow, AMOUNT))


def test_receiver_does_not_keep_an_escrow_by_disputing_again(world: VmWorld) -> None:
    # Given a receiver that withdraws its dispute just before the refund
    vault, receiver = world.wallet(), world.vm.key()
    escrow = lock(world, vault, receiver)
    raise_again = dispute(world, escrow, receiver)
    world.vm.succeed(raise_again)
    world.vm.now = START + THIRTY_DAYS - 1
    world.vm.refuse("EscrowNotExpired", world.build.refund_escrow(escrow))
    withdraw = withdrawing(world, escrow, receiver)
    # Then it cannot raise it again, at once or later, and the deadline that it was left with ends the escrow
    world.vm.refuse("DisputeRaisedBefore", withdraw, raise_again)
    world.vm.succeed(withdraw)
    world.vm.refuse("DisputeRaisedBefore", raise_again)
    world.vm.now = world.fields(escrow.address)["deadline"]
    assert world.vm.now < START + THIRTY_DAYS + HOUR
    world.vm.succeed(world.build.refund_escrow(escrow))
