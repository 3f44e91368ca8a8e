"""A service and its chain in processes of their own, with faults between them."""

import contextlib
import json
import re
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path

import httpx
from solders.keypair import Keypair

from app.chain.client import ChainClient
from app.chain.transport import HttpTransport
from app.localnet.genesis import USDC_MINT
from idl.codec import load
from tests.support.fault_proxy import fault_proxy
from tests.support.faults import Faults
from tests.support.processes import command, free_ports, running

_LAMPORTS = 1_000 * 10**9
#: Runs a command with slots of another length, in milliseconds: blockhashes then expire sooner.
_WITH_SLOTS = """
import sys
from app.localnet import timeline
timeline.SLOT_MS = int(sys.argv[1])
from app.server.cli import main
main(sys.argv[2:])
"""
#: Runs a command whose log goes to a file.
_WITH_LOG = """
import os, sys
os.dup2(os.open(sys.argv[1], os.O_WRONLY | os.O_APPEND | os.O_CREAT), 2)
from app.server.cli import main
main(sys.argv[2:])
"""
_STARTS = 20
"""How often a service that a fault ended during its start is started again, as a supervisor would."""


@dataclass
class Deployment:
    """The running processes. `chain` reads the chain past the faults, `client` is an admin's."""

    folder: Path
    faults: Faults
    chain: ChainClient
    chain_url: str
    proxy_url: str
    url: str
    client: httpx.AsyncClient
    kills: int = 0
    failed_starts: list[str] = field(default_factory=list)
    _service: AsyncExitStack = field(default_factory=AsyncExitStack)

    @property
    def _log(self) -> Path:
        return self.folder / "service.log"

    async def start(self) -> None:
        """Start the service, again if a fault ends it before it serves."""
        options = ("serve", "--data-dir", str(self.folder / "service"), "--rpc-url", self.proxy_url)
        port = self.url.rpartition(":")[2]
        for _ in range(_STARTS):
            at = len(self.logged())
            arguments = (str(self._log), *options, "--port", port)
            service = running(_WITH_LOG, *arguments, until=b"Agent Vault serves", AGENT_VAULT_RATE_LIMIT="0")
            try:
                await self._service.enter_async_context(service)
            except AssertionError:
                self.failed_starts.append(self.logged()[at:])
            else:
                return
        raise AssertionError(self.failed_starts)

    async def kill(self) -> None:
        """Kill the service with SIGKILL."""
        await self._service.aclose()

    async def restart(self) -> None:
        """Kill the service and start it on the same folder."""
        self.kills += 1
        await self.kill()
        await self.start()

    def logged(self) -> str:
        """Return what the service has written to its log."""
        return self._log.read_text() if self._log.exists() else ""


@contextlib.asynccontextmanager
async def deployed(folder: Path, faults: Faults, *, slot_ms: int) -> AsyncIterator[Deployment]:
    """Run chain, proxy and service, with an organisation that has a million USDC; slots last `slot_ms` milliseconds."""
    (port, node), (_, proxy) = free_ports(), free_ports()
    chain_url, proxy_url = f"http://127.0.0.1:{node}", f"http://127.0.0.1:{proxy}"
    service, localnet = ("--data-dir", str(folder / "service")), ("--data-dir", str(folder / "chain"))
    async with AsyncExitStack() as stack:
        options = (str(slot_ms), "localnet", *localnet, "--port", str(node))
        await stack.enter_async_context(running(_WITH_SLOTS, *options, until=b"USDC mint"))
        await stack.enter_async_context(fault_proxy(faults, proxy, node))
        made = await command("orgs", "create", "fleet", *service, "--rpc-url", chain_url)
        reserve = re.search(rf"mint {USDC_MINT}\) into its reserve: (\w+)", made)
        key = re.search(r"Admin API key, shown only once: (\w+)", made)
        assert reserve is not None
        assert key is not None
        await command("faucet", "usdc", reserve[1], "1000000", *localnet, "--rpc-url", chain_url)
        payer = Keypair.from_bytes(bytes(json.loads((folder / "service/keys/fee-payer.json").read_text())))
        transport = HttpTransport(chain_url)
        chain = ChainClient(transport, program_id=load().program_id)
        stack.push_async_callback(chain.aclose)
        await chain.confirm(await chain.airdrop(payer.pubkey(), _LAMPORTS), timeout=10)
        url = f"http://127.0.0.1:{port}"
        headers = {"Authorization": f"Bearer {key[1]}"}
        # Longer than any request may take: an answer that does not come is the service's fault.
        client = await stack.enter_async_context(httpx.AsyncClient(base_url=url, headers=headers, timeout=60))
        one = Deployment(folder, faults, chain, chain_url, proxy_url, url, client)
        stack.push_async_callback(one.kill)
        await one.start()
        yield one
