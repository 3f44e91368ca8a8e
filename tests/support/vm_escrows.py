"""Builds escrows in a `VmWorld` with defaults that suit most tests."""

from dataclasses import dataclass
from typing import Any

from solders.instruction import AccountMeta, Instruction
from solders.pubkey import Pubkey

from app.chain.escrow_instructions import OpenEscrow, attestation, output_commitment, terms_hash
from app.chain.rules import Rules
from tests.support.vm_tokens import USDC
from tests.support.vm_world import GENESIS_HASH, NONE, OPEN, SESSION_ENDS, VmWorld

OUTPUT_HASH, SIGNED_ATTESTATION, WEBHOOK_CALLBACK = KINDS = range(3)
ALL_KINDS = 0b111
COMPLETED, TIMED_OUT, RELEASED, REFUNDED, SPLIT, UNDECIDED = range(1, 7)
"""Outcomes of an escrow, as in its event."""
REFERENCE = b"reference of one"
TASK, OUTPUT = b"t" * 32, b"o" * 32
REASON, EVIDENCE = b"r" * 32, b"e" * 32
HOUR, DAY = 3_600, 86_400
THIRTY_DAYS = 30 * DAY
AMOUNT = 5 * USDC
FUNDS = 1_000 * USDC
"""Initial micro-USDC of a vault of `VmWorld`."""


@dataclass(frozen=True)
class Worker:
    """A receiving vault, its token account, and its session authority."""

    vault: Pubkey
    tokens: Pubkey
    key: Pubkey


def worker(world: VmWorld, policy: Pubkey | Rules = OPEN, funds: int = 0) -> Worker:
    """Create a vault with a separate session authority."""
    vault, key = world.wallet(policy, funds), world.vm.key()
    world.vm.succeed(world.build.update_wallet(operator=world.operator, vault=vault, session=(key, SESSION_ENDS)))
    return Worker(vault, world.tokens_of(vault), key)


def creation(world: VmWorld, vault: Pubkey, receiver: Pubkey, amount: int = AMOUNT, **options: Any) -> Instruction:
    """Return the instruction that creates the vault's next escrow, with the accounts that its policy needs.

    The session authority signs.
    """
    policy = world.fields(vault)["policy"]
    allowlist = world.fields(policy)["allowlist"]
    given: dict[str, Any] = {
        "payer": world.payer,
        "signer": world.session,
        "policy": policy,
        "counter": world.fields(vault)["escrow_counter"],
        "reference": REFERENCE,
        "task_hash": TASK,
        "proof_kinds": ALL_KINDS,
        "timeout": HOUR,
        "allowlist": None if allowlist == NONE else allowlist,
        "recipient": world.addresses.recipient(world.org, receiver),
        **world.budgets_of(vault),
    }
    if options.get("approval") is not None:
        given["approval_rent_receiver"] = world.payer
    return world.build.create_escrow(vault=vault, receiver=receiver, amount=amount, **{**given, **options})


def terms(
    world: VmWorld,
    *,
    task_hash: bytes = TASK,
    expected_output: bytes | None = None,
    proof_kinds: int = ALL_KINDS,
    timeout: int = HOUR,
) -> bytes:
    """Return the hash of an escrow's terms for its approval, by default those of `creation`."""
    commitment = None if expected_output is None else output_commitment(expected_output)
    return terms_hash(task_hash, commitment, proof_kinds, timeout, world.verifier, world.arbiter)


def next_escrow(world: VmWorld, vault: Pubkey, receiver: Pubkey, payer: Pubkey | None = None) -> OpenEscrow:
    """Return the escrow that the vault will create next."""
    address = world.addresses.escrow(vault, world.fields(vault)["escrow_counter"])
    return OpenEscrow(address, vault, receiver, payer or world.payer, **world.budgets_of(vault))


def lock(world: VmWorld, vault: Pubkey, receiver: Pubkey, amount: int = AMOUNT, **options: Any) -> OpenEscrow:
    """Create an escrow."""
    escrow = next_escrow(world, vault, receiver, options.get("payer"))
    world.vm.succeed(creation(world, vault, receiver, amount, **options))
    return escrow


def completion(
    world: VmWorld, escrow: OpenEscrow, kind: int = OUTPUT_HASH, *, output: bytes = OUTPUT, signer: Pubkey | None = None
) -> Instruction:
    """Return the instruction that completes an escrow with a proof.

    If the proof is only the output's hash, the requester or the given `signer` signs.
    """
    if kind == OUTPUT_HASH:
        signer = signer or world.session
    return world.build.complete_escrow(escrow, payer=world.payer, kind=kind, output_hash=output, signer=signer)


def attested(world: VmWorld, escrow: OpenEscrow, kind: int, key: Pubkey, *, output: bytes = OUTPUT) -> Instruction:
    """Return the instruction that verifies the key's attestation of this output."""
    message = world.build.attested_message(GENESIS_HASH, escrow.address, kind, TASK, output)
    return attestation(key, world.vm.sign(key, message), message)


def dispute(world: VmWorld, escrow: OpenEscrow, signer: Pubkey | None = None) -> Instruction:
    """Return the instruction that disputes an escrow, by the requester or by the given `signer`."""
    return world.build.dispute_escrow(
        escrow, signer=signer or world.session, reason_hash=REASON, evidence_hash=EVIDENCE
    )


def decision(world: VmWorld, escrow: OpenEscrow, released: int) -> Instruction:
    """Return the instruction with the arbiter's decision on a dispute."""
    return world.build.resolve_dispute(escrow, payer=world.payer, arbiter=world.arbiter, released=released)


def disputed(world: VmWorld, vault: Pubkey, receiver: Pubkey, amount: int = AMOUNT, **options: Any) -> OpenEscrow:
    """Create an escrow and dispute it."""
    escrow = lock(world, vault, receiver, amount, **options)
    world.vm.succeed(dispute(world, escrow))
    return escrow


def close_wallet(world: VmWorld, vault: Pubkey) -> Instruction:
    """Return the instruction that archives a vault."""
    policy = world.fields(vault)["policy"]
    return world.build.close_wallet(
        operator=world.operator,
        vault=vault,
        policy=policy,
        rent_receiver=world.payer,
        budget=world.budget_of(vault),
    )


def held(world: VmWorld, escrow: OpenEscrow) -> int:
    """Return the micro-USDC in an escrow."""
    return world.balance(world.addresses.escrow_tokens(escrow.address))


def is_gone(world: VmWorld, escrow: OpenEscrow) -> bool:
    """Return True if both of the escrow's accounts are gone."""
    tokens = world.addresses.escrow_tokens(escrow.address)
    return not world.vm.exists(escrow.address) and not world.vm.exists(tokens)


def replaced(instruction: Instruction, at: int, address: Pubkey) -> Instruction:
    """Return an instruction with one of its accounts replaced by another address."""
    accounts = list(instruction.accounts)
    accounts[at] = AccountMeta(address, accounts[at].is_signer, accounts[at].is_writable)
    return Instruction(instruction.program_id, instruction.data, accounts)
