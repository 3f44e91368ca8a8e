"""Approvals: the operator's consent to one payment, given in advance."""

from typing import Any

import pytest
from solders.instruction import Instruction
from solders.pubkey import Pubkey

from app.chain.rules import Rules
from idl.codec import Event
from tests.support.vm import START
from tests.support.vm_tokens import USDC
from tests.support.vm_world import VmWorld

GUARDED = Rules(require_co_sign=USDC)
AMOUNT = 2 * USDC
REFERENCE = b"r" * 16
DAY = 86_400


def closing(
    world: VmWorld, vault: Pubkey, approval: Pubkey, signer: Pubkey, receiver: Pubkey | None = None
) -> Instruction:
    """Return the instruction that withdraws an approval."""
    return world.build.close_approval(
        signer=signer, vault=vault, approval=approval, rent_receiver=receiver or world.payer
    )


def test_approval_is_stored_and_reported(world: VmWorld) -> None:
    vault, payee = world.wallet(GUARDED), world.payee()
    approval = world.addresses.approval(vault, REFERENCE)
    result = world.vm.succeed(world.approving(vault, payee.owner, AMOUNT, START + 60, REFERENCE))
    expected = {"vault": vault, "recipient": payee.owner, "reference": REFERENCE, "amount": AMOUNT}
    expected |= {"policy": world.fields(vault)["policy"], "policy_version": 6}
    expected |= {"payer": world.payer, "expires_at": START + 60}
    expected |= {"kind": 0, "terms": bytes(32)}
    stored = world.fields(approval)
    assert stored == {**expected, "operator": world.operator, "bump": stored["bump"], "layout": 1, "padding": bytes(5)}
    expected |= {"org": world.org, "approval": approval, "sequence": 3, "reserved": bytes(7)}
    assert result.event == Event("PaymentApproved", expected)


@pytest.mark.proves("instruction approve_payment", "instruction close_approval")
def test_approved_payment_passes_once_and_closes_the_approval(world: VmWorld) -> None:
    vault, payee = world.wallet(GUARDED), world.payee()
    before = world.vm.lamports(world.payer)
    approval = world.approval(vault, payee, AMOUNT)
    world.vm.refuse("CoSignRequired", world.payment(vault, payee, AMOUNT))
    result = world.vm.succeed(world.payment(vault, payee, AMOUNT, approval=approval))
    assert (result.event.data["approval"], result.event.data["co_signed"]) == (approval, 1)
    assert not world.vm.exists(approval)
    assert world.vm.lamports(world.payer) == before
    world.vm.refuse("AccountDataTooSmall", world.payment(vault, payee, AMOUNT, approval=approval))


def test_approval_covers_exactly_its_vault_recipient_and_amount(world: VmWorld) -> None:
    policy = world.policy(GUARDED)
    vault, other_vault = world.wallet(policy), world.wallet(policy)
    payee, other = world.payee(), world.payee()
    approval = world.approval(vault, payee, AMOUNT)
    for wrong in (
        world.payment(other_vault, payee, AMOUNT, approval=approval),
        world.payment(vault, other, AMOUNT, approval=approval),
        world.payment(vault, payee, AMOUNT + 1, approval=approval),
        world.payment(vault, payee, AMOUNT - 1, approval=approval),
    ):
        world.vm.refuse("WrongApproval", wrong)
    world.vm.succeed(world.payment(vault, payee, AMOUNT, approval=approval))


def test_approval_ends_when_the_policy_is_updated(world: VmWorld) -> None:
    vault, payee = world.wallet(GUARDED), world.payee()
    approval = world.approval(vault, payee, AMOUNT)
    world.update_policy(world.fields(vault)["policy"], GUARDED)
    world.vm.refuse("ApprovalOutdated", world.payment(vault, payee, AMOUNT, approval=approval))
    renewed = world.approval(vault, payee, AMOUNT)
    world.vm.succeed(world.payment(vault, payee, AMOUNT, approval=renewed))


