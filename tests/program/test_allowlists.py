"""Writing allowlists in chunks, sealing them, putting them in force, and which payments they allow."""

import hashlib
import secrets
from collections.abc import Sequence

import pytest
from solders.instruction import Instruction
from solders.pubkey import Pubkey

from app.chain.addresses import SYSTEM_PROGRAM, domain_hash
from app.chain.rules import Rules
from idl.codec import Event
from tests.support.vm import CODEC, LAMPORTS
from tests.support.vm_escrows import replaced
from tests.support.vm_tokens import USDC
from tests.support.vm_world import NONE, OPEN, VmWorld

RESTRICTED = Rules(restricted=True)
MAX_ENTRIES = 1_000


def some(count: int) -> list[bytes]:
    """Return `count` random entries, sorted."""
    return sorted(secrets.token_bytes(32) for _ in range(count))


@pytest.mark.proves("instruction create_policy", "instruction close_policy", "instruction write_allowlist")
def test_list_is_written_in_chunks_with_an_event_each(world: VmWorld) -> None:
    policy, entries = world.policy(RESTRICTED), some(40)
    allowlist = world.next_allowlist(policy)
    for sequence, (offset, seal) in enumerate([(0, False), (20, True)], start=7):
        result = world.vm.succeed(world.chunk(policy, entries[offset : offset + 20], offset=offset, seal=seal))
        assert result.event == Event(
            "AllowlistWritten",
            {
                "org": world.org,
                "policy": policy,
                "allowlist": allowlist,
                "sequence": sequence,
                "version": 6,
                "count": offset + 20,
                "sealed": int(seal),
                "reserved": bytes(3),
            },
        )
    fields = world.fields(allowlist)
    assert fields["entries"] == entries
    assert (fields["policy"], fields["payer"], fields["version"], fields["sealed"]) == (policy, world.payer, 6, 1)
    assert world.vm.lamports(allowlist) == world.vm.rent(len(world.vm.data(allowlist)))


@pytest.mark.parametrize(
    "chunks",
    [
        [[2, 1]],
        [[1, 1]],
        [[1, 2], [2]],
        [[5, 6], [4]],
    ],
)
def test_entries_must_ascend_across_all_chunks(world: VmWorld, chunks: Sequence[Sequence[int]]) -> None:
    policy, offset = world.policy(RESTRICTED), 0
    *good, bad = [[bytes([number] * 32) for number in chunk] for chunk in chunks]
    for chunk in good:
        world.vm.succeed(world.chunk(policy, chunk, offset=offset, seal=False))
        offset += len(chunk)
    world.vm.refuse("AllowlistUnsorted", world.chunk(policy, bad, offset=offset))


def test_chunk_must_continue_the_list(world: VmWorld) -> None:
    policy, entries = world.policy(RESTRICTED), some(10)
    world.vm.refuse("AllowlistGap", world.chunk(policy, entries[1:], offset=1))
    world.vm.succeed(world.chunk(policy, entries[:5], seal=False))
    for offset in (1, 4, 6):
        world.vm.refuse("AllowlistGap", world.chunk(policy, entries[offset:], offset=offset))
    world.vm.succeed(world.chunk(policy, entries[5:], offset=5))
    # Nor can a sealed list be continued
    world.vm.refuse("AllowlistSealed", world.chunk(policy, [b"\xff" * 32], offset=10))


def test_first_chunk_restarts_the_list(world: VmWorld) -> None:
    policy, entries = world.policy(RESTRICTED), some(4)
    world.vm.succeed(world.chunk(policy, some(10), seal=False))
    world.vm.succeed(world.chunk(policy, entries, seal=False))
    fields = world.fields(world.next_allowlist(policy))
    assert (fields["entries"], fields["sealed"]) == (entries, 0)


