"""Measures reads over HTTP at a fixed rate, with many and with few stored transactions: latencies and their ratio.

By hand: `python -m tests.bench.reads [--fill N] [--seconds N]`. Two services run in separate processes, each with the
embedded chain in a temporary folder. One is filled with payments over HTTP, the other has only the objects that are
read. They take turns, so that both run under the same conditions.

Requests start on schedule, 300 a second spread over four API keys, even if earlier ones are still unanswered. A latency
counts from the time at which the request was due.
"""

import asyncio
import itertools
import random
import sys
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self

import click
import httpx

from tests.bench.clients import MOST_CLIENTS, VAULTS, Payers
from tests.bench.load import measure, percentile
from tests.bench.serving import Served, serving
from tests.bench.tables import table

RATE = 300
KEYS = 4
_ROUNDS = 3
_WARM_UP = 200
_ESCROWS = 20
_FINAL = 20.0
"""Seconds until everything is final on the embedded chain and marked so, which is work of writes, not of reads."""
_SAMPLE = 200
"""Transactions to read, drawn from the whole history."""


@dataclass(slots=True)
class Reads:
    """Latencies of one kind of reads on one service, in seconds."""

    latencies: list[float] = field(default_factory=list)

    def percentile(self, percent: float) -> float:
        """Return the milliseconds within which this percentage was answered."""
        return percentile(sorted(self.latencies), percent)


class Readers:
    """Four API keys, and the paths that they read: single objects and lists."""

    def __init__(self, served: Served) -> None:
        self._served = served
        self._stack = AsyncExitStack()
        self._clients: list[httpx.AsyncClient] = []
        self.objects: list[str] = []
        self.lists: list[str] = []

    async def __aenter__(self) -> Self:
        admin = await self._client(self._served.key)
        for number in range(KEYS):
            made = await admin.post("/v1/keys", json={"role": "viewer", "name": f"reader {number}"})
            self._clients.append(await self._client(made.raise_for_status().json()["key"]))
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self._stack.aclose()

    async def find_paths(self) -> None:
        """Choose the paths: every kind of object and list, from early and late in the history."""
        wallets = await self._ids("/v1/wallets?limit=100", "wallet_id")
        policies = await self._ids("/v1/policies", "policy_id")
        escrows = await self._ids("/v1/payments/a2a?limit=100", "escrow_id")
        transactions, cursors = await self._history()
        self.objects = [
            *(f"/v1/wallets/{one}" for one in wallets),
            *(f"/v1/policies/{one}" for one in policies),
            *(f"/v1/payments/a2a/{one}" for one in escrows),
            *(f"/v1/transactions/{one}" for one in transactions[::2]),
            *(f"/v1/payments/{one}" for one in transactions[1::2]),
        ]
        self.lists = [
            "/v1/wallets",
            "/v1/wallets?status=active&limit=100",
            "/v1/policies",
            "/v1/payments/a2a",
            f"/v1/payments/a2a?walletId={wallets[0]}&status=locked",
            "/v1/events",
            "/v1/events?type=transaction.completed",
            f"/v1/events?walletId={wallets[0]}&severity=info",
            "/v1/transactions",
            "/v1/transactions?limit=100",
            "/v1/transactions?type=funding",
            "/v1/transactions?status=blocked",
            "/v1/transactions?status=confirmed&type=payment",
            *(f"/v1/transactions?cursor={one}" for one in cursors),
            *(f"/v1/wallets/{one}/transactions" for one in wallets),
            *(f"/v1/wallets/{one}/transactions?type=payment&status=confirmed" for one in wallets),
        ]

    async def read(self, kinds: Sequence[tuple[Reads, Sequence[str]]], *, seconds: float) -> None:
        """Read paths of these kinds in turn for some seconds, at the fixed rate."""
        choice = random.Random(1)
        turns, clients = itertools.cycle(kinds), itertools.cycle(self._clients)
        start = time.perf_counter() + 0.05
        async with asyncio.TaskGroup() as group:
            for number in range(int(seconds * RATE)):
                due = start + number / RATE
                await asyncio.sleep(max(0.0, due - time.perf_counter()))
                reads, paths = next(turns)
                group.create_task(self._one(next(clients), choice.choice(paths), due, reads))

    async def _one(self, client: httpx.AsyncClient, path: str, due: float, reads: Reads) -> None:
        response = await client.get(path)
        reads.latencies.append(time.perf_counter() - due)
        if response.status_code != 200:
            raise RuntimeError(f"{path} answered {response.status_code}: {response.text}")

    async def _client(self, key: str) -> httpx.AsyncClient:
        headers = {"Authorization": f"Bearer {key}"}
        client = httpx.AsyncClient(base_url=self._served.api, headers=headers, timeout=30)
        return await self._stack.enter_async_context(client)

    async def _get(self, path: str) -> Any:
        return (await self._clients[0].get(path)).raise_for_status().json()

    async def _ids(self, path: str, name: str) -> list[str]:
        return [one[name] for one in (await self._get(path))["data"]]

    async def _history(self) -> tuple[list[str], list[str]]:
        """Return ids of transactions from the whole history, and cursors into it."""
        found, cursors, cursor = [], [], ""
        while cursor is not None:
            page = await self._get(f"/v1/transactions?limit=100&cursor={cursor}" if cursor else "/v1/transactions")
            found += [one["tx_id"] for one in page["data"]]
            cursor = page["next_cursor"]
            cursors += [cursor] if cursor else []
        choice = random.Random(1)
        return choice.sample(found, min(_SAMPLE, len(found))), choice.sample(cursors, min(20, len(cursors)))