def test_approval_is_valid_until_it_expires(world: VmWorld) -> None:
    vault, payee = world.wallet(GUARDED), world.payee()
    in_time, late = (world.approval(vault, payee, AMOUNT, expires_in=100) for _ in range(2))
    world.vm.now = START + 99
    world.vm.succeed(world.payment(vault, payee, AMOUNT, approval=in_time))
    world.vm.now = START + 100
    world.vm.refuse("ApprovalExpired", world.payment(vault, payee, AMOUNT, approval=late))


def test_approval_lasts_at_most_a_day(world: VmWorld) -> None:
    vault, payee = world.wallet(GUARDED), world.payee()
    for expires_at in (START - 1, START, START + DAY + 1, 2**63 - 1, -(2**63)):
        world.vm.refuse("InvalidTime", world.approving(vault, payee.owner, AMOUNT, expires_at, REFERENCE))
    for expires_at in (START + 1, START + DAY):
        reference = expires_at.to_bytes(16, "big")
        world.vm.succeed(world.approving(vault, payee.owner, AMOUNT, expires_at, reference))


def test_zero_amounts_and_used_references_are_not_approved(world: VmWorld) -> None:
    vault, payee = world.wallet(GUARDED), world.payee()
    world.vm.refuse("ZeroAmount", world.approving(vault, payee.owner, 0, START + 60, REFERENCE))
    approve = world.approving(vault, payee.owner, AMOUNT, START + 60, REFERENCE)
    world.vm.succeed(approve)
    world.vm.refuse("SequenceMismatch", approve)
    world.vm.refuse("System:0", world.approving(vault, payee.owner, AMOUNT, START + 60, REFERENCE))


def test_kept_copy_does_not_renew_a_used_approval(world: VmWorld) -> None:
    vault, payee = world.wallet(GUARDED), world.payee()
    kept = world.approving(vault, payee.owner, AMOUNT, START + 60, REFERENCE)
    world.vm.succeed(kept)
    pay = world.payment(vault, payee, AMOUNT, approval=world.addresses.approval(vault, REFERENCE))
    world.vm.succeed(pay)
    world.vm.refuse("SequenceMismatch", kept)


@pytest.mark.parametrize("role", ["authority", "arbiter", "verifier", "session", "stranger"])
def test_only_the_operator_approves(world: VmWorld, role: str) -> None:
    vault, payee = world.wallet(GUARDED), world.payee()
    world.vm.refuse(
        "Unauthorized",
        world.build.approve_payment(
            payer=world.payer,
            operator=getattr(world, role),
            vault=vault,
            policy=world.fields(vault)["policy"],
            reference=REFERENCE,
            recipient=payee.owner,
            amount=AMOUNT,
            expires_at=START + 60,
        ),
    )


def test_operator_can_withdraw_an_approval(world: VmWorld) -> None:
    vault, payee = world.wallet(GUARDED), world.payee()
    before = world.vm.lamports(world.payer)
    approval = world.approval(vault, payee, AMOUNT)
    for role in ("authority", "session", "arbiter", "verifier", "stranger"):
        world.vm.refuse("Unauthorized", closing(world, vault, approval, getattr(world, role)))
    world.vm.refuse("WrongRentReceiver", closing(world, vault, approval, world.operator, world.stranger))
    pay = world.payment(vault, payee, AMOUNT, approval=approval)
    result = world.vm.succeed(closing(world, vault, approval, world.operator))
    expected = {"org": world.org, "vault": vault, "approval": approval, "sequence": 4}
    assert result.event == Event("ApprovalClosed", expected)
    assert world.vm.lamports(world.payer) == before
    world.vm.refuse("AccountDataTooSmall", pay)


@pytest.mark.proves("instruction approve_payment", "instruction close_approval")
def test_anyone_can_close_an_expired_approval(world: VmWorld) -> None:
    vault, payee = world.wallet(GUARDED), world.payee()
    approval = world.approval(vault, payee, AMOUNT, expires_in=100)
    clear = closing(world, vault, approval, world.stranger)
    world.vm.now = START + 99
    world.vm.refuse("Unauthorized", clear)
    world.vm.now = START + 100
    world.vm.succeed(clear)
    assert not world.vm.exists(approval)


