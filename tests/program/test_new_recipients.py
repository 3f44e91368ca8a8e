"""Payments under `new_recipient_cap`: strangers, known payees, and the lists that a vault remembers them in."""

import pytest
from solders.pubkey import Pubkey

from app.chain.payees import first_paid
from app.chain.rules import RULES, Rules
from tests.support.vm_allowances import granting
from tests.support.vm_escrows import creation, worker
from tests.support.vm_world import Payee, VmWorld

CAP, DAY = 100, 86_400
FIRST_PAID, KNOWN = 1, 2


def _vault(world: VmWorld, *, allow_allowances: bool = False) -> Pubkey:
    vault = world.wallet(Rules(new_recipient_cap=CAP, allow_allowances=allow_allowances))
    world.vm.succeed(world.build.migrate(payer=world.payer, account=vault))
    return vault


def _pay(world: VmWorld, vault: Pubkey, payee: Payee, amount: int, **options: Pubkey) -> int:
    """Make a payment and return the bits of its event's `payee`."""
    bits: int = world.vm.succeed(world.payment(vault, payee, amount, **options)).event.data["payee"]
    return bits


@pytest.mark.proves("rule new_recipient", "instruction migrate")
def test_stranger_gets_the_cap_until_a_day_after_its_first_payment(world: VmWorld) -> None:
    # Given a vault without lists
    vault, payee = world.wallet(Rules(new_recipient_cap=CAP)), world.payee()
    world.vm.refuse("PayeeListsRequired", world.payment(vault, payee, 1))
    assert not world.check(vault, payee, 1)["passed"]
    # When it gets them
    world.vm.succeed(world.build.migrate(payer=world.payer, account=vault))
    world.vm.refuse("UnsupportedLayout", world.build.migrate(payer=world.payer, account=vault))
    # Then a stranger gets the cap in total
    assert (_pay(world, vault, payee, 60), _pay(world, vault, payee, 40)) == (FIRST_PAID, 0)
    before, started = world.vm.data(vault), world.vm.now
    violation = world.vm.refuse("NewRecipientCapped", world.payment(vault, payee, 1)).violation
    assert violation is not None
    assert (RULES[violation.rule], violation.limit, violation.attempted) == ("new_recipient", CAP, CAP + 1)
    assert world.vm.data(vault) == before
    verdict = world.check(vault, payee, 1)["rules"][-1]
    assert (verdict["passed"], verdict["headroom"], verdict["retry_at"]) == (False, 0, started + DAY)
    # Even if the clock steps back, until its day is over
    world.vm.now = started + DAY - 1
    world.vm.refuse("NewRecipientCapped", world.payment(vault, payee, 1))
    world.vm.now = started + DAY
    assert _pay(world, vault, payee, 5_000) == KNOWN
    world.vm.now = started
    assert _pay(world, vault, payee, 5_000) == 0


def test_consent_makes_a_payee_known_at_once(world: VmWorld) -> None:
    vault, payee, other = _vault(world), world.payee(), world.payee()
    assert _pay(world, vault, payee, 5_000, co_signer=world.operator) == FIRST_PAID | KNOWN
    assert _pay(world, vault, payee, 5_000) == 0
    approval = world.approval(vault, other, 5_000)
    assert _pay(world, vault, other, 5_000, approval=approval) == FIRST_PAID | KNOWN


def test_eight_strangers_block_a_ninth_for_a_day(world: VmWorld) -> None:
    vault, started = _vault(world), world.vm.now
    for _ in range(8):
        _pay(world, vault, world.payee(), 1)
    ninth = world.payee()
    violation = world.vm.refuse("NewRecipientCapped", world.payment(vault, ninth, 1)).violation
    assert violation is not None
    assert (violation.limit, violation.attempted) == (0, 1)
    world.vm.now = started + DAY
    assert _pay(world, vault, ninth, 1) == FIRST_PAID


def test_escrows_and_allowances_count_as_payments(world: VmWorld) -> None:
    vault, payee, receiver = _vault(world, allow_allowances=True), world.payee(), worker(world).vault
    granted = world.vm.succeed(granting(world, vault, payee, world.vm.key(), 60))
    locked = world.vm.succeed(creation(world, vault, receiver, 60))
    assert (granted.event.data["payee"], locked.event.data["payee"]) == (FIRST_PAID, FIRST_PAID)
    world.vm.refuse("NewRecipientCapped", world.payment(vault, payee, 41))
    world.vm.refuse("NewRecipientCapped", creation(world, vault, receiver, 41))


@pytest.mark.proves("instruction forget_payee")
def test_operator_declares_a_known_payee_unknown_but_no_stranger(world: VmWorld) -> None:
    vault, payee, stranger = _vault(world), world.payee(), world.payee()
    _pay(world, vault, payee, 500, co_signer=world.operator)
    _pay(world, vault, stranger, 100)
    forget = world.build.forget_payee(operator=world.operator, vault=vault, address=payee.owner)
    unknown = world.build.forget_payee(operator=world.operator, vault=vault, address=stranger.owner)
    world.vm.refuse("PayeeUnknown", unknown)
    result = world.vm.succeed(forget)
    assert (result.event.name, result.event.data["address"]) == ("PayeeForgotten", payee.owner)
    assert first_paid(world.vm.data(vault), payee.owner) is None
    world.vm.refuse("NewRecipientCapped", world.payment(vault, payee, 101))
    world.vm.refuse("PayeeUnknown", forget)


def test_listed_payee_needs_no_lists(world: VmWorld) -> None:
    payee = world.payee()
    rules = Rules(new_recipient_cap=0, restricted=True)
    vault = world.wallet(world.policy(rules, [bytes(payee.owner)]))
    assert _pay(world, vault, payee, 5_000) == 0