def test_list_holds_at_most_1000_entries(world: VmWorld) -> None:
    payee = world.payee()
    entries = [*some(MAX_ENTRIES - 1), bytes(payee.owner)]
    policy = world.policy(RESTRICTED, entries)
    assert world.fields(world.fields(policy)["allowlist"])["entries"] == sorted(entries)
    world.vm.succeed(world.payment(world.wallet(policy), payee))
    for offset, added in ((MAX_ENTRIES, 1), (MAX_ENTRIES - 1, 2), (2**32 - 1, 1)):
        world.vm.refuse("AllowlistTooLong", world.chunk(policy, some(added), offset=offset))


def test_only_listed_recipients_are_paid(world: VmWorld) -> None:
    listed, other = world.payee(), world.payee()
    vault = world.wallet(world.policy(RESTRICTED, [*some(9), bytes(listed.owner)]))
    world.vm.succeed(world.payment(vault, listed))
    refused = world.vm.refuse("RecipientNotAllowed", world.payment(vault, other))
    assert refused.violation is not None
    assert (refused.violation.rule, refused.violation.recipient) == (3, other.owner)


def test_entry_matches_the_owner_and_not_the_token_account(world: VmWorld) -> None:
    payee = world.payee()
    vault = world.wallet(world.policy(RESTRICTED, [bytes(payee.tokens)]))
    world.vm.refuse("RecipientNotAllowed", world.payment(vault, payee))


def test_restricted_policy_without_a_list_pays_nobody(world: VmWorld) -> None:
    vault = world.wallet(RESTRICTED)
    world.vm.refuse("RecipientNotAllowed", world.payment(vault, world.payee()))


def test_emptied_list_pays_nobody(world: VmWorld) -> None:
    payee = world.payee()
    policy = world.policy(RESTRICTED, [bytes(payee.owner)])
    vault, old = world.wallet(policy), world.fields(policy)["allowlist"]
    world.vm.succeed(world.payment(vault, payee))
    empty = world.write_allowlist(policy, [])
    world.update_policy(policy, RESTRICTED, new_allowlist=empty, old_allowlist=old, rent_receiver=world.payer)
    world.vm.refuse("RecipientNotAllowed", world.payment(vault, payee))


def test_attested_domain_on_the_list_passes(world: VmWorld) -> None:
    payee, other = world.payee(), world.payee()
    vault = world.wallet(world.policy(RESTRICTED, [*some(3), domain_hash("shop.example")]))
    world.vm.refuse("RecipientNotAllowed", world.payment(vault, payee))
    world.vm.succeed(world.registration(payee.owner, domain="Shop.Example"))
    world.vm.succeed(world.registration(other.owner, domain="other.example"))
    world.vm.succeed(world.payment(vault, payee))
    world.vm.refuse("RecipientNotAllowed", world.payment(vault, other))
    # Without its account, the attestation does not count
    world.vm.refuse("RecipientNotAllowed", world.payment(vault, payee, recipient=None))


def test_operator_cannot_forge_an_entry_of_the_list(world: VmWorld) -> None:
    listed = world.payee()
    vault = world.wallet(world.policy(RESTRICTED, [bytes(listed.owner), domain_hash("shop.example")]))
    for digest in (bytes(listed.owner), domain_hash("shop.example")):
        other = world.payee()
        args = {"address": other.owner, "domain_digest": digest, "category": 0, "replaces": 0}
        accounts = {
            "payer": world.payer,
            "signer": world.operator,
            "org": world.org,
            "recipient": world.addresses.recipient(world.org, other.owner),
            "system_program": SYSTEM_PROGRAM,
        }
        result = world.vm.succeed(CODEC.instruction("register_recipient", args, accounts))
        assert result.event.data["domain_hash"] == hashlib.sha256(digest).digest()
        world.vm.refuse("RecipientNotAllowed", world.payment(vault, other))


def test_recipient_without_a_domain_does_not_match_an_entry_of_zeros(world: VmWorld) -> None:
    payee = world.payee()
    vault = world.wallet(world.policy(RESTRICTED, [bytes(32)]))
    world.vm.succeed(world.registration(payee.owner))
    world.vm.refuse("RecipientNotAllowed", world.payment(vault, payee))


