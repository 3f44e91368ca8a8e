"""Compares SQLite with PostgreSQL, and one node with two: processor time of a payment and of a projected event.

By hand: `python -m tests.bench.databases [--payments N] [--rounds N]`. One process runs all but the PostgreSQL server:
the chain, the nodes and their clients, without sockets. So the ratios are nearer to 1 than those of the nodes alone.
The settings take turns; each number is the median of the rounds.
"""

import asyncio
import secrets
import statistics
import sys
import time
from contextlib import AsyncExitStack
from dataclasses import dataclass, field

import click
import structlog
from pydantic import SecretStr
from sqlalchemy import func, select

from app.store.read_tables import transactions
from tests.bench.cluster import own_cluster
from tests.bench.tables import table
from tests.support.service_world import Json, ServiceWorld

_CLIENTS = 8


@dataclass
class Setting:
    """A service under measurement: its nodes, what pays whom, and the processor time found so far, in milliseconds."""

    name: str
    nodes: list[ServiceWorld]
    wallets: list[Json] = field(default_factory=list)
    payee: str = ""
    costs: list[float] = field(default_factory=list)

    async def prepare(self) -> None:
        """Make wallets with money, and somebody to pay."""
        self.wallets = [await self.nodes[0].wallet(funds="10") for _ in range(_CLIENTS)]
        self.payee = await self.nodes[0].payee()

    async def round(self, payments: int) -> None:
        """Make payments, each client one after the other, on the nodes in turn."""

        async def client(number: int) -> None:
            node, wallet = self.nodes[number % len(self.nodes)], self.wallets[number]
            for _ in range(payments // _CLIENTS):
                paid = await node.pay(wallet, self.payee, "0.001", headers={"Idempotency-Key": secrets.token_hex(8)})
                if paid.json().get("status") != "confirmed":
                    raise RuntimeError(paid.text)

        began = time.process_time()
        await asyncio.gather(*(client(number) for number in range(_CLIENTS)))
        self.costs.append((time.process_time() - began) / payments * 1000)

    async def projection(self) -> tuple[int, float]:
        """Rebuild the read models; returns how many rows of the transaction list, and the microseconds for each."""
        world = self.nodes[0]
        rows = world.service.db.read_now(lambda conn: conn.scalar(select(func.count()).select_from(transactions))) or 0
        began = time.process_time()
        await world.service.projector.rebuild()
        return rows, (time.process_time() - began) / rows * 1e6


async def run(payments: int, rounds: int) -> None:
    """Measure and print."""
    async with AsyncExitStack() as stack:
        cluster, folder = stack.enter_context(own_cluster())
        template = cluster.upgraded()

        async def world(name: str, *, server: bool = True) -> ServiceWorld:
            url = SecretStr(cluster.url(cluster.database(template))) if server else None
            (folder / name).mkdir()
            return await stack.enter_async_context(ServiceWorld(folder / name, database_url=url))

        first = await world("two")
        settings = [
            Setting("SQLite, one node", [await world("sqlite", server=False)]),
            Setting("PostgreSQL, one node", [await world("one")]),
            Setting("PostgreSQL, two nodes", [first, await stack.enter_async_context(first.node())]),
        ]
        for one in settings:
            await one.prepare()
            await one.round(payments)
        for one in settings:
            one.costs.clear()
        for _ in range(rounds):
            for one in settings:
                await one.round(payments)
        medians = [statistics.median(one.costs) for one in settings]
        rows = []
        for one, cost in zip(settings, medians, strict=True):
            count, projected = await one.projection()
            rows.append([one.name, f"{cost:.1f}", f"{cost / medians[0]:.2f}", f"{cost / medians[1]:.2f}"])
            rows[-1] += [str(count), f"{projected:.0f}"]
        heads = ["", "CPU ms a payment", "/ SQLite", "/ one node", "events", "CPU us a projected event"]
        sys.stdout.write(table(heads, rows))


@click.command()
@click.option("--payments", default=80, show_default=True, help="Payments of a round.")
@click.option("--rounds", default=10, show_default=True, help="Rounds of each setting, in turns.")
def main(payments: int, rounds: int) -> None:
    """Measure and print."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(40))
    asyncio.run(run(payments, rounds))


if __name__ == "__main__":
    main()
