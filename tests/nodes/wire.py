"""The network between a node and its database, which can hang: nothing arrives, and no connection ends."""

import asyncio
import contextlib
import threading
from pathlib import Path
from types import TracebackType
from typing import Self

from sqlalchemy import make_url

from tests.support.postgres import Cluster


class Wire:
    """Passes TCP connections on to a server's Unix socket, in a thread of its own: some callers block theirs."""

    def __init__(self, cluster: Cluster) -> None:
        self._socket: Path = cluster.folder / ".s.PGSQL.5432"
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="wire", daemon=True)
        self._open: list[asyncio.Event] = []
        self._passes = True
        self._tasks: set[asyncio.Task[None]] = set()

    def __enter__(self) -> Self:
        self._thread.start()
        listening = asyncio.run_coroutine_threadsafe(asyncio.start_server(self._accept, "127.0.0.1", 0), self._loop)
        self._server = listening.result(10)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        asyncio.run_coroutine_threadsafe(self._close(), self._loop).result(10)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()

    def url(self, database: str) -> str:
        """Return a database's address through the wire."""
        given = make_url(database)
        return f"postgresql://{given.username}@127.0.0.1:{self.port}/{given.database}"

    def hang(self, *, new: bool = True) -> None:
        """Pass nothing on any more, on connections that are made from now on neither, unless `new` is false."""
        self._loop.call_soon_threadsafe(self._set, False, not new)

    def mend(self) -> None:
        """Pass everything on, also what has waited."""
        self._loop.call_soon_threadsafe(self._set, True, True)

    def _set(self, passes: bool, new: bool) -> None:
        self._passes = new
        for gate in self._open:
            gate.set() if passes else gate.clear()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        gate = asyncio.Event()
        if self._passes:
            gate.set()
        self._open.append(gate)
        server, to_server = await asyncio.open_unix_connection(self._socket)
        pumps = [
            asyncio.create_task(self._pump(source, target, gate))
            for source, target in ((reader, to_server), (server, writer))
        ]
        self._tasks |= set(pumps)
        await asyncio.gather(*pumps, return_exceptions=True)
        self._tasks -= set(pumps)
        for one in (to_server, writer):
            one.transport.abort()
        # The transport closes its socket in the next turn of the loop.
        await asyncio.sleep(0)

    async def _pump(self, source: asyncio.StreamReader, target: asyncio.StreamWriter, gate: asyncio.Event) -> None:
        with contextlib.suppress(ConnectionError):
            while data := await source.read(65_536):
                await gate.wait()
                target.write(data)
                await target.drain()
        # An end does not arrive either while the wire hangs.
        await gate.wait()
        target.close()

    async def _close(self) -> None:
        self._server.close()
        for task in list(self._tasks):
            task.cancel()
        # Once the connections are closed, too.
        await asyncio.gather(*(asyncio.all_tasks() - {asyncio.current_task()}), return_exceptions=True)