def test_new_list_in_force_closes_the_old_one_and_returns_its_rent(world: VmWorld) -> None:
    first, second = world.payee(), world.payee()
    policy = world.policy(RESTRICTED, [bytes(first.owner)])
    vault, old = world.wallet(policy), world.fields(policy)["allowlist"]
    new = world.write_allowlist(policy, [bytes(second.owner)])
    # A written list does not replace the one in force
    world.vm.succeed(world.payment(vault, first))
    world.vm.refuse("RecipientNotAllowed", world.payment(vault, second))
    world.vm.refuse("WrongAllowlist", world.payment(vault, second, allowlist=new))
    before, rent = world.vm.lamports(world.payer), world.vm.lamports(old)
    result = world.update_policy(policy, RESTRICTED, new_allowlist=new, old_allowlist=old, rent_receiver=world.payer)
    assert not world.vm.exists(old)
    assert world.vm.lamports(world.payer) == before + rent
    assert (result.event.data["previous_allowlist"], result.event.data["allowlist"]) == (old, new)
    fields = world.fields(policy)
    assert fields["next_allowlist_version"] == fields["version"] == world.fields(world.org)["sequence"]
    world.vm.succeed(world.payment(vault, second))
    world.vm.refuse("RecipientNotAllowed", world.payment(vault, first))


def test_rules_can_change_while_the_list_stays(world: VmWorld) -> None:
    payee = world.payee()
    policy = world.policy(RESTRICTED, [bytes(payee.owner)])
    allowlist = world.fields(policy)["allowlist"]
    world.update_policy(policy, Rules(restricted=True, max_per_tx=USDC))
    assert world.fields(policy)["allowlist"] == allowlist
    world.vm.succeed(world.payment(world.wallet(policy), payee))


def test_lifting_the_restriction_closes_the_list(world: VmWorld) -> None:
    policy = world.policy(RESTRICTED, some(3))
    vault, old = world.wallet(policy), world.fields(policy)["allowlist"]
    world.vm.refuse("AllowlistRequired", world.policy_update(policy, OPEN))
    world.update_policy(policy, OPEN, old_allowlist=old, rent_receiver=world.payer)
    assert not world.vm.exists(old)
    assert world.fields(policy)["allowlist"] == NONE
    world.vm.succeed(world.payment(vault, world.payee()))
    # The number of a closed list is not used again
    assert world.next_allowlist(policy) != old


def test_list_in_force_cannot_be_written(world: VmWorld) -> None:
    policy = world.policy(RESTRICTED, some(3))
    write = world.chunk(policy, [])
    at = [meta.pubkey for meta in write.accounts].index(world.next_allowlist(policy))
    world.vm.refuse("WrongAllowlist", replaced(write, at, world.fields(policy)["allowlist"]))


def test_unsealed_list_cannot_be_put_in_force(world: VmWorld) -> None:
    policy = world.policy(RESTRICTED)
    world.vm.succeed(world.chunk(policy, some(3), seal=False))
    new = world.next_allowlist(policy)
    world.vm.refuse("AllowlistNotSealed", world.policy_update(policy, RESTRICTED, new_allowlist=new))


def test_only_the_policys_next_list_can_be_put_in_force(world: VmWorld) -> None:
    policy, other = world.policy(RESTRICTED, some(1)), world.policy(RESTRICTED)
    current, foreign = world.fields(policy)["allowlist"], world.write_allowlist(other, some(1))
    options = {"old_allowlist": current, "rent_receiver": world.payer}
    refuse = world.vm.refuse
    refuse("WrongAllowlist", world.policy_update(policy, RESTRICTED, new_allowlist=foreign, **options))
    refuse("WrongAllowlist", world.policy_update(policy, RESTRICTED, new_allowlist=current))
    new = world.write_allowlist(policy, some(1))
    refuse("WrongAllowlist", world.policy_update(policy, OPEN, new_allowlist=new, **options))
    refuse("AllowlistRequired", world.policy_update(policy, RESTRICTED, new_allowlist=new))
    refuse("WrongAllowlist", world.policy_update(policy, RESTRICTED, **options))
    world.update_policy(policy, RESTRICTED, new_allowlist=new, **options)


