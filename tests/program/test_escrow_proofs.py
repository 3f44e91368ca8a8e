"""Proofs of completion: who may submit a hash, whose signature over what counts, and what is no proof."""

import pytest
from solders.pubkey import Pubkey

from app.chain.escrow_instructions import attestation
from tests.support.vm import PROGRAM_ID, START
from tests.support.vm_escrows import (
    ALL_KINDS,
    AMOUNT,
    KINDS,
    OUTPUT,
    OUTPUT_HASH,
    SIGNED_ATTESTATION,
    TASK,
    WEBHOOK_CALLBACK,
    Worker,
    attested,
    completion,
    is_gone,
    lock,
    replaced,
    worker,
)
from tests.support.vm_world import GENESIS_HASH, NONE, SESSION_ENDS, VmWorld

OTHER = b"x" * 32
SIGNED = [SIGNED_ATTESTATION, WEBHOOK_CALLBACK]


def key_of(world: VmWorld, receiver: Worker, kind: int) -> Pubkey:
    """Return the key whose signature is proof of this kind."""
    return receiver.key if kind == SIGNED_ATTESTATION else world.verifier


@pytest.mark.proves("instruction complete_escrow")
@pytest.mark.parametrize("role", ["session", "operator", "receiver"])
def test_either_side_can_submit_a_hash(world: VmWorld, role: str) -> None:
    vault, receiver = world.wallet(), worker(world)
    escrow = lock(world, vault, receiver.vault)
    signer = receiver.key if role == "receiver" else getattr(world, role)
    result = world.vm.succeed(completion(world, escrow, signer=signer))
    assert (result.event.data["output_hash"], result.event.data["proof_kind"]) == (OUTPUT, OUTPUT_HASH)


@pytest.mark.parametrize("role", ["authority", "arbiter", "verifier", "stranger", "payer"])
def test_nobody_else_can_submit_a_hash(world: VmWorld, role: str) -> None:
    vault, receiver = world.wallet(), worker(world)
    escrow = lock(world, vault, receiver.vault, expected_output=OUTPUT)
    world.vm.refuse("Unauthorized", completion(world, escrow, signer=getattr(world, role)))
    world.vm.refuse("Unauthorized", completion(world, escrow, signer=worker(world).key))
    by_nobody = world.build.complete_escrow(escrow, payer=world.payer, kind=OUTPUT_HASH, output_hash=OUTPUT)
    world.vm.refuse("Unauthorized", by_nobody)


def test_receiving_address_submits_a_hash_and_signs_for_itself(world: VmWorld) -> None:
    vault, outsider = world.wallet(), world.vm.key()
    shown, signed = (lock(world, vault, outsider) for _ in range(2))
    world.vm.succeed(completion(world, shown, signer=outsider))
    proof = attested(world, signed, SIGNED_ATTESTATION, outsider)
    world.vm.succeed(proof, completion(world, signed, SIGNED_ATTESTATION))
    assert world.balance(world.tokens_of(outsider)) == 2 * AMOUNT


def test_receivers_signature_counts_only_with_its_vault(world: VmWorld) -> None:
    vault, receiver, other = world.wallet(), worker(world), worker(world)
    escrow = lock(world, vault, receiver.vault)
    shown = completion(world, escrow, signer=receiver.key)
    signed = completion(world, escrow, SIGNED_ATTESTATION)
    proof = attested(world, escrow, SIGNED_ATTESTATION, receiver.key)
    at = [meta.pubkey for meta in shown.accounts].index(receiver.vault)
    for instead in (PROGRAM_ID, other.vault, world.org):
        world.vm.refuse("Unauthorized", replaced(shown, at, instead))
        error = "ReceiverRequired" if instead == PROGRAM_ID else "WrongReceiver"
        world.vm.refuse(error, proof, replaced(signed, at, instead))


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_proof_checks_the_expected_hash(world: VmWorld, kind: int) -> None:
    vault, receiver = world.wallet(), worker(world)
    escrow = lock(world, vault, receiver.vault, expected_output=OUTPUT)
    key = key_of(world, receiver, kind)
    for output in (OTHER, bytes(32)):
        before = [attested(world, escrow, kind, key, output=output)] if kind else []
        world.vm.refuse("UnexpectedOutput", *before, completion(world, escrow, kind, output=output))
    before = [attested(world, escrow, kind, key)] if kind else []
    world.vm.succeed(*before, completion(world, escrow, kind))


@pytest.mark.parametrize("kind", KINDS)
def test_any_hash_is_accepted_when_none_is_expected(world: VmWorld, kind: int) -> None:
    vault, receiver = world.wallet(), worker(world)
    for output in (OTHER, bytes(32)):
        escrow = lock(world, vault, receiver.vault)
        before = [attested(world, escrow, kind, key_of(world, receiver, kind), output=output)] if kind else []
        result = world.vm.succeed(*before, completion(world, escrow, kind, output=output))
        assert result.event.data["output_hash"] == output


