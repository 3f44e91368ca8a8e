"""Webhook receivers with configurable behaviour, and a dispatcher with its own database and clock."""

import asyncio
import contextlib
import json
import socket
import ssl
import threading
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import pytest
from cryptography.fernet import Fernet
from sqlalchemy import func, select

from app.core.identifiers import random_id
from app.core.outbound import Lookup
from app.core.timestamps import now_ms
from app.database import Database, SqliteDatabase
from app.store.deliveries import DeliveryRecord, deliveries, delivery_of
from app.store.delivery_attempts import attempts_of
from app.store.delivery_attempts import table as attempts
from app.store.feed import FeedEvent, append_event
from app.store.schema import create_tables
from app.store.webhooks import WebhookRecord, insert_webhook, webhook
from app.webhooks._sender import TIMEOUT
from app.webhooks._signing import new_secret
from app.webhooks.delivery_client import DeliveryClient
from app.webhooks.dispatcher import Dispatcher
from app.webhooks.urls import UrlRules

MINUTE = 60_000
_COUNT = select(func.count()).select_from(attempts)
_KEY = b"MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY="


@dataclass(frozen=True, slots=True)
class Received:
    """One request as the receiver got it: its first line, headers and body."""

    line: str
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.body)
        return found


Behaviour = Callable[[Received, asyncio.StreamWriter], Awaitable[None]]


def answer(status: str, body: bytes = b"", extra: str = "") -> Behaviour:
    async def behave(_request: Received, writer: asyncio.StreamWriter) -> None:
        writer.write(f"HTTP/1.1 {status}\r\nContent-Length: {len(body)}\r\n{extra}\r\n".encode() + body)

    return behave


ok = answer("200 OK", b"thanks")
broken = answer("500 Internal Server Error", b"sorry")


async def hang(_request: Received, _writer: asyncio.StreamWriter) -> None:
    await asyncio.Event().wait()


async def reset(_request: Received, writer: asyncio.StreamWriter) -> None:
    transport = writer.transport
    transport.abort()


async def endless(_request: Received, writer: asyncio.StreamWriter) -> None:
    """Answer with status 200 and a body that never ends."""
    writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
    with contextlib.suppress(ConnectionError):
        while True:
            writer.write(b"more and more " * 1000)
            await writer.drain()


async def dripping(_request: Received, writer: asyncio.StreamWriter) -> None:
    """Send header lines without end, one every 10 milliseconds."""
    writer.write(b"HTTP/1.1 200 OK\r\n")
    with contextlib.suppress(ConnectionError):
        while True:
            writer.write(b"X-More: yes\r\n")
            await writer.drain()
            await asyncio.sleep(0.01)


class Slow:
    """A receiver that acknowledges no request until a test releases it."""

    def __init__(self) -> None:
        self.arrived, self.release = asyncio.Event(), asyncio.Event()

    async def __call__(self, request: Received, writer: asyncio.StreamWriter) -> None:
        self.arrived.set()
        await self.release.wait()
        await ok(request, writer)


class Receiver:
    """A real HTTP or, with `tls`, HTTPS server. `behave` answers each request, and `received` holds all of them."""

    def __init__(self, behave: Behaviour = ok, *, tls: ssl.SSLContext | None = None) -> None:
        self.behave = behave
        self._tls = tls
        self.received: list[Received] = []
        self.open = self.most_open = 0
        self._handlers: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0, ssl=self._tls)
        self.port = self._server.sockets[0].getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}/hook"
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._server.close()
        for handler in self._handlers:
            handler.cancel()
        await asyncio.gather(*self._handlers, return_exceptions=True)
        await self._server.wait_closed()

    @property
    def events(self) -> list[str]:
        """Ids of the events in the order of their arrival."""
        return [one.headers["webhook-id"] for one in self.received]

    async def wait_for(self, count: int) -> None:
        """Wait until this many requests have arrived."""
        async with asyncio.timeout(30):
            while len(self.received) < count:  # noqa: ASYNC110
                await asyncio.sleep(0.01)

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        handler = asyncio.create_task(self._serve(reader, writer))
        self._handlers.add(handler)
        handler.add_done_callback(self._handlers.discard)
        # A handler that is cancelled before it starts closes nothing, and the server waits for its connections.
        handler.add_done_callback(lambda _done: writer.close())

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.open += 1
        self.most_open = max(self.most_open, self.open)
        try:
            line, *lines = (await reader.readuntil(b"\r\n\r\n")).decode().strip().split("\r\n")
            headers = {name.lower(): value for name, value in (one.split(": ", 1) for one in lines)}
            request = Received(line, headers, await reader.readexactly(int(headers["content-length"])))
            self.received.append(request)
            behaving = asyncio.ensure_future(self.behave(request, writer))
            gone = asyncio.ensure_future(reader.read())
            await asyncio.wait((behaving, gone), return_when=asyncio.FIRST_COMPLETED)
            for task in (behaving, gone):
                task.cancel()
            await asyncio.gather(behaving, gone, return_exceptions=True)
            await writer.drain()
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            self.open -= 1


