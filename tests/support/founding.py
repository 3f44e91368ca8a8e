"""The embedded chain in a separate process, with a funded organisation, before any service runs."""

import json
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from solders.keypair import Keypair

from app.chain.client import ChainClient
from app.chain.transport import HttpTransport
from app.localnet.genesis import USDC_MINT
from app.localnet.timeline import SLOT_MS
from idl.codec import load
from tests.support.processes import command, free_ports, running

_LAMPORTS = 1_000 * 10**9
#: Runs a command with a different slot length, in milliseconds. Shorter slots make blockhashes expire sooner.
_WITH_SLOTS = """
import sys
from app.localnet import timeline
timeline.SLOT_MS = int(sys.argv[1])
from app.commands.main import main
main(sys.argv[2:])
"""


@dataclass(frozen=True)
class Founding:
    """A running chain: its address, a client that bypasses every fault, and the organisation's first admin key."""

    url: str
    chain: ChainClient
    key: str


@asynccontextmanager
async def founded(
    folder: Path, data: Path, *, usdc: int, slot_ms: int = SLOT_MS, **environment: str
) -> AsyncIterator[Founding]:
    """Run a chain in `folder`, and create an organisation with this much USDC by the command line on `data`."""
    _, port = free_ports()
    url, localnet = f"http://127.0.0.1:{port}", ("--data-dir", str(folder))
    options = (str(slot_ms), "localnet", *localnet, "--port", str(port))
    async with running(_WITH_SLOTS, *options, until=b"USDC mint"):
        made = await command("orgs", "create", "fleet", "--data-dir", str(data), "--rpc-url", url, **environment)
        reserve = re.search(rf"mint {USDC_MINT}\) into its reserve: (\w+)", made)
        key = re.search(r"Admin API key, shown only once: (\w+)", made)
        assert reserve is not None
        assert key is not None
        await command("faucet", "usdc", reserve[1], str(usdc), *localnet, "--rpc-url", url)
        payer = Keypair.from_bytes(bytes(json.loads((data / "keys/fee-payer.json").read_text())))
        chain = ChainClient(HttpTransport(url), program_id=load().program_id)
        try:
            await chain.confirm(await chain.airdrop(payer.pubkey(), _LAMPORTS), timeout=10)
            yield Founding(url, chain, key[1])
        finally:
            await chain.aclose()