def test_stored_commitment_to_a_hash_is_no_proof(world: VmWorld) -> None:
    vault, receiver = world.wallet(), worker(world)
    escrow = lock(world, vault, receiver.vault, expected_output=OUTPUT)
    shown = world.fields(escrow.address)["output_commitment"]
    world.vm.refuse("UnexpectedOutput", completion(world, escrow, output=shown, signer=receiver.key))
    world.vm.succeed(completion(world, escrow, output=OUTPUT, signer=receiver.key))


def test_hash_of_zeros_can_be_expected(world: VmWorld) -> None:
    vault, receiver = world.wallet(), worker(world)
    escrow = lock(world, vault, receiver.vault, expected_output=bytes(32))
    world.vm.refuse("UnexpectedOutput", completion(world, escrow))
    world.vm.succeed(completion(world, escrow, output=bytes(32)))


@pytest.mark.parametrize("agreed", range(1, ALL_KINDS + 1))
def test_only_the_agreed_kinds_are_proof(world: VmWorld, agreed: int) -> None:
    vault, receiver = world.wallet(), worker(world)
    for kind in KINDS:
        escrow = lock(world, vault, receiver.vault, proof_kinds=agreed)
        before = [attested(world, escrow, kind, key_of(world, receiver, kind))] if kind else []
        complete = completion(world, escrow, kind)
        if agreed & 1 << kind:
            world.vm.succeed(*before, complete)
        else:
            world.vm.refuse("ProofKindNotAccepted", *before, complete)


def test_unknown_kinds_of_proof_are_refused(world: VmWorld) -> None:
    vault, receiver = world.wallet(), worker(world)
    escrow = lock(world, vault, receiver.vault)
    proof = attested(world, escrow, SIGNED_ATTESTATION, receiver.key)
    for kind in (3, 7, 8, 9, 32, 33, 255):
        complete = world.build.complete_escrow(
            escrow, payer=world.payer, kind=kind, output_hash=OUTPUT, signer=world.operator
        )
        world.vm.refuse("ProofKindNotAccepted", proof, complete)


@pytest.mark.proves("instruction complete_escrow")
@pytest.mark.parametrize("kind", SIGNED)
def test_signature_is_proof_whoever_submits_it(world: VmWorld, kind: int) -> None:
    vault, receiver, caller = world.wallet(), worker(world), world.vm.key(10**9)
    escrow = lock(world, vault, receiver.vault)
    complete = world.build.complete_escrow(escrow, payer=caller, kind=kind, output_hash=OUTPUT)
    world.vm.succeed(attested(world, escrow, kind, key_of(world, receiver, kind)), complete)
    assert is_gone(world, escrow)


@pytest.mark.parametrize("kind", SIGNED)
def test_signature_by_anyone_else_is_no_proof(world: VmWorld, kind: int) -> None:
    vault, receiver, other = world.wallet(), worker(world), worker(world)
    escrow = lock(world, vault, receiver.vault)
    right = key_of(world, receiver, kind)
    keys = [world.session, world.operator, world.authority, world.arbiter, world.stranger, world.payer, other.key]
    for key in {*keys, receiver.key, world.verifier} - {right}:
        # Even if the operator signs the transaction
        complete = world.build.complete_escrow(
            escrow, payer=world.payer, kind=kind, output_hash=OUTPUT, signer=world.operator
        )
        world.vm.refuse("InvalidProof", attested(world, escrow, kind, key), complete)


@pytest.mark.parametrize("kind", SIGNED)
def test_only_the_exact_message_is_proof(world: VmWorld, kind: int) -> None:
    vault, receiver = world.wallet(), worker(world)
    escrow, twin = (lock(world, vault, receiver.vault) for _ in range(2))
    key, message_of = key_of(world, receiver, kind), world.build.attested_message
    right = message_of(GENESIS_HASH, escrow.address, kind, TASK, OUTPUT)
    words = right.partition(bytes(PROGRAM_ID))[0]
    foreign = words + bytes(Pubkey.new_unique()) + right.removeprefix(words + bytes(PROGRAM_ID))
    wrong = {
        "another escrow": message_of(GENESIS_HASH, twin.address, kind, TASK, OUTPUT),
        "the vault": message_of(GENESIS_HASH, vault, kind, TASK, OUTPUT),
        "another kind": message_of(GENESIS_HASH, escrow.address, 3 - kind, TASK, OUTPUT),
        "another task": message_of(GENESIS_HASH, escrow.address, kind, OTHER, OUTPUT),
        "another output": message_of(GENESIS_HASH, escrow.address, kind, TASK, OTHER),
        "task and output swapped": message_of(GENESIS_HASH, escrow.address, kind, OUTPUT, TASK),
        "another program": foreign,
        "another cluster": message_of(bytes(32), escrow.address, kind, TASK, OUTPUT),
        "no cluster": right.replace(GENESIS_HASH, b""),
        "another version": right.replace(b":v2:", b":v1:"),
        "a byte less": right[:-1],
        "its first byte missing": right[1:],
        "a byte more": right + b"\0",
        "a byte more at its head": b"\0" + right,
        "twice": right + right,
        "only words": words,
        "nothing": b"",
    }
    complete = completion(world, escrow, kind)
    for message in wrong.values():
        world.vm.refuse("InvalidProof", attestation(key, world.vm.sign(key, message), message), complete)
    world.vm.succeed(attestation(key, world.vm.sign(key, right), right), complete)


