"""Measures how long payments take over a slow chain: two nodes behind HAProxy, and one of them killed in the middle.

By hand: `python -m tests.bench.slow_chain [--rate N] [--seconds N]`. PostgreSQL, HAProxy, the chain and the two nodes
are processes of their own; the clients and the delay before the chain are in this one. The chain answers after 50 ms,
and a transaction is confirmed 400 ms after it was sent.

The load is open: a payment begins at its time, whatever became of earlier ones, and its latency counts from then until
it is confirmed, with all repetitions under its key. Without `--rate`, clients that pay one after the other first find
what the nodes can do, and the rate is 60 % of that.
"""

import asyncio
import secrets
import sys
import time
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path

import click
import httpx

from tests.bench.cluster import own_cluster
from tests.bench.load import percentile
from tests.bench.tables import table
from tests.nodes.nodes import Nodes, balanced, nodes_on
from tests.support.fault_proxy import fault_proxy
from tests.support.processes import free_ports
from tests.support.slow_node import SlowNode

_ANSWER, _CONFIRMATION = 0.05, 0.4
_WALLETS = 64
"""More than are under way at once: within a node, payments of one wallet follow one another."""
_CLIENTS = 32
_WARM_UP, _SATURATED = 5.0, 15.0
_SHARE = 0.6
_PAUSE = 0.1
"""Seconds between two looks at a payment that is pending."""
_LIMIT = 1500
"""Milliseconds."""


@dataclass
class Load:
    """Payments of a thousandth of a USDC to one payee, and how long each took, in seconds."""

    client: httpx.AsyncClient
    wallets: list[str]
    payee: str
    latencies: list[float] = field(default_factory=list)
    repeated: int = 0
    _next: int = 0

    async def pay(self) -> None:
        """Pay, repeat under the key until there is an answer, and note how long it took until it was confirmed."""
        wallet, began = self.wallets[self._next % len(self.wallets)], time.perf_counter()
        self._next += 1
        body = {"walletId": wallet, "to": self.payee, "amount": "0.001", "currency": "USDC"}
        headers = {"Idempotency-Key": secrets.token_hex(8)}
        while (made := await self._try("POST", "/v1/payments", json=body, headers=headers)) is None:
            self.repeated += 1
        while made["status"] == "pending":
            made = await self._try("GET", f"/v1/transactions/{made['tx_id']}") or made
            await asyncio.sleep(_PAUSE)
        if made["status"] != "confirmed":
            raise RuntimeError(f"a payment is {made['status']}")
        self.latencies.append(time.perf_counter() - began)

    async def _try(self, method: str, path: str, **options: object) -> dict[str, str] | None:
        """Return the answer, or None after the pause for which the service asks."""
        try:
            answer = await self.client.request(method, path, **options)  # type: ignore[arg-type]
        except httpx.TransportError:
            return None
        if answer.status_code == 200:
            found: dict[str, str] = answer.json()
            return found
        if answer.status_code not in {409, 503}:
            raise RuntimeError(f"{path} answered {answer.status_code}: {answer.text}")
        await asyncio.sleep(float(answer.headers.get("retry-after", 0)))
        return None

    async def saturate(self, seconds: float) -> float:
        """Let each client begin its next payment when the last is done, and return how many were made a second."""
        until, before = time.perf_counter() + seconds, len(self.latencies)

        async def work() -> None:
            while time.perf_counter() < until:
                await self.pay()

        began = time.perf_counter()
        await asyncio.gather(*(work() for _ in range(_CLIENTS)))
        return (len(self.latencies) - before) / (time.perf_counter() - began)

    async def open(self, rate: float, seconds: float) -> None:
        """Begin so many payments a second, and wait for the end of all."""
        began = time.perf_counter()
        async with asyncio.TaskGroup() as paying:
            for number in range(round(rate * seconds)):
                await asyncio.sleep(began + number / rate - time.perf_counter())
                paying.create_task(self.pay())

    def cells(self, name: str, rate: float) -> list[str]:
        """Return a row of the table."""
        rising = sorted(self.latencies)
        times = [f"{percentile(rising, percent):.0f}" for percent in (50, 95, 99, 100)]
        late = sum(one * 1000 > _LIMIT for one in rising)
        return [name, f"{rate:.1f}", str(len(rising)), *times, str(late), str(self.repeated)]


async def _load(nodes: Nodes, client: httpx.AsyncClient) -> Load:
    async def wallet(number: int) -> dict[str, str]:
        body = {"agentId": f"agent-{number}", "label": "A", "policyId": "pol_permissive"}
        made = await nodes.ok("POST", "/v1/wallets", body)
        await nodes.ok("POST", f"/v1/wallets/{made['wallet_id']}/fund", {"amount": "100"})
        return made

    payee, *wallets = await asyncio.gather(*(wallet(number) for number in range(_WALLETS + 1)))
    return Load(client, [one["wallet_id"] for one in wallets], payee["chain_address"])


async def run(rate: float | None, seconds: float) -> None:
    """Measure and print."""
    async with AsyncExitStack() as stack:
        cluster, folder = stack.enter_context(own_cluster())
        nodes = await stack.enter_async_context(nodes_on(cluster, cluster.upgraded(), folder, usdc=1_000_000))
        _, slow = free_ports()
        truthful = int(nodes.chain_url.rpartition(":")[2])
        delay = SlowNode(answer=_ANSWER, confirmation=_CONFIRMATION)
        await stack.enter_async_context(fault_proxy(delay, slow, truthful))
        nodes.rpc_url = f"http://127.0.0.1:{slow}"
        client = await stack.enter_async_context(await _balanced(stack, nodes, folder))
        made = await _load(nodes, client)
        await made.saturate(_WARM_UP)
        most = await made.saturate(_SATURATED) if rate is None else 0.0
        rate = rate or most * _SHARE
        rows = []
        for name in ("both nodes", "one killed"):
            load = Load(client, made.wallets, made.payee)
            dying = asyncio.create_task(_die(nodes, seconds / 2 if name == "one killed" else None))
            await load.open(rate, seconds)
            await dying
            rows.append(load.cells(name, rate))
        if most:
            sys.stdout.write(f"{_CLIENTS} clients, one payment after the other: {most:.1f} payments a second\n\n")
        heads = ["", "begun a second", "payments", "p50 ms", "p95 ms", "p99 ms", "most ms", "over 1.5 s", "repeated"]
        sys.stdout.write(table(heads, rows))


async def _balanced(stack: AsyncExitStack, nodes: Nodes, folder: Path) -> httpx.AsyncClient:
    for name in ("one", "two"):
        await nodes.start(name, AGENT_VAULT_TRUSTED_PROXIES="127.0.0.1")
    port, _ = free_ports()
    addresses = [f"127.0.0.1:{port}" for port in nodes.ports.values()]
    url = await stack.enter_async_context(balanced(f"127.0.0.1:{port}", addresses, folder / "haproxy.log"))
    return nodes.client_of(url)


async def _die(nodes: Nodes, after: float | None) -> None:
    """Kill the node that follows the chain."""
    if after is not None:
        await asyncio.sleep(after)
        name = await asyncio.to_thread(nodes.holder)
        await nodes.stop(name or "one")


@click.command()
@click.option("--rate", type=float, help="Payments that begin a second; by default 60 % of what the nodes can do.")
@click.option("--seconds", default=60.0, show_default=True, help="Length of each of the two loads.")
def main(rate: float | None, seconds: float) -> None:
    """Measure and print."""
    asyncio.run(run(rate, seconds))


if __name__ == "__main__":
    main()
