"""Registering recipients: who may do it, when it takes effect, and what it means for payments."""

import pytest
from solders.pubkey import Pubkey

from app.chain.addresses import domain_hash
from app.chain.rules import CATEGORIES, Rules, category_bits
from idl.codec import Event
from tests.support.vm import PROGRAM_ID, START
from tests.support.vm_world import VmWorld

GAMBLING = CATEGORIES.index("gambling")
NO_GAMBLING = Rules(blocked_categories=category_bits(["gambling"]))
NOT_UNKNOWN = Rules(blocked_categories=category_bits(["uncategorized"]))
DELAY = 3_600


@pytest.fixture
def slow() -> VmWorld:
    """An organisation in which the operator's attestations take effect after an hour."""
    return VmWorld(attestation_delay=DELAY)


@pytest.mark.proves("instruction register_recipient")
@pytest.mark.parametrize("domain", [None, "Shop.Example"])
def test_registration_is_stored_and_reported(world: VmWorld, domain: str | None) -> None:
    payee = world.payee()
    result = world.vm.succeed(world.registration(payee.owner, GAMBLING, domain))
    expected = {
        "org": world.org,
        "address": payee.owner,
        "domain_hash": bytes(32) if domain is None else domain_hash("shop.example"),
        "effective_at": START,
        "category": GAMBLING,
        "has_domain": int(domain is not None),
    }
    stored = world.fields(world.addresses.recipient(world.org, payee.owner))
    assert stored == {**expected, "sequence": 6, "layout": 1, "padding": bytes(5)}
    expected |= {"signer": world.operator, "sequence": 6, "reserved": bytes(6)}
    assert result.event == Event("RecipientRegistered", expected)


@pytest.mark.parametrize("category", [20, 32, 255])
def test_category_must_exist(world: VmWorld, category: int) -> None:
    world.vm.refuse("UnknownCategory", world.registration(Pubkey.new_unique(), category))


def test_operator_registers_once_and_only_the_authority_can_change_it(world: VmWorld) -> None:
    payee = world.payee()
    world.vm.succeed(world.registration(payee.owner, GAMBLING, "shop.example"))
    world.vm.refuse("Unauthorized", world.registration(payee.owner, GAMBLING))
    result = world.vm.succeed(world.registration(payee.owner, 1, signer=world.authority))
    assert (result.event.data["category"], result.event.data["has_domain"]) == (1, 0)
    assert result.event.data["domain_hash"] == bytes(32)


@pytest.mark.parametrize("role", ["arbiter", "verifier", "session", "stranger"])
def test_nobody_else_can_register_recipients(world: VmWorld, role: str) -> None:
    address = Pubkey.new_unique()
    world.vm.refuse("Unauthorized", world.registration(address, signer=getattr(world, role)))


def test_operators_attestation_allows_nothing_before_the_delay(slow: VmWorld) -> None:
    payee, vault = slow.payee(), slow.wallet(NOT_UNKNOWN)
    slow.vm.succeed(slow.registration(payee.owner, GAMBLING))
    slow.vm.now = START + DELAY - 1
    slow.vm.refuse("CategoryBlocked", slow.payment(vault, payee))
    slow.vm.now = START + DELAY
    slow.vm.succeed(slow.payment(vault, payee))


def test_operators_attestation_blocks_at_once_even_if_the_clock_steps_back(slow: VmWorld) -> None:
    payee, vault = slow.payee(), slow.wallet(NO_GAMBLING)
    slow.vm.succeed(slow.registration(payee.owner, GAMBLING))
    for now in (START, START - 1, START + DELAY - 1, START + DELAY):
        slow.vm.now = now
        slow.vm.refuse("CategoryBlocked", slow.payment(vault, payee))


def test_authoritys_attestation_counts_at_once(slow: VmWorld) -> None:
    payee, vault = slow.payee(), slow.wallet(NO_GAMBLING)
    slow.vm.succeed(slow.registration(payee.owner, GAMBLING, signer=slow.authority))
    slow.vm.refuse("CategoryBlocked", slow.payment(vault, payee))


def test_authority_can_correct_an_attestation_before_it_counts(slow: VmWorld) -> None:
    payee, vault = slow.payee(), slow.wallet(NO_GAMBLING)
    slow.vm.succeed(slow.registration(payee.owner, 1))
    slow.vm.succeed(slow.registration(payee.owner, GAMBLING, signer=slow.authority))
    slow.vm.refuse("CategoryBlocked", slow.payment(vault, payee))