def test_rent_of_a_used_approval_cannot_go_to_anyone_else(world: VmWorld) -> None:
    vault, payee = world.wallet(GUARDED), world.payee()
    approval = world.approval(vault, payee, AMOUNT)
    for receiver in (None, world.stranger, world.session):
        options: dict[str, Any] = {"approval": approval, "approval_rent_receiver": receiver}
        error = "RentReceiverRequired" if receiver is None else "WrongRentReceiver"
        world.vm.refuse(error, world.payment(vault, payee, AMOUNT, **options))


def test_operators_own_payment_cannot_be_co_signed_by_its_approval(world: VmWorld) -> None:
    vault, payee = world.wallet(GUARDED), world.payee()
    approval = world.approval(vault, payee, AMOUNT)
    for options in ({"approval": approval}, {"co_signer": world.operator}):
        world.vm.refuse("CoSignRequired", world.payment(vault, payee, AMOUNT, signer=world.operator, **options))


def test_approval_lifts_no_other_rule(world: VmWorld) -> None:
    vault, payee = world.wallet(Rules(require_co_sign=0, max_per_tx=AMOUNT - 1)), world.payee()
    approval = world.approval(vault, payee, AMOUNT)
    world.vm.refuse("MaxPerTxExceeded", world.payment(vault, payee, AMOUNT, approval=approval))
    assert world.vm.exists(approval)


def test_approval_ends_when_the_vault_gets_another_policy(world: VmWorld) -> None:
    vault, payee, other = world.wallet(GUARDED), world.payee(), world.policy(GUARDED)
    approval = world.approval(vault, payee, AMOUNT)
    world.vm.succeed(
        world.build.update_wallet(
            operator=world.operator, vault=vault, policy=world.fields(vault)["policy"], new_policy=other
        )
    )
    # The other policy has the same rules but is not the one the operator saw
    world.vm.refuse("ApprovalOutdated", world.payment(vault, payee, AMOUNT, approval=approval))


def test_approval_ends_when_the_operator_is_replaced(world: VmWorld) -> None:
    vault, payee, successor = world.wallet(GUARDED), world.payee(), world.vm.key()
    approval = world.approval(vault, payee, AMOUNT)
    world.vm.succeed(world.org_update(operator=successor))
    world.vm.refuse("ApprovalOutdated", world.payment(vault, payee, AMOUNT, approval=approval))
    world.vm.succeed(closing(world, vault, approval, successor))


def test_approval_of_an_archived_vault_can_be_withdrawn(world: VmWorld) -> None:
    vault, payee = world.wallet(GUARDED, funds=0), world.payee()
    approval = world.approval(vault, payee, AMOUNT)
    world.vm.succeed(
        world.build.close_wallet(
            operator=world.operator,
            vault=vault,
            policy=world.fields(vault)["policy"],
            rent_receiver=world.payer,
        )
    )
    result = world.vm.succeed(closing(world, vault, approval, world.operator))
    assert result.event.data["sequence"] == world.fields(vault)["sequence"] == 4
    assert not world.vm.exists(approval)


def test_approval_is_made_at_the_vaults_time(world: VmWorld) -> None:
    # Given a vault that has paid before the clock stepped back
    vault, payee = world.wallet(GUARDED), world.payee()
    world.vm.now = START + 100
    world.vm.succeed(world.payment(vault, payee, 1))
    world.vm.now = START
    # Then an approval that its payments would find expired is not made
    for expires_at in (START + 1, START + 100):
        world.vm.refuse("InvalidTime", world.approving(vault, payee.owner, AMOUNT, expires_at, REFERENCE))
    world.vm.succeed(world.approving(vault, payee.owner, AMOUNT, START + 100 + DAY, REFERENCE))
    approval = world.addresses.approval(vault, REFERENCE)
    world.vm.succeed(world.payment(vault, payee, AMOUNT, approval=approval))
