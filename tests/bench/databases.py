"""Compares SQLite with PostgreSQL, and one node with two: processor time of the service for a payment.

By hand: `python -m tests.bench.databases [--payments N] [--rounds N]`. The chain, each node, the PostgreSQL server and
the clients are processes of their own; only the nodes' time counts. The settings take turns; each number is the median
of the rounds. Two nodes that share the clients of one have fewer pieces of work to do together; with twice the clients
each of them has as much to do as one.
"""

import asyncio
import secrets
import statistics
import sys
import tempfile
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import click
import httpx
from solders.keypair import Keypair

from tests.bench.cluster import own_cluster
from tests.bench.serving import cpu_seconds
from tests.bench.tables import table
from tests.nodes.nodes import nodes_on
from tests.support.founding import founded
from tests.support.postgres import Cluster
from tests.support.processes import WITH_LOG, free_ports, running

_CLIENTS = 8
_USDC = 1_000
_RULES = {"maxPerTx": "10", "maxPerDay": "1000", "maxPerMonth": "10000", "velocityCap": 1_000_000}


@dataclass
class Setting:
    """A service under measurement: its nodes, what pays whom, and the processor time found so far, in milliseconds."""

    name: str
    nodes: list[httpx.AsyncClient]
    pids: list[int]
    clients: int = _CLIENTS
    vaults: list[tuple[str, str]] = field(default_factory=list)
    payee: str = ""
    costs: list[float] = field(default_factory=list)

    async def prepare(self) -> None:
        """Make wallets with money, and somebody to pay."""
        self.payee = str(Keypair().pubkey())
        policy = (await self._post("/v1/policies", {"name": self.name, **_RULES}))["policy_id"]
        for number in range(self.clients):
            body = {"agentId": f"agent-{number} of {self.clients}", "label": "Load", "policyId": policy}
            wallet = (await self._post("/v1/wallets", body))["wallet_id"]
            await self._post(f"/v1/wallets/{wallet}/fund", {"amount": "20"})
            self.vaults.append((wallet, (await self._post(f"/v1/wallets/{wallet}/rotate-token", {}))["session_token"]))

    async def round(self, payments: int) -> None:
        """Make payments, each client one after the other, on the nodes in turn."""

        async def client(number: int) -> None:
            wallet, token = self.vaults[number]
            for _ in range(payments // self.clients):
                body = {"walletId": wallet, "to": self.payee, "amount": "0.001", "currency": "USDC"}
                headers = {"Session-Token": token, "Idempotency-Key": secrets.token_hex(8)}
                paid = await self._post("/v1/payments", body, node=number % len(self.nodes), headers=headers)
                if paid["status"] != "confirmed":
                    raise RuntimeError(str(paid))

        before = sum(map(cpu_seconds, self.pids))
        await asyncio.gather(*(client(number) for number in range(self.clients)))
        self.costs.append((sum(map(cpu_seconds, self.pids)) - before) / payments * 1000)

    async def _post(
        self, path: str, body: Mapping[str, object], *, node: int = 0, headers: dict[str, str] | None = None
    ) -> dict[str, str]:
        answer = await self.nodes[node].post(path, json=body, headers=headers)
        if answer.status_code != httpx.codes.OK:
            raise RuntimeError(f"{path} answered {answer.status_code}: {answer.text}")
        found: dict[str, str] = answer.json()
        return found


@asynccontextmanager
async def on_sqlite(folder: Path) -> AsyncIterator[Setting]:
    """Run one node on a file."""
    async with founded(folder / "chain", folder / "data", usdc=_USDC) as made:
        port = free_ports()[0]
        options = ("serve", "--data-dir", str(folder / "data"), "--rpc-url", made.url, "--port", str(port))
        log = str(folder / "log")
        async with running(WITH_LOG, log, *options, until=b"Agent Vault", AGENT_VAULT_RATE_LIMIT="0") as process:
            headers = {"Authorization": f"Bearer {made.key}"}
            async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", headers=headers, timeout=30) as client:
                yield Setting("SQLite, one node", [client], [process.pid])


@asynccontextmanager
async def on_postgresql(cluster: Cluster, template: str, folder: Path, count: int) -> AsyncIterator[Setting]:
    """Run nodes on a server."""
    async with nodes_on(cluster, template, folder, usdc=_USDC) as nodes:
        for number in range(count):
            await nodes.start(f"node-{number}")
        name = f"PostgreSQL, {'one node' if count == 1 else f'{count} nodes'}"
        yield Setting(name, list(nodes.clients.values()), [one.pid for one in nodes.processes.values()])


async def run(payments: int, rounds: int) -> None:
    """Measure and print."""
    async with AsyncExitStack() as stack:
        cluster, folder = stack.enter_context(own_cluster())
        template = cluster.upgraded()
        folders = [Path(stack.enter_context(tempfile.TemporaryDirectory(dir=folder))) for _ in range(3)]
        opened = [on_sqlite(folders[0]), *(on_postgresql(cluster, template, folders[count], count) for count in (1, 2))]
        settings = [await stack.enter_async_context(one) for one in opened]
        two = settings[-1]
        settings.append(Setting(f"{two.name}, twice the clients", two.nodes, two.pids, clients=2 * _CLIENTS))
        for one in settings:
            await one.prepare()
            await one.round(payments)
            one.costs.clear()
        for _ in range(rounds):
            for one in settings:
                await one.round(payments)
        medians = [statistics.median(one.costs) for one in settings]
        rows = [
            [one.name, f"{cost:.1f}", f"{cost / medians[0]:.2f}", f"{cost / medians[1]:.2f}"]
            for one, cost in zip(settings, medians, strict=True)
        ]
        sys.stdout.write(table(["", "CPU ms a payment", "/ SQLite", "/ one node"], rows))


@click.command()
@click.option("--payments", default=160, show_default=True, help="Payments of a round.")
@click.option("--rounds", default=10, show_default=True, help="Rounds of each setting, in turns.")
def main(payments: int, rounds: int) -> None:
    """Measure and print."""
    asyncio.run(run(payments, rounds))


if __name__ == "__main__":
    main()
