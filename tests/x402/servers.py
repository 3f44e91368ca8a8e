"""The public packages' facilitator and a paid resource, as processes of Node."""

import base64
import contextlib
import json
import socket
from collections.abc import AsyncIterator
from pathlib import Path

from solders.keypair import Keypair
from solders.transaction import VersionedTransaction

from app.core.text import decode_base64
from tests.support import node


def settled(header: str, facilitator: Keypair) -> VersionedTransaction:
    """The transaction in a payment's header, signed by the facilitator as well."""
    content = json.loads(decode_base64(header.rpartition(" ")[2]))
    return sponsored(content["payload"]["transaction"], facilitator)


def sponsored(payload: str, facilitator: Keypair) -> VersionedTransaction:
    """The transaction in a payload, signed by the fee payer as well."""
    raw = base64.b64decode(payload)
    transaction = VersionedTransaction.from_bytes(raw)
    signature = facilitator.sign_message(bytes(raw[1 + 64 * raw[0] :]))
    return VersionedTransaction.populate(transaction.message, [signature, *transaction.signatures[1:]])


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as bound:
        return int(bound.getsockname()[1])


@contextlib.asynccontextmanager
async def started(script: str, **environment: str) -> AsyncIterator[str]:
    """Run a script that listens on PORT until the context ends; yields its address."""
    async with node.started("x402", script, free_port(), **environment) as url:
        yield url


@contextlib.asynccontextmanager
async def facilitator(
    folder: Path, keypair: Keypair, *, rpc: str, network: str, allowed: str | None = None, v1: str = ""
) -> AsyncIterator[str]:
    """A facilitator; it takes payments by the program `allowed`, or else only plain transfers."""
    key = folder / "facilitator.json"
    key.write_text(json.dumps(list(bytes(keypair))))
    smart = {} if allowed is None else {"SMART": "1", "ALLOWED": allowed}
    async with started("facilitator.mjs", RPC=rpc, KEY=str(key), NETWORKS=network, V1=v1, **smart) as url:
        yield url
