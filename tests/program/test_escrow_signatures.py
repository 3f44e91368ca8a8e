"""Forged signatures: instructions of the ed25519 program that do not verify what they seem to verify."""

import struct

import pytest
from solders.hash import Hash
from solders.instruction import Instruction
from solders.message import Message
from solders.pubkey import Pubkey
from solders.transaction import Transaction

from app.chain.escrow_instructions import ED25519_PROGRAM, INSTRUCTIONS_SYSVAR, OpenEscrow, attestation
from tests.support import nothing
from tests.support.vm import PROGRAM_ID, Vm
from tests.support.vm_escrows import (
    OUTPUT,
    SIGNED_ATTESTATION,
    TASK,
    WEBHOOK_CALLBACK,
    attested,
    completion,
    lock,
    replaced,
    worker,
)
from tests.support.vm_world import GENESIS_HASH, VmWorld

HERE = 0xFFFF
KEY, SIGNATURE, MESSAGE = 16, 48, 112
KINDS = [SIGNED_ATTESTATION, WEBHOOK_CALLBACK]


class Forgery:
    """An escrow whose receiver and verifier have signed nothing, and a forger who signs anything."""

    def __init__(self, world: VmWorld, kind: int) -> None:
        self.world, self.kind = world, kind
        vault, receiver = world.wallet(), worker(world)
        self.key = receiver.key if kind == SIGNED_ATTESTATION else world.verifier
        self.escrow: OpenEscrow = lock(world, vault, receiver.vault)
        self.complete = completion(world, self.escrow, kind)
        self.message = world.build.attested_message(GENESIS_HASH, self.escrow.address, kind, TASK, OUTPUT)
        self.forger = world.stranger
        self.forged = bytes(self.forger) + world.vm.sign(self.forger, self.message)
        self.seeming = bytes(self.key) + self.forged[32:] + self.message

    def genuine(self) -> Instruction:
        """Return the verification of a signature by the right key."""
        return attested(self.world, self.escrow, self.kind, self.key)

    def by_forger(self) -> Instruction:
        """Return the verification of a signature by the forger's key."""
        return attested(self.world, self.escrow, self.kind, self.forger)

    def refused(self, *instructions: Instruction) -> None:
        """Check that the program refuses, not the runtime."""
        self.world.vm.refuse("InvalidProof", *instructions)


def offsets(
    *,
    signature: tuple[int, int] = (SIGNATURE, HERE),
    key: tuple[int, int] = (KEY, HERE),
    message: tuple[int, int, int],
) -> bytes:
    """Return one signature's offsets: each part's position and instruction; for the message also its length."""
    return struct.pack("<7H", *signature, *key, *message)


def verify(*places: bytes, body: bytes, padding: int = 0) -> Instruction:
    """Return an instruction of the ed25519 program with these offsets and bytes."""
    return Instruction(ED25519_PROGRAM, bytes([len(places), padding]) + b"".join(places) + body, [])


@pytest.fixture(name="forgery", params=KINDS)
def _forgery(world: VmWorld, request: pytest.FixtureRequest) -> Forgery:
    return Forgery(world, request.param)


def test_runtime_refuses_a_forged_signature(forgery: Forgery) -> None:
    size = len(forgery.message)
    forged = verify(offsets(message=(MESSAGE, size, HERE)), body=forgery.seeming)
    forgery.world.vm.refuse("Precompile:2", forged, forgery.complete)
    forgery.world.vm.succeed(forgery.genuine(), forgery.complete)


@pytest.mark.parametrize("part", ["key", "signature", "message", "all"])
@pytest.mark.parametrize("order", ["earlier", "later"])
def test_parts_of_another_instruction_do_not_count(forgery: Forgery, part: str, order: str) -> None:
    # Given an instruction that shows the right key and message but has the runtime read `part` elsewhere
    vm, key, size = forgery.world.vm, forgery.key, len(forgery.message)
    other = 1 if order == "earlier" else 3  # the first sets the compute budget
    at = {name: other if part in {name, "all"} else HERE for name in ("key", "signature", "message")}
    said = bytes(size)
    elsewhere, signature = {
        "key": (forgery.by_forger(), forgery.forged[32:]),
        "signature": (forgery.genuine(), bytes(64)),
        "message": (attestation(key, vm.sign(key, said), said), vm.sign(key, said)),
        "all": (forgery.by_forger(), bytes(64)),
    }[part]
    places = offsets(
        signature=(SIGNATURE, at["signature"]), key=(KEY, at["key"]), message=(MESSAGE, size, at["message"])
    )
    seeming = verify(places, body=bytes(key) + signature + forgery.message)
    # When the runtime accepts it, then the program still refuses
    if order == "earlier":
        forgery.refused(elsewhere, seeming, forgery.complete)
    else:
        forgery.refused(seeming, forgery.complete, elsewhere)


def test_own_index_instead_of_the_current_marker_does_not_count(forgery: Forgery) -> None:
    genuine = bytes(forgery.genuine().data)[KEY:]
    size = len(forgery.message)
    for parts in (
        offsets(message=(MESSAGE, size, 1)),
        offsets(message=(MESSAGE, size, HERE), key=(KEY, 1)),
        offsets(message=(MESSAGE, size, HERE), signature=(SIGNATURE, 1)),
    ):
        forgery.refused(verify(parts, body=genuine), forgery.complete)


