"""Assembles and signs transactions."""

from collections.abc import Sequence
from dataclasses import dataclass

from solders.hash import Hash
from solders.instruction import Instruction
from solders.keypair import Keypair
from solders.message import Message
from solders.pubkey import Pubkey
from solders.signature import Signature
from solders.transaction import Transaction

MAX_SIZE = 1232
"""The most bytes of a transaction."""


@dataclass(frozen=True, slots=True)
class Signed:
    """A signed transaction and its first signature, by which the chain knows it."""

    signature: str
    raw: bytes


def sign(
    instructions: Sequence[Instruction], *, payer: Keypair, signers: Sequence[Keypair] = (), blockhash: Hash
) -> Signed:
    """Sign a transaction with the fee payer's key and every other key that its instructions need.

    Keys in `signers` that no instruction needs are ignored. Raises `ValueError` when a key is missing.
    """
    # Deriving an address takes a curve multiplication, so each is derived once.
    keys = {keypair.pubkey(): keypair for keypair in (payer, *signers)}
    message = Message.new_with_blockhash(list(instructions), next(iter(keys)), blockhash)
    needed = message.account_keys[: message.header.num_required_signatures]
    missing = [str(address) for address in needed if address not in keys]
    if missing:
        raise ValueError(f"no key to sign for {', '.join(missing)}")
    content = bytes(message)
    signatures = [keys[address].sign_message(content) for address in needed]
    return Signed(str(signatures[0]), bytes(Transaction.populate(message, signatures)))


def unsigned(instructions: Sequence[Instruction], *, payer: Pubkey, blockhash: Hash | None = None) -> bytes:
    """Return a transaction with empty signatures, for a simulation that does not verify them."""
    message = Message.new_with_blockhash(list(instructions), payer, blockhash or Hash.default())
    signatures = [Signature.default()] * message.header.num_required_signatures
    return bytes(Transaction.populate(message, signatures))
