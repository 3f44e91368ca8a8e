"""Runs clients that each do one thing after the other, and measures their speed."""

import asyncio
import math
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from tests.bench.serving import Served


@dataclass(frozen=True, slots=True)
class Measured:
    """The result of a number of clients. Latencies are in seconds, in ascending order."""

    clients: int
    seconds: float
    latencies: list[float]
    serve_cpu: float

    @property
    def rate(self) -> float:
        """Number done per second."""
        return len(self.latencies) / self.seconds

    def percentile(self, percent: float) -> float:
        """Return the milliseconds within which this percentage was done."""
        return percentile(self.latencies, percent)

    @property
    def cpu(self) -> float:
        """Milliseconds of processor time that `serve` used for each."""
        return self.serve_cpu / len(self.latencies) * 1000

    def cells(self) -> list[str]:
        """Return the columns clients, rate, p50, p99 and processor time."""
        numbers = (self.percentile(50), self.percentile(99), self.cpu)
        return [str(self.clients), f"{self.rate:.0f}", *(f"{number:.1f}" for number in numbers)]


def percentile(rising: list[float], percent: float) -> float:
    """Return the percentile (nearest rank) of ascending seconds, in milliseconds."""
    rank = max(1, math.ceil(len(rising) * percent / 100))
    return rising[rank - 1] * 1000


HEADS = ("clients", "a second", "p50 ms", "p99 ms", "CPU ms of serve")
"""Headers of the columns of `Measured.cells`."""


async def measure(
    served: Served, one: Callable[[int, int], Awaitable[None]], *, clients: int, count: int, first: int = 0
) -> Measured:
    """Let `clients` call `one(client, number)` `count` times in all, each as soon as its last call is done."""
    numbers = iter(range(first, first + count))
    latencies: list[float] = []

    async def work(client: int) -> None:
        for number in numbers:
            began = time.perf_counter()
            await one(client, number)
            latencies.append(time.perf_counter() - began)

    cpu, began = served.cpu_seconds(), time.perf_counter()
    await asyncio.gather(*(work(client) for client in range(clients)))
    seconds = time.perf_counter() - began
    return Measured(clients, seconds, sorted(latencies), served.cpu_seconds() - cpu)
