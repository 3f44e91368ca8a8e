"""Measures the indexer: the delay from a confirmation to its row, and events a second in a backfill.

By hand: `python -m tests.bench.indexer [--payments N]`. `serve` runs in a separate process with the embedded chain in a
temporary folder; the clients run in this process and reach it over sockets.

- Delay: while clients pay, a third process learns of confirmations from the chain's WebSocket, and polls the databases
  of `serve` every 2 ms for the rows: the event in the indexer's, and its projection in the service's.
- Backfill: an indexer with an empty database reads the whole chain over a socket, while `serve` only answers it. Its
  time runs from the first request to the last row: fetched, decoded and stored.
"""

import asyncio
import sys
import tempfile
import time
from pathlib import Path

import click

from app.chain.transport import HttpTransport
from idl.codec import load
from indexer import Indexer
from tests.bench.clients import Payers
from tests.bench.load import measure, percentile
from tests.bench.row_watcher import watching
from tests.bench.serving import Served, serving
from tests.bench.tables import table

_WARM_UP = 200
_RUNS = 3


async def delays(served: Served, payers: Payers, *, clients: int, count: int) -> list[list[str]]:
    """Measure the delays under a load of payments, and return the rows of a table."""
    with watching(served) as watcher:
        paid = await measure(served, payers.pay, clients=clients, count=count)
    rows = []
    for name, found in (("event stored", watcher.events), ("in the read models", watcher.read_models)):
        if len(found) < count:
            raise RuntimeError(f"{name}: only {len(found)} of {count} were seen")
        times = [f"{percentile(found, percent):.0f}" for percent in (50, 99, 100)]
        rows.append([name, str(clients), f"{paid.rate:.0f}", *times])
    return rows


async def backfill(served: Served) -> list[str]:
    """Index everything into an empty database, and return the row of a table."""
    with tempfile.TemporaryDirectory() as folder:
        transport = HttpTransport(served.rpc)
        indexer = Indexer(transport=transport, codec=load(), db_path=Path(folder) / "chain.db")
        try:
            cpu, own, began = served.cpu_seconds(), time.process_time(), time.perf_counter()
            await indexer.catch_up()
            seconds = time.perf_counter() - began
            events = indexer.store.count_events()
            each = [spent / events * 1e6 for spent in (time.process_time() - own, served.cpu_seconds() - cpu)]
            return [str(events), f"{seconds:.2f}", f"{events / seconds:.0f}", *(f"{one:.0f}" for one in each)]
        finally:
            await indexer.stop()
            await transport.aclose()


async def run(served: Served, payments: int) -> None:
    """Measure and print."""
    async with Payers(served) as payers:
        await measure(served, payers.pay, clients=8, count=_WARM_UP)
        rows = []
        for clients in (8, 32):
            rows += await delays(served, payers, clients=clients, count=payments // 2)
    heads = ["after the confirmation", "clients", "payments a second", "p50 ms", "p99 ms", "most ms"]
    sys.stdout.write(table(heads, rows))
    heads = ["events", "seconds", "events a second", "CPU us of the indexer", "CPU us of the chain"]
    sys.stdout.write(table(heads, [await backfill(served) for _ in range(_RUNS)]))


@click.command()
@click.option("--payments", default=6000, show_default=True, help="Payments to follow and then to read again.")
def main(payments: int) -> None:
    """Measure and print."""
    with serving() as served:
        asyncio.run(run(served, payments))


if __name__ == "__main__":
    main()