async def _prepare(payers: Payers, *, payments: int, served: Served) -> None:
    """Create what every service has, and make this many payments."""
    for number in range(_ESCROWS):
        await payers.lock(number % VAULTS)
    await measure(served, payers.pay, clients=MOST_CLIENTS, count=max(payments, _WARM_UP))


async def run(empty: Served, filled: Served, *, fill: int, seconds: float) -> None:
    """Fill one service, read both in turns, and print the table."""
    names = {"few": empty, "many": filled}
    found: dict[tuple[str, str], Reads] = {}
    async with AsyncExitStack() as stack:
        readers = {}
        for name, served in names.items():
            payers = await stack.enter_async_context(Payers(served))
            await _prepare(payers, payments=fill if name == "many" else 0, served=served)
            readers[name] = await stack.enter_async_context(Readers(served))
            await readers[name].find_paths()
        await asyncio.sleep(_FINAL)
        for round_ in range(_ROUNDS + 1):
            for name, one in readers.items():
                for title, kinds in _mixes(one):
                    results = [(found.setdefault((name, f"{title}: {kind}"), Reads()), paths) for kind, paths in kinds]
                    await one.read(results, seconds=seconds if round_ else 1)
            if not round_:
                found.clear()
    rows = []
    for title in [title for name, title in found if name == "few"]:
        few, many = found["few", title], found["many", title]
        cells = [f"{one.percentile(percent):.1f}" for one in (few, many) for percent in (50, 99)]
        rows.append([title, *cells, f"{many.percentile(99) / few.percentile(99):.2f}", str(len(many.latencies))])
    heads = ["", "few: p50 ms", "p99 ms", f"{fill} more: p50 ms", "p99 ms", "p99 ratio", "reads"]
    sys.stdout.write(table(heads, rows))


def _mixes(readers: Readers) -> list[tuple[str, list[tuple[str, list[str]]]]]:
    objects, lists = ("objects", readers.objects), ("lists", readers.lists)
    return [("alone", [objects]), ("alone", [lists]), ("both", [objects, lists])]


@click.command()
@click.option("--fill", default=100_000, show_default=True, help="Payments that the filled service has made.")
@click.option("--seconds", default=10.0, show_default=True, help="Length of each turn.")
def main(fill: int, seconds: float) -> None:
    """Measure and print."""
    with serving() as empty, serving() as filled:
        asyncio.run(run(empty, filled, fill=fill, seconds=seconds))


if __name__ == "__main__":
    main()
