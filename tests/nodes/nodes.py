"""Nodes in processes of their own on one database and one chain, which a test kills, and HAProxy in front of them."""

import asyncio
import contextlib
import os
import shutil
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from app.chain.client import ChainClient
from tests.support.founding import founded
from tests.support.needs import skip_or_fail
from tests.support.postgres import Cluster
from tests.support.processes import PATIENCE, WITH_LOG, free_ports, running
from tests.support.warm import Fork

CONFIGURATION = Path(__file__).resolve().parents[2] / "deploy/haproxy.cfg"
_HOLDER = (
    "SELECT holder FROM leases WHERE name = 'indexer' AND expires_at > extract(epoch FROM clock_timestamp()) * 1000"
)


def haproxy() -> str:
    """Return the program. Without it, skip, or fail if CI=true."""
    # Debian has it where only administrators look.
    found = shutil.which("haproxy", path=f"{os.environ['PATH']}:/usr/sbin")
    if found is None:
        skip_or_fail("there is no HAProxy: install Debian's haproxy")
    return found


@asynccontextmanager
async def balanced(listen: str, nodes: list[str], log: Path) -> AsyncIterator[str]:
    """Run HAProxy with the configuration of `deploy/` in front of nodes (HOST:PORT); yields its address."""
    named = {f"NODE_{number}": address for number, address in enumerate(nodes, 1)}
    with log.open("ab") as file:
        process = await asyncio.create_subprocess_exec(
            *(haproxy(), "-db", "-f", str(CONFIGURATION)),
            stdout=file,
            stderr=file,
            env={**os.environ, "LISTEN": listen, **named},
        )
    try:
        async with httpx.AsyncClient(base_url=f"http://{listen}") as client, asyncio.timeout(PATIENCE):
            while True:
                assert process.returncode is None
                with contextlib.suppress(httpx.TransportError):
                    if (await client.get("/readyz")).status_code == 200:
                        break
                await asyncio.sleep(0.05)
        yield f"http://{listen}"
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()


@dataclass
class Nodes:
    """The running nodes by their names, and a client of each with an admin's key. A node keeps its port for life."""

    folder: Path
    cluster: Cluster
    database: str
    chain: ChainClient
    chain_url: str
    key: str
    processes: dict[str, Fork] = field(default_factory=dict)
    clients: dict[str, httpx.AsyncClient] = field(default_factory=dict)
    ports: dict[str, int] = field(default_factory=dict)
    database_url: str = ""
    rpc_url: str = ""
    """Where the nodes reach the chain, if not directly."""
    _running: dict[str, AsyncExitStack] = field(default_factory=dict)

    @property
    def environment(self) -> dict[str, str]:
        """The settings that nodes share with the commands on their database."""
        return {
            "AGENT_VAULT_DATABASE_URL": self.database_url or self.cluster.url(self.database),
            "AGENT_VAULT_KEYS_DIR": str(self.folder / "keys"),
        }

    async def start(self, name: str, *options: str, **environment: str) -> None:
        """Start a node in a folder of its own, with the keys of the first."""
        await self.stop(name)
        port = self.ports.setdefault(name, free_ports()[0])
        arguments = (
            "--data-dir",
            str(self.folder / name),
            "--rpc-url",
            self.rpc_url or self.chain_url,
            "--port",
            str(port),
            *options,
        )
        stack = AsyncExitStack()
        self._running[name] = stack
        self.processes[name] = await stack.enter_async_context(
            running(
                WITH_LOG,
                *(str(self.log(name)), "serve", *arguments),
                until=b"Agent Vault",
                AGENT_VAULT_RATE_LIMIT="0",
                **self.environment,
                **environment,
            )
        )
        self.clients[name] = await stack.enter_async_context(self.client_of(f"http://127.0.0.1:{port}"))

    def client_of(self, url: str) -> httpx.AsyncClient:
        """Return an admin's client of an address."""
        # Longer than any request may take: an answer that does not come is the service's fault.
        return httpx.AsyncClient(base_url=url, headers={"Authorization": f"Bearer {self.key}"}, timeout=60)

    async def stop(self, name: str) -> None:
        """Kill a node if it runs."""
        stack, process = self._running.pop(name, None), self.processes.pop(name, None)
        self.clients.pop(name, None)
        if process is not None:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()
        if stack is not None:
            await stack.aclose()

    async def close(self) -> None:
        """Kill all nodes."""
        for name in list(self._running):
            await self.stop(name)

    def log(self, name: str) -> Path:
        """Return the file with what the node wrote to its log, in all its lives."""
        return self.folder / f"{name}.log"

    def holder(self) -> str | None:
        """The name of the node that follows the chain."""
        found = self.cluster.execute(_HOLDER, self.database)
        pid = int(found[0][0].split("/")[-2]) if found else None
        return next((name for name, process in self.processes.items() if process.pid == pid), None)

    async def ok(self, method: str, path: str, body: Any = None) -> dict[str, Any]:
        """Ask any node for what must succeed."""
        answer = await next(iter(self.clients.values())).request(method, path, json=body)
        assert answer.status_code == 200, answer.text
        found: dict[str, Any] = answer.json()
        return found


@asynccontextmanager
async def nodes_on(cluster: Cluster, template: str, folder: Path, **founding: int) -> AsyncIterator[Nodes]:
    """Run a chain with an organisation, whose service nobody runs yet, on a new database."""
    database = cluster.database(template)
    url = cluster.url(database)
    async with founded(folder / "chain", folder / "start", **founding, AGENT_VAULT_DATABASE_URL=url) as made:  # type: ignore[arg-type]
        (folder / "start" / "keys").rename(folder / "keys")
        nodes = Nodes(folder, cluster, database, made.chain, made.url, made.key)
        try:
            yield nodes
        finally:
            await nodes.close()
