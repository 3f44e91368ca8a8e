"""A service and its chain in processes of their own, with faults between them."""

import contextlib
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path

import httpx

from app.chain.client import ChainClient
from tests.support.fault_proxy import fault_proxy
from tests.support.faults import Faults
from tests.support.founding import founded
from tests.support.processes import WITH_LOG, command, free_ports, running

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
            service = running(WITH_LOG, *arguments, until=b"Agent Vault serves", AGENT_VAULT_RATE_LIMIT="0")
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

    async def holes(self) -> list[str]:
        """Return what `agent-vault holes` prints."""
        return (await command("holes", "--data-dir", str(self.folder / "service"))).splitlines()

    def logged(self) -> str:
        """Return what the service has written to its log."""
        return self._log.read_text() if self._log.exists() else ""


@contextlib.asynccontextmanager
async def deployed(folder: Path, faults: Faults, *, slot_ms: int) -> AsyncIterator[Deployment]:
    """Run chain, proxy and service, with an organisation that has a million USDC; slots last `slot_ms` milliseconds."""
    (port, _), (_, proxy) = free_ports(), free_ports()
    async with AsyncExitStack() as stack:
        founding = await stack.enter_async_context(
            founded(folder / "chain", folder / "service", usdc=1_000_000, slot_ms=slot_ms)
        )
        node = int(founding.url.rpartition(":")[2])
        await stack.enter_async_context(fault_proxy(faults, proxy, node))
        url = f"http://127.0.0.1:{port}"
        headers = {"Authorization": f"Bearer {founding.key}"}
        # Longer than any request may take: an answer that does not come is the service's fault.
        client = await stack.enter_async_context(httpx.AsyncClient(base_url=url, headers=headers, timeout=60))
        proxy_url = f"http://127.0.0.1:{proxy}"
        one = Deployment(folder, faults, founding.chain, founding.url, proxy_url, url, client)
        stack.push_async_callback(one.kill)
        await one.start()
        yield one