def test_unregistered_recipient_can_be_blocked_as_uncategorized(slow: VmWorld) -> None:
    payee, open_vault, closed_vault = slow.payee(), slow.wallet(NO_GAMBLING), slow.wallet(NOT_UNKNOWN)
    slow.vm.succeed(slow.payment(open_vault, payee))
    slow.vm.refuse("CategoryBlocked", slow.payment(closed_vault, payee))
    # The operator's registration has no effect before the delay has passed
    slow.vm.succeed(slow.registration(payee.owner, 1))
    slow.vm.refuse("CategoryBlocked", slow.payment(closed_vault, payee))
    slow.vm.now = START + DELAY
    slow.vm.succeed(slow.payment(closed_vault, payee))


def test_longest_delay_never_ends_and_does_not_wrap() -> None:
    world = VmWorld(attestation_delay=2**64 - 1)
    payee, vault = world.payee(), world.wallet(NOT_UNKNOWN)
    result = world.vm.succeed(world.registration(payee.owner, GAMBLING))
    assert result.event.data["effective_at"] == 2**63 - 1
    world.vm.refuse("CategoryBlocked", world.payment(vault, payee))


def test_blocking_policy_needs_the_recipients_own_account(world: VmWorld) -> None:
    payee, other, vault = world.payee(), world.payee(), world.wallet(NO_GAMBLING)
    world.vm.succeed(world.registration(payee.owner, GAMBLING))
    world.vm.succeed(world.registration(other.owner, 1))
    world.vm.refuse("RecipientAccountRequired", world.payment(vault, payee, recipient=None))
    elsewhere = VmWorld(world.vm, org_id="other", mint=world.mint)
    elsewhere.vm.succeed(elsewhere.registration(payee.owner, 1))
    evasions = [
        world.addresses.recipient(world.org, other.owner),
        world.addresses.recipient(world.org, Pubkey.new_unique()),
        elsewhere.addresses.recipient(elsewhere.org, payee.owner),
        Pubkey.new_unique(),
        vault,
    ]
    for recipient in evasions:
        refused = world.vm.send(world.payment(vault, payee, recipient=recipient))
        duplicate = {"ConstraintDuplicateMutableAccount"} if recipient == vault else set()
        assert refused.error in {"WrongRecipientAccount"} | duplicate
    world.vm.refuse("CategoryBlocked", world.payment(vault, payee))


@pytest.mark.parametrize("code", range(len(CATEGORIES)))
def test_each_category_is_blocked_only_by_its_bit(world: VmWorld, code: int) -> None:
    payee = world.payee()
    world.vm.succeed(world.registration(payee.owner, code))
    everything = (1 << len(CATEGORIES)) - 1
    world.vm.succeed(world.payment(world.wallet(Rules(blocked_categories=everything & ~(1 << code))), payee))
    refused = world.vm.refuse(
        "CategoryBlocked", world.payment(world.wallet(Rules(blocked_categories=1 << code)), payee)
    )
    assert refused.violation is not None
    assert (refused.violation.limit, refused.violation.attempted) == (1 << code, code)


def flipped(address: Pubkey) -> Pubkey:
    """Return another address that differs only in the highest bit of a byte."""
    first, *others = bytes(address)
    return Pubkey.from_bytes(bytes([first ^ 0x80, *others]))


def test_address_with_a_flipped_bit_occupies_nobodys_registration(world: VmWorld) -> None:
    payee = world.payee()
    world.vm.succeed(world.registration(flipped(payee.owner), GAMBLING))
    world.vm.succeed(world.registration(payee.owner, GAMBLING + 1))
    stored = world.fields(world.addresses.recipient(world.org, payee.owner))
    assert (stored["address"], stored["category"]) == (payee.owner, GAMBLING + 1)


def test_authority_overwrites_what_stands_at_a_recipients_address(world: VmWorld) -> None:
    # Given a registration of another address where the payee's belongs
    payee, other = world.payee(), Pubkey.new_unique()
    world.vm.succeed(world.registration(other, GAMBLING))
    spoilt = world.vm.data(world.addresses.recipient(world.org, other))
    at = world.vm.put(world.addresses.recipient(world.org, payee.owner), spoilt, PROGRAM_ID)
    vault = world.wallet(NO_GAMBLING)
    world.vm.refuse("WrongRecipientAccount", world.payment(vault, payee))
    # When the authority registers the payee
    world.vm.refuse("Unauthorized", world.registration(payee.owner))
    world.vm.succeed(world.registration(payee.owner, signer=world.authority))
    # Then it is the payee's
    assert world.fields(at)["address"] == payee.owner
    world.vm.succeed(world.payment(vault, payee))
