"""Builds escrow instructions."""

import hashlib
from dataclasses import dataclass, replace
from typing import Unpack

from solders.instruction import Instruction
from solders.pubkey import Pubkey

from app.chain.addresses import ASSOCIATED_TOKEN_PROGRAM, SYSTEM_PROGRAM
from app.chain.builder import Builder, SpendingAccounts, complete

INSTRUCTIONS_SYSVAR = Pubkey.from_string("Sysvar1nstructions1111111111111111111111111")
ED25519_PROGRAM = Pubkey.from_string("Ed25519SigVerify111111111111111111111111111")

PROOF_KINDS = ("output_hash", "signed_attestation", "webhook_callback")
"""Kinds of completion proof. The index of a kind is its code."""
_ONE_SIGNATURE = bytes([1, 0])
_HERE = b"\xff\xff"
_KEY_OFFSET, _SIGNATURE_OFFSET, _MESSAGE_OFFSET = 16, 48, 112


def output_commitment(expected_output: bytes) -> bytes:
    """Return the SHA-256 of `expected_output`, itself a hash.

    The chain stores only this commitment, because anyone who knew `expected_output` could present it as the proof.
    """
    return hashlib.sha256(expected_output).digest()


def terms_hash(  # noqa: PLR0917
    task_hash: bytes, commitment: bytes | None, proof_kinds: int, timeout: int, verifier: Pubkey, arbiter: Pubkey
) -> bytes:
    """Return the hash of an escrow's terms except its receiver and amount. The escrow's approval contains this hash."""
    committed = bytes([commitment is not None]) + (commitment or bytes(32))
    numbers = bytes([proof_kinds]) + timeout.to_bytes(4, "little")
    return hashlib.sha256(task_hash + committed + numbers + bytes(verifier) + bytes(arbiter)).digest()


@dataclass(frozen=True, slots=True)
class OpenEscrow:
    """The accounts of an open escrow. `payer` gets the rent of the escrow's accounts back.

    `budget` and `budget_parent` are the budgets that counted the escrow, or None if the vault did not have them at the
    escrow's creation. The vault may have moved to another budget since then.
    """

    address: Pubkey
    vault: Pubkey
    receiver: Pubkey
    payer: Pubkey
    budget: Pubkey | None = None
    budget_parent: Pubkey | None = None


