"""A proxy between a service and its node, with faults over HTTP and WebSocket."""

import asyncio
import contextlib
import re
from collections.abc import AsyncIterator

import httpx
from websockets.asyncio.client import ClientConnection, connect
from websockets.asyncio.server import ServerConnection, serve
from websockets.exceptions import ConnectionClosed, WebSocketException

from tests.support.faults import Faults, Reply
from tests.support.version1 import Version1

_LOCALHOST = "127.0.0.1"
_SOCKET_FAULTS = ("dropped", "repeated", "reordered", "spoilt", "delayed", "closed", "reset")
_LENGTH = re.compile(rb"(?i)\r\ncontent-length: *(\d+)")


@contextlib.asynccontextmanager
async def fault_proxy(
    faults: Faults, port: int, node_port: int, version_1: Version1 | None = None
) -> AsyncIterator[None]:
    """Serve JSON-RPC on `port` and WebSocket on the next one, for a node with the same arrangement of ports.

    Transactions that were added to `version_1` are shown as transactions of version 1.
    """
    async with httpx.AsyncClient(base_url=f"http://{_LOCALHOST}:{node_port}", timeout=30) as client:
        http = _HttpProxy(faults, client, version_1)
        sockets = _SocketProxy(faults, f"ws://{_LOCALHOST}:{node_port + 1}", version_1)
        server = await asyncio.start_server(http.serve, _LOCALHOST, port)
        async with server, serve(sockets.serve, _LOCALHOST, port + 1):
            yield
        await http.aclose()


class _HttpProxy:
    """Answers POST requests. Connections stay open until a fault breaks them."""

    def __init__(self, faults: Faults, client: httpx.AsyncClient, version_1: Version1 | None) -> None:
        self._faults = faults
        self._version_1 = version_1
        self._client = client
        self._tasks: set[asyncio.Task[None]] = set()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError, httpx.HTTPError):
                while await self._exchange(reader, writer):
                    pass
        except asyncio.CancelledError:
            pass  # the proxy closes; asyncio would report a cancelled handler as an error
        finally:
            self._tasks.discard(task)
            writer.transport.abort()

    async def _exchange(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """Answer one request. Return True if the connection stays open."""
        head = await reader.readuntil(b"\r\n\r\n")
        length = _LENGTH.search(head)
        assert length is not None, head
        # A request that has arrived is passed on even if its sender is killed at that moment.
        reply = await self._faults.answer(await reader.readexactly(int(length[1])), self._forward)
        await self._send(writer, reply)
        return reply.sent is None

    async def _send(self, writer: asyncio.StreamWriter, reply: Reply) -> None:
        if reply.sent != 0:
            head = f"HTTP/1.1 {reply.status} -\r\nContent-Type: application/json\r\nContent-Length: {len(reply.body)}"
            writer.write(head.encode() + b"\r\n\r\n" + reply.body[: reply.sent])
            await writer.drain()

    async def _forward(self, body: bytes) -> bytes:
        return await (self._post(body) if self._version_1 is None else self._version_1.answer(body, self._post))

    async def _post(self, body: bytes) -> bytes:
        answered = await self._client.post("/", content=body, headers={"Content-Type": "application/json"})
        answered.raise_for_status()
        return answered.content

    async def aclose(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


class _SocketProxy:
    """Passes WebSocket messages both ways. Drops, repeats, reorders, spoils or delays the node's, or disconnects."""

    def __init__(self, faults: Faults, url: str, version_1: Version1 | None) -> None:
        self._faults = faults
        self._version_1 = version_1
        self._url = url

    async def serve(self, caller: ServerConnection) -> None:
        with contextlib.suppress(OSError, WebSocketException):
            async with connect(self._url) as node:
                pumps = [asyncio.create_task(self._ask(caller, node)), asyncio.create_task(self._notify(node, caller))]
                try:
                    await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
                finally:
                    for pump in pumps:
                        pump.cancel()
                    await asyncio.gather(*pumps, return_exceptions=True)

    async def _ask(self, caller: ServerConnection, node: ClientConnection) -> None:
        async for message in caller:
            await node.send(self._version_1.hide(message) if self._version_1 and isinstance(message, str) else message)

    async def _notify(self, node: ClientConnection, caller: ServerConnection) -> None:
        faults = self._faults
        held: list[str | bytes] = []
        with contextlib.suppress(ConnectionClosed):
            async for told in node:
                message = self._version_1.show(told) if self._version_1 and isinstance(told, str) else told
                if not faults.strikes():
                    for one in (message, *held):
                        await caller.send(one)
                    held = []
                    continue
                kind = faults.random.choice(_SOCKET_FAULTS)
                faults.counts[f"notification {kind}"] += 1
                match kind:
                    case "repeated":
                        await caller.send(message)
                        await caller.send(message)
                    case "reordered":
                        held.append(message)
                    case "spoilt":
                        await caller.send(message[: faults.random.randrange(len(message))])
                    case "delayed":
                        await asyncio.sleep(faults.longest * faults.random.random() ** 3)
                        await caller.send(message)
                    case "closed":
                        await caller.close(1011)
                        return
                    case "reset":
                        caller.transport.abort()
                        return
