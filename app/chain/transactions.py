"""Assembles and signs transactions."""

from collections.abc import Sequence
from dataclasses import dataclass

from solders.hash import Hash
from solders.instruction import Instruction
from solders.message import Message
from solders.pubkey import Pubkey
from solders.signature import Signature
from solders.transaction import Transaction

from app.core.hardware_tokens import signature_by
from app.core.signers import Signer

MAX_SIZE = 1232
"""Maximum size of a transaction in bytes: the IPv6 minimum MTU of 1280 minus 48 bytes of headers."""


@dataclass(frozen=True, slots=True)
class Signed:
    """A signed transaction and its first signature, which identifies it on the chain."""

    signature: str
    raw: bytes


def sign(
    instructions: Sequence[Instruction], *, payer: Signer, signers: Sequence[Signer] = (), blockhash: Hash
) -> Signed:
    """Sign a transaction with the fee payer's key and every other key that its instructions need.

    Keys in `signers` that no instruction needs are ignored. Raises `ValueError` if a key is missing. Blocks while a
    hardware token signs.
    """
    message, needed = _message(instructions, payer, signers, blockhash)
    content = bytes(message)
    return _signed(message, [signer.sign_message(content) for signer in needed])


async def sign_with_any(
    instructions: Sequence[Instruction], *, payer: Signer, signers: Sequence[Signer] = (), blockhash: Hash
) -> Signed:
    """Sign as `sign` does, without blocking the event loop. Raises ``signer_unavailable`` if a hardware token fails."""
    message, needed = _message(instructions, payer, signers, blockhash)
    content = bytes(message)
    return _signed(message, [await signature_by(signer, content) for signer in needed])


async def sign_for(
    instructions: Sequence[Instruction], *, payer: Pubkey, signers: Sequence[Signer], blockhash: Hash
) -> bytes:
    """Return a transaction signed by all needed keys except the fee payer's, which signs later and elsewhere.

    Raises ``signer_unavailable`` if a hardware token fails.
    """
    message = Message.new_with_blockhash(list(instructions), payer, blockhash)
    content, keys = bytes(message), {signer.pubkey(): signer for signer in signers}
    needed = message.account_keys[1 : message.header.num_required_signatures]
    signatures = [await signature_by(keys[address], content) for address in needed]
    return bytes(Transaction.populate(message, [Signature.default(), *signatures]))


def _message(
    instructions: Sequence[Instruction], payer: Signer, signers: Sequence[Signer], blockhash: Hash
) -> tuple[Message, list[Signer]]:
    """Return the message to sign and its signers in the order of their signatures."""
    # Derive each signer's address only once, because the derivation takes a curve multiplication.
    keys = {signer.pubkey(): signer for signer in (payer, *signers)}
    message = Message.new_with_blockhash(list(instructions), next(iter(keys)), blockhash)
    needed = message.account_keys[: message.header.num_required_signatures]
    missing = [str(address) for address in needed if address not in keys]
    if missing:
        raise ValueError(f"no key to sign for {', '.join(missing)}")
    return message, [keys[address] for address in needed]


def _signed(message: Message, signatures: list[Signature]) -> Signed:
    return Signed(str(signatures[0]), bytes(Transaction.populate(message, signatures)))


def unsigned(instructions: Sequence[Instruction], *, payer: Pubkey, blockhash: Hash | None = None) -> bytes:
    """Return a transaction with empty signatures, to simulate it without verification or to have it signed offline."""
    message = Message.new_with_blockhash(list(instructions), payer, blockhash or Hash.default())
    signatures = [Signature.default()] * message.header.num_required_signatures
    return bytes(Transaction.populate(message, signatures))