def test_rent_of_a_list_cannot_go_to_anyone_else(world: VmWorld) -> None:
    policy = world.policy(RESTRICTED, some(1))
    old = world.fields(policy)["allowlist"]
    for receiver, error in ((world.stranger, "WrongRentReceiver"), (None, "RentReceiverRequired")):
        world.vm.refuse(error, world.policy_update(policy, OPEN, old_allowlist=old, rent_receiver=receiver))


def test_rent_of_a_list_goes_to_whoever_paid_for_its_first_chunk(world: VmWorld) -> None:
    policy, first = world.policy(RESTRICTED), world.vm.key(LAMPORTS)

    def write(payer: Pubkey, offset: int) -> Instruction:
        return world.build.write_allowlist(
            payer=payer,
            writer=world.operator,
            policy=policy,
            version=world.fields(policy)["next_allowlist_version"],
            offset=offset,
            entries=[bytes([offset] * 32)],
            seal=offset > 0,
        )

    world.vm.succeed(write(first, 0))
    world.vm.succeed(write(world.payer, 1))
    allowlist = world.next_allowlist(policy)
    assert world.fields(allowlist)["payer"] == first
    world.update_policy(policy, RESTRICTED, new_allowlist=allowlist)
    world.vm.refuse(
        "WrongRentReceiver",
        world.policy_update(policy, OPEN, old_allowlist=allowlist, rent_receiver=world.payer),
    )
    world.update_policy(policy, OPEN, old_allowlist=allowlist, rent_receiver=first)
    assert world.vm.lamports(first) > LAMPORTS


def test_closing_a_policy_closes_its_list(world: VmWorld) -> None:
    before = world.vm.lamports(world.payer)
    policy = world.policy(RESTRICTED, some(30))
    allowlist = world.fields(policy)["allowlist"]

    def close(allowlist: Pubkey | None, receiver: Pubkey | None) -> Instruction:
        return world.policy_closing(policy, allowlist=allowlist, allowlist_rent_receiver=receiver)

    world.vm.refuse("AllowlistRequired", close(None, None))
    foreign = world.policy(RESTRICTED, some(1))
    world.vm.refuse("WrongAllowlist", close(world.fields(foreign)["allowlist"], world.payer))
    world.vm.refuse("RentReceiverRequired", close(allowlist, None))
    world.vm.refuse("WrongRentReceiver", close(allowlist, world.stranger))
    world.vm.succeed(close(allowlist, world.payer))
    assert not world.vm.exists(allowlist)
    world.update_policy(foreign, OPEN, old_allowlist=world.fields(foreign)["allowlist"], rent_receiver=world.payer)
    world.vm.succeed(world.policy_closing(foreign))
    assert world.vm.lamports(world.payer) == before


def test_payment_needs_exactly_the_policys_list(world: VmWorld) -> None:
    payee = world.payee()
    policy, other = (world.policy(RESTRICTED, [bytes(payee.owner)]) for _ in range(2))
    vault = world.wallet(policy)
    world.vm.refuse("AllowlistRequired", world.payment(vault, payee, allowlist=None))
    foreign = world.fields(other)["allowlist"]
    world.vm.refuse("WrongAllowlist", world.payment(vault, payee, allowlist=foreign))


def test_sealed_list_stays_as_it_is(world: VmWorld) -> None:
    policy, entries = world.policy(RESTRICTED), some(3)
    sealed = world.write_allowlist(policy, entries)
    for writer in (world.operator, world.authority):
        for offset, added in ((0, some(2)), (0, []), (3, [b"\xff" * 32])):
            world.vm.refuse("AllowlistSealed", world.chunk(policy, added, offset=offset, writer=writer))
    assert world.fields(sealed)["entries"] == entries


