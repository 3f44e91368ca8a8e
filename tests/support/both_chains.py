"""Sends the same transaction to the embedded chain and to a validator."""

import base64
import time
from typing import Any

from solders.hash import Hash
from solders.instruction import Instruction
from solders.keypair import Keypair
from solders.message import MessageV0
from solders.transaction import VersionedTransaction

from tests.support.localnet import SOL, Client, pay
from tests.validator.node import Node, RpcError

Json = dict[str, Any]

PAYER = Keypair.from_seed(b"parsed instructions of payer 123")
PARSED = {"encoding": "jsonParsed", "commitment": "confirmed", "maxSupportedTransactionVersion": 0}
_PATIENCE = 60.0


def _signed(blockhash: Hash, *instructions: Instruction) -> VersionedTransaction:
    return VersionedTransaction(MessageV0.try_compile(PAYER.pubkey(), instructions, [], blockhash), [PAYER])


def on_validator(node: Node, *instructions: Instruction) -> Json:
    """Land a transaction, which may fail, and return it parsed."""
    latest = node.call("getLatestBlockhash", {"commitment": "confirmed"})["value"]["blockhash"]
    raw = bytes(_signed(Hash.from_string(latest), *instructions))
    options = {"encoding": "base64", "skipPreflight": True}
    signature = node.call("sendTransaction", base64.b64encode(raw).decode(), options)
    return _landed(node, signature)


def _landed(node: Node, signature: str) -> Json:
    deadline = time.monotonic() + _PATIENCE
    while time.monotonic() < deadline:
        found: Json | None = node.call("getTransaction", signature, PARSED)
        if found is not None:
            return found
        time.sleep(0.05)
    raise RpcError("the transaction did not land")


async def on_embedded_chain(rpc: Client, *instructions: Instruction) -> Json:
    signature = await rpc.send(_signed(rpc.blockhash(), *instructions), skipPreflight=True)
    found: Json = await rpc("getTransaction", signature, PARSED)
    return found


def fund(node: Node) -> None:
    if node.call("getBalance", str(PAYER.pubkey()), {"commitment": "confirmed"})["value"]:
        return
    latest = node.call("getLatestBlockhash", {"commitment": "confirmed"})["value"]["blockhash"]
    message = MessageV0.try_compile(
        node.treasury.pubkey(), [pay(node.treasury, PAYER.pubkey(), SOL)], [], Hash.from_string(latest)
    )
    raw = bytes(VersionedTransaction(message, [node.treasury]))
    options = {"encoding": "base64", "preflightCommitment": "confirmed"}
    _landed(node, node.call("sendTransaction", base64.b64encode(raw).decode(), options))
