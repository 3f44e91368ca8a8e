"""Watches from a separate process when transactions are confirmed and when their rows appear."""

import asyncio
import contextlib
import json
import multiprocessing
import sqlite3
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from websockets.asyncio.client import ClientConnection, connect

from idl.codec import load
from tests.bench.serving import Served

_LOOK_SECONDS = 0.002
_LINGER_SECONDS = 1.0
_EVENTS = "SELECT id, signature FROM chain_events WHERE id > ? AND name = 'PaymentExecuted' ORDER BY id"
_READ_MODELS = (
    "SELECT position, signature FROM feed WHERE position > ? AND type = 'transaction.completed' ORDER BY position"
)

Times = dict[str, float]


@dataclass
class Watcher:
    """Delays in seconds from confirmation to row, in ascending order; set when the watching ends."""

    events: list[float] = field(default_factory=list)
    read_models: list[float] = field(default_factory=list)


@contextlib.contextmanager
def watching(served: Served) -> Iterator[Watcher]:
    """Watch while the context lasts."""
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    process = context.Process(target=_main, args=(there, served.ws, served.data))
    process.start()
    here.recv()
    watcher = Watcher()
    try:
        yield watcher
        here.send("stop")
        watcher.events, watcher.read_models = here.recv()
    finally:
        process.terminate()
        process.join()


def _main(parent: Connection, ws_url: str, data: Path) -> None:
    asyncio.run(_watch(parent, ws_url, data))


async def _watch(parent: Connection, ws_url: str, data: Path) -> None:
    confirmed: Times = {}
    events: Times = {}
    read_models: Times = {}
    async with connect(ws_url) as socket:
        options: list[Any] = [{"mentions": [str(load().program_id)]}, {"commitment": "confirmed"}]
        request = {"jsonrpc": "2.0", "id": 1, "method": "logsSubscribe", "params": options}
        await socket.send(json.dumps(request))
        await socket.recv()
        listening = asyncio.create_task(_listen(socket, confirmed))
        looking = [
            asyncio.create_task(_look(data / "chain.db", _EVENTS, events)),
            asyncio.create_task(_look(data / "agent-vault.db", _READ_MODELS, read_models)),
        ]
        parent.send("ready")
        await asyncio.to_thread(parent.recv)
        await asyncio.sleep(_LINGER_SECONDS)
        for task in (listening, *looking):
            task.cancel()
        await asyncio.gather(listening, *looking, return_exceptions=True)
    parent.send([_delays(confirmed, events), _delays(confirmed, read_models)])


async def _listen(socket: ClientConnection, confirmed: Times) -> None:
    async for message in socket:
        moment = time.perf_counter()
        confirmed[json.loads(message)["params"]["result"]["value"]["signature"]] = moment


async def _look(path: Path, query: str, seen: Times) -> None:
    with contextlib.closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as database:
        rows = database.execute(query, [0]).fetchall()
        last = rows[-1][0] if rows else 0
        while True:
            rows = database.execute(query, [last]).fetchall()
            moment = time.perf_counter()
            for number, signature in rows:
                last, seen[signature] = number, moment
            await asyncio.sleep(_LOOK_SECONDS)


def _delays(confirmed: Times, rows: Times) -> list[float]:
    # A row can be seen slightly before the notification of its transaction arrives.
    return sorted(
        max(0.0, moment - confirmed[signature]) for signature, moment in rows.items() if signature in confirmed
    )