def test_only_the_entries_agreed_to_come_into_force(world: VmWorld) -> None:
    # Given a list that the operator wrote
    policy, entries = world.policy(RESTRICTED), some(30)
    new = world.write_allowlist(policy, entries)
    # Then the authority's signature is good for exactly these entries
    for others in (entries[:-1], [*entries, b"\xff" * 32], some(30), [], entries[::-1]):
        update = world.policy_update(policy, RESTRICTED, new_allowlist=new, entries=others)
        world.vm.refuse("AllowlistMismatch", update)
    digest = hashlib.sha256(b"".join(entries)).digest()
    for count in (29, 31, 0):
        args = {"expected_version": 6, "rules": RESTRICTED.to_args(), "digest": {"count": count, "hash": digest}}
        right = world.policy_update(policy, RESTRICTED, new_allowlist=new)
        wrong = Instruction(right.program_id, CODEC.instruction_data("update_policy", args), right.accounts)
        world.vm.refuse("AllowlistMismatch", wrong)
    world.update_policy(policy, RESTRICTED, new_allowlist=new, entries=entries)
    assert world.fields(policy)["allowlist"] == new


@pytest.mark.proves("instruction close_allowlist")
@pytest.mark.parametrize("seal", [True, False])
def test_discarded_list_returns_its_rent_and_uses_up_its_version(world: VmWorld, seal: bool) -> None:
    policy = world.policy(RESTRICTED)
    before, version = world.vm.lamports(world.payer), world.fields(policy)["next_allowlist_version"]
    world.vm.succeed(world.chunk(policy, some(3), seal=seal))
    staged = world.next_allowlist(policy)
    late = world.policy_update(policy, RESTRICTED, new_allowlist=staged)
    discard = world.build.close_allowlist(
        authority=world.authority, policy=policy, version=version, rent_receiver=world.payer
    )
    at = [meta.pubkey for meta in discard.accounts].index(world.payer)
    world.vm.refuse("WrongRentReceiver", replaced(discard, at, world.stranger))
    result = world.vm.succeed(discard)
    expected = {"org": world.org, "policy": policy, "allowlist": staged, "sequence": 8, "version": version}
    assert result.event == Event("AllowlistClosed", expected)
    assert world.vm.lamports(world.payer) == before
    assert world.fields(policy)["next_allowlist_version"] == 8
    # Nothing comes back to where it was
    world.vm.refuse("AccountDataTooSmall", discard)
    world.vm.refuse("UninitializedAccount", late)
    world.write_allowlist(policy, some(3))
    assert world.next_allowlist(policy) != staged


def test_list_in_force_cannot_be_discarded(world: VmWorld) -> None:
    policy = world.policy(RESTRICTED, some(3))
    world.write_allowlist(policy, some(2))
    discard = world.build.close_allowlist(
        authority=world.authority,
        policy=policy,
        version=world.fields(policy)["next_allowlist_version"],
        rent_receiver=world.payer,
    )
    at = [meta.pubkey for meta in discard.accounts].index(world.next_allowlist(policy))
    world.vm.refuse("WrongAllowlist", replaced(discard, at, world.fields(policy)["allowlist"]))


@pytest.mark.parametrize("seal", [True, False])
def test_closing_a_policy_closes_what_is_staged(world: VmWorld, seal: bool) -> None:
    before = world.vm.lamports(world.payer)
    policy = world.policy(RESTRICTED, some(3))
    world.vm.succeed(world.chunk(policy, some(5), seal=seal))
    staged = world.next_allowlist(policy)
    close = world.policy_closing(policy)
    at = [meta.pubkey for meta in close.accounts].index(staged)
    for instead in (Pubkey.new_unique(), world.addresses.allowlist(policy, 1), world.org):
        expected = "ConstraintDuplicateMutableAccount" if instead == world.org else "WrongAllowlist"
        world.vm.refuse(expected, replaced(close, at, instead))
    world.vm.refuse("RentReceiverRequired", world.policy_closing(policy, next_rent_receiver=None))
    world.vm.refuse("WrongRentReceiver", world.policy_closing(policy, next_rent_receiver=world.stranger))
    world.vm.succeed(close)
    assert not world.vm.exists(staged)
    assert world.vm.lamports(world.payer) == before