class EscrowInstructions(Builder):
    """Builds the instructions that create, settle and dispute escrows. Amounts are micro-USDC; times are seconds."""

    def create_escrow(
        self,
        *,
        payer: Pubkey,
        signer: Pubkey,
        policy: Pubkey,
        vault: Pubkey,
        receiver: Pubkey,
        counter: int,
        amount: int,
        reference: bytes,
        task_hash: bytes,
        proof_kinds: int,
        timeout: int,
        expected_output: bytes | None = None,
        **optional: Unpack[SpendingAccounts],
    ) -> Instruction:
        """Lock money of the vault for the receiver. `counter` is the vault's `escrow_counter`.

        `proof_kinds` is a bit set over the codes of `PROOF_KINDS`. `expected_output` is the required hash of the
        output. Only the SHA-256 of this hash goes on the chain.
        """
        escrow, bump = self._addresses.escrow_with_bump(vault, counter)
        terms = {
            "amount": amount,
            "reference": reference,
            "task_hash": task_hash,
            "output_commitment": None if expected_output is None else output_commitment(expected_output),
            "proof_kinds": proof_kinds,
            "timeout": timeout,
        }
        return self._build(
            "create_escrow",
            {"terms": terms, "bump": bump},
            payer=payer,
            signer=signer,
            policy=policy,
            **self._vault_accounts(vault),
            receiver=receiver,
            receiver_tokens=self._addresses.token_account(receiver),
            escrow=escrow,
            escrow_tokens=self._addresses.escrow_tokens(escrow),
            **complete(SpendingAccounts, optional),
        )

    def complete_escrow(
        self, escrow: OpenEscrow, *, payer: Pubkey, kind: int, output_hash: bytes, signer: Pubkey | None = None
    ) -> Instruction:
        """Release an escrow. For the proof kind `output_hash`, `signer` is the party that presents the hash.

        For other proof kinds, the instruction built by `attestation` must immediately precede this one.
        """
        args = {"kind": kind, "output_hash": output_hash}
        sysvar = INSTRUCTIONS_SYSVAR if kind else None
        return self._settle("complete_escrow", args, escrow, payer=payer, signer=signer, instructions=sysvar)

    def refund_escrow(self, escrow: OpenEscrow) -> Instruction:
        """Refund an undisputed escrow after its deadline, or a disputed one 30 days after the dispute was raised."""
        return self._settle("refund_escrow", {}, escrow, payer=None)

    def resolve_dispute(
        self, escrow: OpenEscrow, *, payer: Pubkey, arbiter: Pubkey, released: int, expected_sequence: int
    ) -> Instruction:
        """Release the amount `released` of a disputed escrow, from zero to the full amount, and refund the rest.

        `expected_sequence` is the escrow's `dispute_sequence`.
        """
        args: dict[str, object] = {"released": released, "expected_sequence": expected_sequence}
        return self._settle("resolve_dispute", args, escrow, payer=payer, signer=arbiter)

    def collect_escrow(self, escrow: OpenEscrow, *, payer: Pubkey) -> Instruction:
        """Pay the shares of a split escrow that could not be paid when it was split."""
        return self._settle("collect_escrow", {}, replace(escrow, budget=None, budget_parent=None), payer=payer)

    def dispute_escrow(
        self, escrow: OpenEscrow, *, signer: Pubkey, reason_hash: bytes, evidence_hash: bytes
    ) -> Instruction:
        """Suspend an escrow's deadline until the arbiter decides or the dispute is withdrawn, for at most 30 days.

        After that, anyone may refund the escrow unless the arbiter has decided.
        """
        return self._build(
            "dispute_escrow",
            {"reason_hash": reason_hash, "evidence_hash": evidence_hash},
            signer=signer,
            vault=escrow.vault,
            receiver=escrow.receiver,
            escrow=escrow.address,
        )

    def withdraw_dispute(self, escrow: OpenEscrow, *, signer: Pubkey, expected_sequence: int) -> Instruction:
        """Withdraw an escrow's dispute. The time left at the start of the dispute remains until the new deadline.

        `expected_sequence` is the escrow's `dispute_sequence`.
        """
        return self._build(
            "withdraw_dispute",
            {"expected_sequence": expected_sequence},
            signer=signer,
            vault=escrow.vault,
            receiver=escrow.receiver,
            escrow=escrow.address,
        )

    def attested_message(
        self, genesis_hash: bytes, escrow: Pubkey, kind: int, task_hash: bytes, output_hash: bytes
    ) -> bytes:
        """Return the message to sign as a proof of this kind, bound to the cluster with this genesis hash."""
        words = f"agent-vault:v2:{PROOF_KINDS[kind]}".encode()
        addresses = bytes(self._addresses.program_id) + bytes(escrow)
        return words + genesis_hash + addresses + task_hash + output_hash

    def _settle(
        self,
        name: str,
        args: dict[str, object],
        escrow: OpenEscrow,
        *,
        payer: Pubkey | None,
        signer: Pubkey | None = None,
        instructions: Pubkey | None = None,
    ) -> Instruction:
        releases = payer is not None
        return self._build(
            name,
            args,
            payer=payer,
            signer=signer,
            **self._vault_accounts(escrow.vault),
            receiver=escrow.receiver if releases else None,
            receiver_tokens=self._addresses.token_account(escrow.receiver) if releases else None,
            escrow=escrow.address,
            escrow_tokens=self._addresses.escrow_tokens(escrow.address),
            rent_receiver=escrow.payer,
            associated_token_program=ASSOCIATED_TOKEN_PROGRAM if releases else None,
            system_program=SYSTEM_PROGRAM if releases else None,
            instructions=instructions,
            budget=escrow.budget,
            budget_parent=escrow.budget_parent,
        )


def attestation(key: Pubkey, signature: bytes, message: bytes) -> Instruction:
    """Return an Ed25519 instruction that makes the runtime verify one signature of one message.

    The program accepts only this layout, which Solana's SDKs also produce.
    """
    head = _ONE_SIGNATURE
    for number in (_SIGNATURE_OFFSET, None, _KEY_OFFSET, None, _MESSAGE_OFFSET, len(message), None):
        head += _HERE if number is None else number.to_bytes(2, "little")
    return Instruction(ED25519_PROGRAM, head + bytes(key) + signature + message, [])
