"""What 50,000 transactions do to the speed: an aged service and a fresh one, measured in turns.

By hand: `python -m tests.bench.aging [--fill N]`. Other work on the machine slows both alike, so their ratio holds.
"""

import asyncio
import statistics
import sys
from collections.abc import Awaitable, Callable
from functools import partial

import click

from tests.bench.clients import Payers, Senders
from tests.bench.load import Measured, measure
from tests.bench.serving import Served, serving
from tests.bench.tables import table

_CLIENTS = 32
_ROUNDS = 8
_ROUND = 400
_WARM_UP = 400
_LOOK = 0.01
"""Seconds between two looks at a transfer's status."""


@click.command()
@click.option("--fill", default=50_000, show_default=True, help="Payments that age the first service.")
def main(fill: int) -> None:
    """Print a table of the aged service beside the fresh one."""
    with serving() as aged, serving() as fresh:
        sys.stdout.write(asyncio.run(_compare(aged, fresh, fill)))
        megabytes = aged.resident_megabytes(), fresh.resident_megabytes()
    sys.stdout.write("Resident: {:.0f} MB aged, {:.0f} MB fresh.\n".format(*megabytes))


async def _compare(aged: Served, fresh: Served, fill: int) -> str:
    async with Payers(aged) as old, Senders(aged, old) as old_transfers:
        await measure(aged, old.pay, clients=_CLIENTS, count=fill)
        async with Payers(fresh) as new, Senders(fresh, new) as new_transfers:
            await measure(fresh, new.pay, clients=_CLIENTS, count=_WARM_UP)
            works: dict[str, tuple[Callable[..., Awaitable[None]], Callable[..., Awaitable[None]]]] = {
                "payment": (old.pay, new.pay),
                "transfer, confirmed": (
                    partial(old_transfers.send_and_confirm, pause=_LOOK),
                    partial(new_transfers.send_and_confirm, pause=_LOOK),
                ),
            }
            rates: dict[str, list[list[Measured]]] = {name: [[], []] for name in works}
            for _ in range(_ROUNDS):
                for name, work in works.items():
                    for service, one, loads in zip((aged, fresh), work, rates[name], strict=True):
                        loads.append(await measure(service, one, clients=_CLIENTS, count=_ROUND))
    rows = []
    for name, (before, after) in ((name, (loads[1], loads[0])) for name, loads in rates.items()):
        rate = [statistics.median(load.rate for load in loads) for loads in (after, before)]
        cpu = [statistics.median(load.cpu for load in loads) for loads in (after, before)]
        rows.append([name, *(f"{one:.0f}" for one in rate), f"{rate[0] / rate[1]:.2f}", f"{cpu[0] / cpu[1]:.2f}"])
    heads = [
        f"{_CLIENTS} clients, {fill} payments",
        "aged, a second",
        "fresh, a second",
        "aged / fresh",
        "CPU aged / fresh",
    ]
    return table(heads, rows)


if __name__ == "__main__":
    main()
