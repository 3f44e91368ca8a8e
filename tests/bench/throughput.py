"""Compares payments over HTTP with plain transfers: rates, latencies, processor time and memory.

By hand: `python -m tests.bench.throughput [--payments N] [--fill N] [--rounds N]`. `serve` runs in a separate process
with the embedded chain in a temporary folder; all clients run in this process and reach it over sockets.

- A payment is a `POST /v1/payments` with a session token and an idempotency key, from one of 20 vaults in turn. It is
  done when the answer says `confirmed`: it is on the chain's disk and in the read models.
- A plain transfer is one TransferChecked, sent by solana-py's `send_raw_transaction` (with preflight, its default) to
  the chain's JSON-RPC and signed by the owner of one of 20 token accounts in turn. `sent` is done when the node has
  answered, `confirmed` when `confirm_transaction` has seen the confirmation. By default that method polls every half
  second. A program that wants throughput polls more often, so the ratio is to transfers that poll every 10 ms.

The clients of both use httpx. Payments and transfers take turns, `--rounds` times, and each row sums up its rounds.
"""

import asyncio
import sys
from collections.abc import Awaitable, Callable
from functools import partial

import click

from tests.bench.clients import Payers, Senders
from tests.bench.load import HEADS, Measured, measure
from tests.bench.serving import Served, serving
from tests.bench.tables import table

CLIENTS = (1, 8, 32)
_PAUSE = 0.01
_DEFAULT_PAUSE = 0.5
_LOOKS = 10
"""Transfers for each client that polls every half second."""
_WALLETS = 100
_WARM_UP = 200
_TURNS = 8

Doing = Callable[[int, int], Awaitable[None]]


def together(parts: list[Measured]) -> Measured:
    """Return several rounds of the same measurement as one."""
    latencies = sorted(latency for part in parts for latency in part.latencies)
    seconds, cpu = (sum(values) for values in zip(*((part.seconds, part.serve_cpu) for part in parts), strict=True))
    return Measured(parts[0].clients, seconds, latencies, cpu)


async def compare(served: Served, payers: Payers, senders: Senders, *, payments: int, rounds: int) -> str:
    """Measure everything with every number of clients, and return a table."""
    rows: list[list[str]] = []
    for clients in CLIENTS:
        count = max(clients, payments * clients // CLIENTS[-1] // rounds, 100)
        kinds: dict[str, tuple[Doing, int]] = {
            "payment": (payers.pay, count),
            "transfer, confirmed": (partial(senders.send_and_confirm, pause=_PAUSE), count),
            "transfer, sent": (senders.send, count),
        }
        parts: dict[str, list[Measured]] = {name: [] for name in kinds}
        for _ in range(rounds):
            for name, (one, times) in kinds.items():
                parts[name].append(await measure(served, one, clients=clients, count=times))
        patient = partial(senders.send_and_confirm, pause=_DEFAULT_PAUSE)
        last = await measure(served, patient, clients=clients, count=clients * _LOOKS)
        found = {name: together(several) for name, several in parts.items()}
        found["transfer, confirmed, polls every 0.5 s"] = last
        paid = found["payment"]
        rows += [[name, *one.cells(), f"{paid.rate / one.rate:.2f}"] for name, one in found.items()]
    return table(["", *HEADS, "payments / this"], rows)


async def wallets(served: Served, payers: Payers) -> str:
    """Measure the creation of wallets, and return a table."""
    found = [await measure(served, payers.create, clients=clients, count=_WALLETS) for clients in (1, 8)]
    return table(["", *HEADS], [["wallet creation", *one.cells()] for one in found])


async def age(served: Served, payers: Payers, *, payments: int) -> str:
    """Compare the filled service with a fresh one in many short turns, and return a table.

    Filling takes minutes, in which the load of a shared machine changes too much for a direct comparison.
    """
    parts: dict[str, list[Measured]] = {"fresh": [], "filled": []}
    with serving() as fresh:
        async with Payers(fresh) as newcomers:
            await measure(fresh, newcomers.pay, clients=8, count=_WARM_UP)
            for _ in range(_TURNS):
                for name, one, by in (("fresh", fresh, newcomers), ("filled", served, payers)):
                    parts[name].append(
                        await measure(one, by.pay, clients=CLIENTS[-1], count=max(payments // _TURNS, 50))
                    )
    found = {name: together(several) for name, several in parts.items()}
    first = found["fresh"]
    rows = [[f"payment, {name}", *one.cells(), f"{one.rate / first.rate:.2f}"] for name, one in found.items()]
    return table(["in turns", *HEADS, "rate / fresh"], rows)


def _say(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()


async def run(served: Served, *, payments: int, fill: int, rounds: int) -> None:
    """Measure, fill the chain, measure again."""
    async with Payers(served) as payers, Senders(served, payers) as senders:
        await measure(served, payers.pay, clients=8, count=_WARM_UP)
        await measure(served, senders.send, clients=8, count=_WARM_UP)
        _say(f"### Fresh chain, {served.resident_megabytes():.0f} MB resident\n\n")
        report = await compare(served, payers, senders, payments=payments, rounds=rounds)
        _say(report + await wallets(served, payers))
        if not fill:
            return
        filled = await measure(served, payers.pay, clients=CLIENTS[-1], count=fill)
        _say(f"Filled with {fill} payments over HTTP, {filled.rate:.0f} a second, {filled.cpu:.1f} ms of CPU each.\n\n")
        _say(f"### After {fill} transactions, {served.resident_megabytes():.0f} MB resident\n\n")
        report = await compare(served, payers, senders, payments=payments, rounds=rounds)
        _say(report + await wallets(served, payers))
        _say(await age(served, payers, payments=payments))
        _say(f"{served.resident_megabytes():.0f} MB resident at the end.\n")


@click.command()
@click.option("--payments", default=3000, show_default=True, help="Payments of 32 clients; fewer clients make fewer.")
@click.option("--fill", default=50_000, show_default=True, help="Payments between the two measurements.")
@click.option("--rounds", default=3, show_default=True, help="Turns of payments and transfers.")
def main(payments: int, fill: int, rounds: int) -> None:
    """Measure and print."""
    with serving() as served:
        asyncio.run(run(served, payments=payments, fill=fill, rounds=rounds))


if __name__ == "__main__":
    main()