@pytest.mark.parametrize("kind", SIGNED)
def test_proof_is_used_once(world: VmWorld, kind: int) -> None:
    vault, receiver = world.wallet(), worker(world)
    escrow, twin = (lock(world, vault, receiver.vault) for _ in range(2))
    proof = attested(world, escrow, kind, key_of(world, receiver, kind))
    settle, again = completion(world, escrow, kind), completion(world, twin, kind)
    world.vm.refuse("InvalidProof", proof, settle, again)
    world.vm.refuse("AccountDataTooSmall", proof, settle, proof, settle)
    world.vm.succeed(proof, settle)
    world.vm.refuse("AccountDataTooSmall", proof, settle)
    world.vm.refuse("InvalidProof", proof, again)
    following = lock(world, vault, receiver.vault)
    world.vm.refuse("InvalidProof", proof, completion(world, following, kind))


def test_receivers_session_counts_until_it_expires(world: VmWorld) -> None:
    vault, receiver = world.wallet(), worker(world)
    world.vm.now = SESSION_ENDS - 10
    early, late = (lock(world, vault, receiver.vault) for _ in range(2))
    proofs = {one.address: attested(world, one, SIGNED_ATTESTATION, receiver.key) for one in (early, late)}
    world.vm.now = SESSION_ENDS - 1
    world.vm.succeed(proofs[early.address], completion(world, early, SIGNED_ATTESTATION))
    world.vm.now = SESSION_ENDS
    world.vm.refuse("SessionExpired", proofs[late.address], completion(world, late, SIGNED_ATTESTATION))
    world.vm.refuse("SessionExpired", completion(world, late, signer=receiver.key))
    world.vm.refuse("SessionExpired", completion(world, late, signer=world.session))
    # The verifier and the operator do not expire
    proof = attested(world, late, WEBHOOK_CALLBACK, world.verifier)
    assert world.vm.simulate(proof, completion(world, late, WEBHOOK_CALLBACK)).error is None
    world.vm.succeed(completion(world, late, signer=world.operator))


def test_receivers_rotated_session_no_longer_counts(world: VmWorld) -> None:
    vault, receiver, successor = world.wallet(), worker(world), world.vm.key()
    escrow = lock(world, vault, receiver.vault)
    old, new = (attested(world, escrow, SIGNED_ATTESTATION, key) for key in (receiver.key, successor))
    complete = completion(world, escrow, SIGNED_ATTESTATION)
    build = world.build
    rotate = build.update_wallet(operator=world.operator, vault=receiver.vault, session=(successor, SESSION_ENDS))
    world.vm.succeed(rotate)
    world.vm.refuse("InvalidProof", old, complete)
    world.vm.refuse("Unauthorized", completion(world, escrow, signer=receiver.key))
    revoke = build.update_wallet(operator=world.operator, vault=receiver.vault, session=(NONE, SESSION_ENDS))
    world.vm.refuse("InvalidProof", revoke, new, complete)
    world.vm.succeed(new, complete)


def test_callback_is_no_proof_without_a_verifier(world: VmWorld) -> None:
    vault, receiver, verifier = world.wallet(), worker(world), world.verifier
    world.vm.succeed(world.org_update(verifier=NONE))
    escrow = lock(world, vault, receiver.vault)
    complete = completion(world, escrow, WEBHOOK_CALLBACK)
    world.vm.refuse("InvalidProof", attested(world, escrow, WEBHOOK_CALLBACK, verifier), complete)
    # A verifier appointed later does not belong to this escrow
    world.vm.succeed(world.org_update(verifier=verifier))
    world.vm.refuse("InvalidProof", attested(world, escrow, WEBHOOK_CALLBACK, verifier), complete)
    assert world.fields(escrow.address)["verifier"] == NONE


def test_verifier_at_creation_counts_and_not_its_successor(world: VmWorld) -> None:
    vault, receiver, successor = world.wallet(), worker(world), world.vm.key()
    escrow = lock(world, vault, receiver.vault)
    world.vm.succeed(world.org_update(verifier=successor))
    complete = completion(world, escrow, WEBHOOK_CALLBACK)
    world.vm.refuse("InvalidProof", attested(world, escrow, WEBHOOK_CALLBACK, successor), complete)
    world.vm.succeed(attested(world, escrow, WEBHOOK_CALLBACK, world.verifier), complete)


def test_requesters_session_submits_until_it_is_rotated_or_expires(world: VmWorld) -> None:
    vault, receiver, successor = world.wallet(), worker(world), world.vm.key()
    escrow = lock(world, vault, receiver.vault)
    rotate = world.build.update_wallet(operator=world.operator, vault=vault, session=(successor, START + 60))
    world.vm.succeed(rotate)
    world.vm.refuse("Unauthorized", completion(world, escrow, signer=world.session))
    world.vm.now = START + 60
    world.vm.refuse("SessionExpired", completion(world, escrow, signer=successor))
    world.vm.now = START + 59
    world.vm.succeed(completion(world, escrow, signer=successor))
