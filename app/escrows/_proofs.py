"""Parses completion proofs, passes them to the program and explains refusals."""

import base64
import re
from binascii import Error as BinasciiError
from dataclasses import dataclass

from solders.instruction import Instruction
from solders.pubkey import Pubkey

from app.chain.escrow_instructions import PROOF_KINDS, attestation, output_commitment
from app.chain.records import failed_instruction
from app.core.errors import ApiError, BusinessError
from app.escrows.models import SHA256, CompleteEscrow
from app.escrows.service import parse_hash
from app.store.escrows import EscrowRecord
from app.submission.context import Service
from app.submission.plan import Failure, SimulationFailedError
from app.submission.program_errors import error_name

_OUTPUT_HASH = PROOF_KINDS.index("output_hash")
_SIGNED_ATTESTATION = PROOF_KINDS.index("signed_attestation")
_SIGNATURE_BYTES, _HASH_BYTES = 64, 32
#: Program errors for a wrong kind of proof, a wrong output and a wrong signature.
_REFUSED = frozenset({"ProofKindNotAccepted", "UnexpectedOutput", "InvalidProof"})
#: Index of the instruction that verifies the proof's signature. This instruction follows the compute limit and precedes
#: the completion.
_ATTESTATION_INDEX = 1


@dataclass(frozen=True, slots=True)
class Proof:
    """A well-formed proof: the code of its kind, the hash of the output, and the signature if the kind needs one."""

    kind: int
    output_hash: bytes
    signature: bytes | None


def parse(body: CompleteEscrow) -> Proof:
    """Return the proof in a request. Raises ``invalid_proof`` if it is malformed."""
    kind = PROOF_KINDS.index(body.proof_type)
    if kind == _OUTPUT_HASH:
        if not re.fullmatch(SHA256, body.proof):
            raise BusinessError("invalid_proof", "proof: must have the form sha256:<64 hex digits>.")
        return Proof(kind, parse_hash(body.proof), None)
    try:
        raw = base64.b64decode(body.proof.encode("ascii"), validate=True)
    except (UnicodeEncodeError, BinasciiError):
        raw = b""
    if len(raw) != _SIGNATURE_BYTES + _HASH_BYTES:
        raise BusinessError(
            "invalid_proof", "proof: must be base64 of the 64-byte signature followed by the 32-byte output hash."
        )
    return Proof(kind, raw[_SIGNATURE_BYTES:], raw[:_SIGNATURE_BYTES])


async def instructions(service: Service, found: EscrowRecord, proof: Proof) -> list[Instruction]:
    """Return the instructions that precede the completion: the runtime's signature check for a signed proof, or none.

    Raises ``invalid_proof`` if no key can sign this kind of proof, and ``escrow_already_settled`` if the escrow's
    account is gone.
    """
    if proof.signature is None:
        return []
    address, receiver = Pubkey.from_string(found.address), Pubkey.from_string(found.receiver)
    escrow, vault = await service.chain.accounts([address, receiver])
    if escrow is None or escrow.owner != service.codec.program_id:
        raise BusinessError("escrow_already_settled")
    if proof.kind != _SIGNED_ATTESTATION:
        key = escrow.decode(service.codec).data["verifier"]
    elif found.to_wallet is not None and vault is not None:
        key = vault.decode(service.codec).data["session_authority"]
    else:
        key = receiver
    if key == Pubkey.default():
        missing = "the receiving wallet has no session" if proof.kind == _SIGNED_ATTESTATION else "no verifier is set"
        raise BusinessError("invalid_proof", f"No key can sign this kind of proof, because {missing}.")
    message = service.instructions(found.org).attested_message(
        service.identity.genesis_bytes, address, proof.kind, bytes.fromhex(found.task_hash), proof.output_hash
    )
    return [attestation(key, proof.signature, message)]


def explain(service: Service, failure: Failure, found: EscrowRecord, proof: Proof) -> ApiError | None:
    """Return the error for a refused proof, or None if the failure has another reason."""
    name = error_name(service.codec, failure)
    if name in _REFUSED:
        return BusinessError("invalid_proof", _what_is_wrong(found, proof))
    if proof.signature is None:
        return None
    if name == "SessionExpired":
        return BusinessError("invalid_proof", "The receiving wallet's session, which must sign the proof, has expired.")
    err = failure.simulation.err if isinstance(failure, SimulationFailedError) else failure.error
    if failed_instruction(err) == _ATTESTATION_INDEX:
        return BusinessError("invalid_proof", "The signature does not match the expected key, escrow and output.")
    return None


def _what_is_wrong(found: EscrowRecord, proof: Proof) -> str | None:
    if not found.proof_kinds >> proof.kind & 1:
        return f"The escrow does not accept proofs of kind {PROOF_KINDS[proof.kind]}."
    if found.output_commitment not in (None, output_commitment(proof.output_hash).hex()):
        return "The hash of the output differs from the hash that the escrow expects."
    return None