def test_signature_by_another_key_than_the_one_shown_does_not_count(forgery: Forgery) -> None:
    size = len(forgery.message)
    end = MESSAGE + size
    hidden = verify(
        offsets(key=(end, HERE), signature=(end + 32, HERE), message=(MESSAGE, size, HERE)),
        body=forgery.seeming + forgery.forged,
    )
    forgery.refused(hidden, forgery.complete)


def test_signature_over_another_message_than_shown_does_not_count(forgery: Forgery) -> None:
    said = b"something else that the key has signed"
    signed = bytes(forgery.key) + forgery.world.vm.sign(forgery.key, said)
    for body in (signed + forgery.message + said, signed + said + forgery.message):
        at = body.index(said) + KEY
        forgery.refused(verify(offsets(message=(at, len(said), HERE)), body=body), forgery.complete)
    # A part of the message that is shown
    part = forgery.message[:40]
    signed = bytes(forgery.key) + forgery.world.vm.sign(forgery.key, part)
    places = offsets(message=(MESSAGE, len(part), HERE))
    forgery.refused(verify(places, body=signed + forgery.message), forgery.complete)


def test_two_signatures_in_one_instruction_do_not_count(forgery: Forgery) -> None:
    size, more = len(forgery.message), 14
    genuine = bytes(forgery.genuine().data)[KEY:]
    place = offsets(key=(KEY + more, HERE), signature=(SIGNATURE + more, HERE), message=(MESSAGE + more, size, HERE))
    forgery.refused(verify(place, place, body=genuine), forgery.complete)


def test_only_the_usual_layout_counts(forgery: Forgery) -> None:
    size = len(forgery.message)
    genuine = bytes(forgery.genuine().data)[KEY:]
    usual = offsets(message=(MESSAGE, size, HERE))
    forgery.refused(verify(usual, body=genuine, padding=1), forgery.complete)
    forgery.refused(verify(usual, body=genuine + b"\0"), forgery.complete)
    key, signature, message = genuine[:32], genuine[32:96], genuine[96:]
    moved = offsets(signature=(KEY, HERE), key=(KEY + 64, HERE), message=(MESSAGE, size, HERE))
    forgery.refused(verify(moved, body=signature + key + message), forgery.complete)
    forgery.world.vm.succeed(verify(usual, body=genuine), forgery.complete)


def test_missing_signature_does_not_count(forgery: Forgery) -> None:
    forgery.refused(Instruction(ED25519_PROGRAM, bytes(2), []), forgery.complete)
    forgery.refused(forgery.complete)


def test_completion_as_the_first_instruction_has_no_proof() -> None:
    world = VmWorld(Vm(checks_signatures=False))
    forgery = Forgery(world, SIGNED_ATTESTATION)
    message = Message.new_with_blockhash([forgery.complete], world.vm.fee_payer, Hash.default())
    world.vm.refuse_transaction("InvalidProof", Transaction.new_unsigned(message))


def test_signature_counts_only_directly_before_the_completion(forgery: Forgery) -> None:
    between = forgery.world.payment(forgery.escrow.vault, forgery.world.payee(), 1)
    genuine, complete = forgery.genuine(), forgery.complete
    forgery.refused(genuine, between, complete)
    forgery.refused(complete, genuine)
    forgery.refused(between, complete, genuine)
    forgery.refused(genuine, forgery.by_forger(), complete)
    forgery.world.vm.succeed(forgery.by_forger(), genuine, complete)


def test_lookalike_of_the_ed25519_program_does_not_count(forgery: Forgery) -> None:
    lookalike = Pubkey.new_unique()
    forgery.world.vm.svm.add_program(lookalike, nothing.program())
    genuine = forgery.genuine()
    seeming = Instruction(lookalike, genuine.data, [])
    forgery.world.vm.succeed(seeming)
    forgery.refused(seeming, forgery.complete)
    forgery.refused(genuine, seeming, forgery.complete)


def test_forged_list_of_instructions_does_not_count(forgery: Forgery) -> None:
    genuine, complete = forgery.genuine(), forgery.complete
    world = forgery.world
    at = [meta.pubkey for meta in complete.accounts].index(INSTRUCTIONS_SYSVAR)
    data = bytes(genuine.data)
    # The sysvar's own layout, listing the genuine instruction, with the completion as the current one
    entry = struct.pack("<H32sH", 0, bytes(ED25519_PROGRAM), len(data)) + data
    empty = struct.pack("<H32sH", 0, bytes(PROGRAM_ID), 0)
    listed = struct.pack("<3H", 2, 6, 6 + len(entry)) + entry + empty + struct.pack("<H", 1)
    owners = [Pubkey.from_string("Sysvar1111111111111111111111111111111111111"), world.stranger]
    for owner in owners:
        fake = world.vm.put(Pubkey.new_unique(), listed, owner)
        forgery.refused(replaced(complete, at, fake))
        forgery.refused(genuine, replaced(complete, at, fake))
    forgery.refused(genuine, replaced(complete, at, PROGRAM_ID))
