"""Freezing and unfreezing vaults: who may do it, when, and for which reason."""

import pytest

from app.chain.rules import Rules
from idl.codec import Event
from tests.support.vm import START
from tests.support.vm_escrows import dispute, lock
from tests.support.vm_world import OPEN, VmWorld

EXPIRING = Rules(expiry=START + 100)
NO, MANUAL, EXPIRY = range(3)


@pytest.mark.proves("instruction freeze_wallet")
@pytest.mark.parametrize("role", ["operator", "authority"])
def test_frozen_vault_does_not_pay_until_the_authority_unfreezes_it(world: VmWorld, role: str) -> None:
    vault, payee, signer = world.wallet(), world.payee(), getattr(world, role)
    frozen = world.vm.succeed(world.freeze(vault, signer=signer))
    expected = {"org": world.org, "vault": vault, "reserved": bytes(7)}
    assert frozen.event == Event("WalletFrozen", {**expected, "signer": signer, "sequence": 3, "reason": MANUAL})
    assert world.fields(vault)["frozen"] == MANUAL
    assert world.vm.refuse("WalletFrozen", world.payment(vault, payee)).violation is None
    world.vm.refuse("AlreadyFrozen", world.freeze(vault))
    world.vm.refuse("AlreadyFrozen", world.freeze(vault, "Expire"))
    world.vm.refuse("Unauthorized", world.freeze(vault, "Unfreeze"))
    lifted = world.vm.succeed(world.freeze(vault, "Unfreeze", signer=world.authority))
    assert lifted.event == Event(
        "WalletUnfrozen", {**expected, "signer": world.authority, "sequence": 4, "reason": MANUAL}
    )
    world.vm.succeed(world.payment(vault, payee))
    world.vm.refuse("NotFrozen", world.freeze(vault, "Unfreeze", signer=world.authority))


def test_operator_cannot_dodge_a_freeze_by_switching_policies(world: VmWorld) -> None:
    # Given a freeze that the authority has signed
    vault, other = world.wallet(), world.policy()
    freeze = world.freeze(vault, signer=world.authority)
    # When the operator attaches another policy before it lands
    attached = world.fields(vault)["policy"]
    world.vm.succeed(world.build.update_wallet(operator=world.operator, vault=vault, policy=attached, new_policy=other))
    # Then it freezes the vault, while other actions still need the policy
    world.vm.succeed(freeze)
    unfreeze = world.build.freeze_wallet(signer=world.authority, vault=vault, action="Unfreeze", expected_sequence=4)
    world.vm.refuse("PolicyRequired", unfreeze)
    wrong = world.build.freeze_wallet(signer=world.stranger, vault=vault, policy=attached, action="Expire")
    world.vm.refuse("WrongPolicy", wrong)


@pytest.mark.parametrize("role", ["session", "arbiter", "verifier", "stranger"])
def test_nobody_else_can_freeze_or_unfreeze(world: VmWorld, role: str) -> None:
    vault, signer = world.wallet(EXPIRING), getattr(world, role)
    world.vm.refuse("Unauthorized", world.freeze(vault, signer=signer))
    world.vm.now = START + 101
    world.vm.succeed(world.freeze(vault, "Expire", signer=signer))
    world.update_policy(world.fields(vault)["policy"], OPEN)
    world.vm.refuse("Unauthorized", world.freeze(vault, "Unfreeze", signer=signer))


@pytest.mark.proves("instruction freeze_wallet")
def test_anyone_can_freeze_a_vault_of_an_expired_policy_once(world: VmWorld) -> None:
    vault, payee = world.wallet(EXPIRING), world.payee()
    expire = world.freeze(vault, "Expire", signer=world.stranger)
    world.vm.now = START + 100
    world.vm.refuse("PolicyNotExpired", expire)
    world.vm.succeed(world.payment(vault, payee))
    world.vm.now = START + 101
    assert world.vm.refuse("PolicyExpired", world.payment(vault, payee)).violation is not None
    result = world.vm.succeed(expire)
    expected = {"org": world.org, "vault": vault, "signer": world.stranger, "sequence": 4}
    assert result.event == Event("WalletFrozen", {**expected, "reason": EXPIRY, "reserved": bytes(7)})
    world.vm.refuse("AlreadyFrozen", expire)
    world.vm.refuse("WalletFrozen", world.payment(vault, payee))


def test_vault_of_a_policy_without_expiry_does_not_expire(world: VmWorld) -> None:
    world.vm.refuse("PolicyNotExpired", world.freeze(world.wallet(), "Expire"))


def test_operator_lifts_an_expiry_freeze_once_the_policy_is_extended(world: VmWorld) -> None:
    vault, payee = world.wallet(EXPIRING), world.payee()
    policy = world.fields(vault)["policy"]
    world.vm.now = START + 101
    world.vm.succeed(world.freeze(vault, "Expire"))
    for signer in (world.operator, world.authority):
        world.vm.refuse("PolicyExpired", world.freeze(vault, "Unfreeze", signer=signer))
    world.update_policy(policy, Rules(expiry=START + 101))
    lifted = world.vm.succeed(world.freeze(vault, "Unfreeze"))
    assert lifted.event.data["reason"] == EXPIRY
    world.vm.succeed(world.payment(vault, payee))