class SilentNames:
    """Replaces the system's resolver. Lookups under `silent.example.com` fail at `end` or after 30 seconds.

    Names under `here.example.com` resolve to this machine. `parked` counts the lookups under `silent.example.com`.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.parked = 0
        self._end = threading.Event()
        self._resolve = socket.getaddrinfo
        monkeypatch.setattr(socket, "getaddrinfo", self._getaddrinfo)

    def end(self) -> None:
        self._end.set()

    async def wait_for(self, parked: int) -> None:
        async with asyncio.timeout(30):
            while self.parked < parked:  # noqa: ASYNC110
                await asyncio.sleep(0.001)

    def _getaddrinfo(self, host: Any, *arguments: Any, **options: Any) -> Any:
        if str(host).endswith("silent.example.com"):
            self.parked += 1
            self._end.wait(30)
            raise OSError("no such name")
        if str(host).endswith("here.example.com"):
            host = "127.0.0.1"
        return self._resolve(host, *arguments, **options)


class Post:
    """A dispatcher with a clock that stays at `now`, in Unix milliseconds, until a test moves it."""

    def __init__(
        self,
        folder: Path,
        *,
        timeout: float = TIMEOUT,
        at_once: int = 16,
        lookup: Lookup | None = None,
        db: Database | None = None,
    ) -> None:
        self.now = now_ms()
        self.db = db or SqliteDatabase(folder / "post.db", create_tables)
        self.delivery_client = DeliveryClient(
            Fernet(_KEY), UrlRules(local=True), lookups=8, timeout=timeout, lookup=lookup, clock=lambda: self.now
        )
        self.at_once = at_once
        self.dispatcher = Dispatcher(self.db, self.delivery_client, interval=0.01, at_once=at_once)
        self._numbers = 0

    def close(self) -> None:
        self.delivery_client.close()
        self.db.close()

    def register(self, url: str, *, org: str = "org", events: tuple[str, ...] = ("*",)) -> tuple[WebhookRecord, str]:
        """Register a webhook and return it with its secret."""
        secret = new_secret()
        made = WebhookRecord(
            webhook_id=random_id("wh_"),
            org=org,
            url=url,
            events=events,
            status="enabled",
            secret=self.delivery_client.hide(secret),
            old_secret=None,
            old_secret_until=None,
            position=0,
            created_at=self.now,
            updated_at=self.now,
            created_under=None,
            rotated_under=None,
        )
        self.db.write_now(lambda conn: insert_webhook(conn, made))
        return made, secret

    def happen(
        self, count: int = 1, *, org: str = "org", event: str = "wallet.funded", at: int | None = None
    ) -> list[str]:
        """Append events that happened at the Unix millisecond `at`, or now. Return their ids in order."""
        moment = self.now if at is None else at
        ids = [random_id("evt_") for _ in range(count)]

        def append(conn: Any) -> None:
            for one in ids:
                self._numbers += 1
                payload = {"wallet_id": "wal_1", "amount": f"{self._numbers}.00", "timestamp": "2026-05-01T00:00:00Z"}
                append_event(conn, event_id=one, org=org, type=event, timestamp=moment, payload=payload)

        self.db.write_now(append)
        return ids

    def delivery(self, made: WebhookRecord) -> DeliveryRecord:
        """Return a delivery that is not in the webhook's queue."""
        event = FeedEvent(0, random_id("evt_"), made.org, "ping", self.now, None, "info", "", {}, None, None)
        return delivery_of(made, event, "{}", self.now)

    async def drain(self) -> None:
        """Send all deliveries that are due now."""
        made = -1
        while made < (made := self.db.read_now(lambda conn: conn.scalar(_COUNT)) or 0):
            await self.dispatcher.tick()
            await self.dispatcher.idle()

    def shown(self, made: WebhookRecord) -> WebhookRecord:
        found = self.db.read_now(lambda conn: webhook(conn, made.org, made.webhook_id))
        assert found is not None
        return found

    def statuses(self, made: WebhookRecord) -> dict[str, str]:
        """Return the status of each of the webhook's deliveries by the event's id, oldest delivery first."""
        found = self.db.read_now(lambda conn: deliveries(conn, made.webhook_id, limit=1_000_000)).data
        return {one.event_id: one.status for one in reversed(found)}

    def log(self, made: WebhookRecord, event_id: str) -> list[Any]:
        """Return the attempts to deliver an event."""

        def read(conn: Any) -> list[Any]:
            [one] = [one for one in deliveries(conn, made.webhook_id, limit=1000).data if one.event_id == event_id]
            return attempts_of(conn, [one.delivery_id])[one.delivery_id]

        return self.db.read_now(read)