def test_operator_lifts_an_expiry_freeze_once_the_vault_has_another_policy(world: VmWorld) -> None:
    vault, other = world.wallet(EXPIRING), world.policy()
    world.vm.now = START + 101
    world.vm.succeed(world.freeze(vault, "Expire"))
    world.vm.succeed(
        world.build.update_wallet(
            operator=world.operator, vault=vault, policy=world.fields(vault)["policy"], new_policy=other
        )
    )
    world.vm.refuse("WalletFrozen", world.payment(vault, world.payee()))
    world.vm.succeed(world.freeze(vault, "Unfreeze"))


def test_operator_cannot_lift_an_expiry_freeze_that_became_manual(world: VmWorld) -> None:
    vault = world.wallet(EXPIRING)
    world.vm.now = START + 101
    world.vm.succeed(world.freeze(vault, "Expire"))
    world.vm.succeed(world.freeze(vault))
    world.update_policy(world.fields(vault)["policy"], OPEN)
    world.vm.refuse("Unauthorized", world.freeze(vault, "Unfreeze"))
    world.vm.succeed(world.freeze(vault, "Unfreeze", signer=world.authority))


def test_authority_cannot_lift_a_freeze_under_an_expired_policy(world: VmWorld) -> None:
    vault = world.wallet(EXPIRING)
    world.vm.succeed(world.freeze(vault))
    world.vm.now = START + 101
    world.vm.refuse("PolicyExpired", world.freeze(vault, "Unfreeze", signer=world.authority))


def test_clock_that_steps_back_does_not_undo_an_expiry(world: VmWorld) -> None:
    vault, payee = world.wallet(), world.payee()
    policy = world.fields(vault)["policy"]
    world.vm.now = START + 200
    world.vm.succeed(world.payment(vault, payee))
    world.update_policy(policy, EXPIRING)
    world.vm.now = START
    world.vm.refuse("PolicyExpired", world.payment(vault, payee))
    world.vm.succeed(world.freeze(vault, "Expire", signer=world.stranger))


def test_outsider_does_not_keep_a_vault_frozen(world: VmWorld) -> None:
    # Given an unfreeze that the authority signed for a vault with an outsider's escrow
    vault, outsider = world.wallet(), world.vm.key()
    escrow = lock(world, vault, outsider)
    world.vm.succeed(world.freeze(vault))
    unfreeze = world.freeze(vault, "Unfreeze", signer=world.authority)
    # When the outsider changes the vault's sequence
    world.vm.succeed(dispute(world, escrow, outsider))
    world.vm.succeed(world.build.withdraw_dispute(escrow, signer=outsider))
    # Then it is still good
    world.vm.succeed(unfreeze)


def test_second_freeze_leaves_an_unfreeze_good(world: VmWorld) -> None:
    vault = world.wallet(EXPIRING)
    world.vm.succeed(world.freeze(vault))
    unfreeze = world.freeze(vault, "Unfreeze", signer=world.authority)
    world.vm.refuse("AlreadyFrozen", world.freeze(vault))
    world.vm.refuse("AlreadyFrozen", world.freeze(vault, "Expire"))
    world.vm.succeed(unfreeze)


def test_unfreeze_after_an_expiry_lifts_no_manual_freeze(world: VmWorld) -> None:
    # Given an unfreeze that the authority signed for a freeze by expiry
    vault = world.wallet(EXPIRING)
    world.vm.now = START + 101
    world.vm.succeed(world.freeze(vault, "Expire"))
    world.update_policy(world.fields(vault)["policy"], OPEN)
    kept = world.freeze(vault, "Unfreeze", signer=world.authority)
    # When somebody freezes the vault by hand
    world.vm.succeed(world.freeze(vault))
    # Then it does not lift that
    world.vm.refuse("SequenceMismatch", kept)
    world.vm.succeed(world.freeze(vault, "Unfreeze", signer=world.authority))


def test_late_unfreeze_lifts_no_later_freeze(world: VmWorld) -> None:
    # Given an unfreeze that was signed for one freeze and not sent
    vault = world.wallet()
    world.vm.succeed(world.freeze(vault))
    kept = world.freeze(vault, "Unfreeze", signer=world.authority)
    world.vm.succeed(world.freeze(vault, "Unfreeze", signer=world.authority))
    world.vm.succeed(world.freeze(vault))
    # Then it does not lift the next one, nor does one that names no sequence
    world.vm.refuse("SequenceMismatch", kept)
    unnamed = world.build.freeze_wallet(
        signer=world.authority, vault=vault, policy=world.fields(vault)["policy"], action="Unfreeze"
    )
    world.vm.refuse("SequenceMismatch", unnamed)
    world.vm.succeed(world.freeze(vault, "Unfreeze", signer=world.authority))
