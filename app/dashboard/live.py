"""Live events: sends an organisation's new events and changes to each of its open pages."""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import anyio
import structlog
from sqlalchemy import Connection
from sse_starlette import EventSourceResponse
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from app.access.auth import READERS
from app.core.actors import Actor
from app.core.errors import RequestError, UnavailableError
from app.core.timestamps import now_ms
from app.dashboard.pages import View, page
from app.dashboard.progress import total
from app.database.interface import Database
from app.people.sessions import digest, still_signed_in
from app.store.audit import log_lengths
from app.store.feed import FeedEvent, feed_after, last_position
from app.store.wallets import orgs_of_vaults

_log = structlog.get_logger(__name__)

#: Seconds between two reads of the feed while a page is open, and between two session checks without events.
INTERVAL, PATIENCE = 0.25, 15.0
#: Maximum number of messages queued for a page. A slow page misses further messages until its next refresh.
_MAX_BEHIND = 100
_BATCH = 500
#: Maximum number of pages that may be open on one node.
_OF_ALL = 1_000
#: Seconds for streams to end when the service stops.
_GRACE = 2.0


@dataclass(frozen=True, slots=True)
class Message:
    """A message to an organisation's open pages: an event, or a hint that something else has changed."""

    #: The `total` of the organisation's `Progress` once this message is counted.
    reached: int
    event: FeedEvent | None = None


@dataclass(frozen=True, slots=True)
class FeedSnapshot:
    """The state of the feed and the audit logs, read in one transaction."""

    events: list[FeedEvent]
    #: The feed's position after these events.
    position: int
    #: Organisations with a vault that has changed on the chain.
    moved: set[str]
    #: Lengths of the organisations' audit logs.
    lengths: dict[str, int]


#: A page's queue. The first item is the `total` of the organisation's `Progress` when the queue starts. Messages
#: follow.
Queue = asyncio.Queue[Message | int]


@dataclass(eq=False, slots=True)
class OpenPage:
    """An open page: its organisation, actor and session, and its queue of messages."""

    org: str
    actor: Actor
    #: Digest of the session's cookie.
    digest: str
    queue: Queue = field(default_factory=lambda: Queue(_MAX_BEHIND))
    #: Set once the session has ended, or the service stops.
    stopping: anyio.Event = field(default_factory=anyio.Event)


class FeedHub:
    """Reads new events once for all open pages, and only while pages are open.

    The hub also sends a hint without an event, if the organisation's audit log or the on-chain state of one of its
    vaults has changed. Before messages are sent, the sessions of all pages are checked in one query.
    """

    def __init__(self, db: Database, *, most: int) -> None:
        self._db = db
        #: Maximum number of pages that one person may have open.
        self._most = most
        self._listeners: set[OpenPage] = set()
        self._starting: set[OpenPage] = set()
        self._reading: asyncio.Task[None] | None = None
        self._vaults: set[str] = set()

    @contextmanager
    def listen(self, listener: OpenPage) -> Iterator[None]:
        """Queue messages for an open page within this context: the organisation's `Progress.total`, then events.

        Raises ``rate_limited`` if the person, or the node, has too many pages open.
        """
        everybody = self._listeners | self._starting
        mine = sum((one.org, one.actor) == (listener.org, listener.actor) for one in everybody)
        if mine >= self._most or len(everybody) >= _OF_ALL:
            raise RequestError("rate_limited", "Too many pages are open. Close some.", headers={"Retry-After": "5"})
        self._starting.add(listener)
        if self._reading is None or self._reading.done():
            self._reading = asyncio.create_task(self._read(), name="feed_hub")
        try:
            yield
        finally:
            self._starting.discard(listener)
            self._listeners.discard(listener)

    def __len__(self) -> int:
        """Return the number of listening pages."""
        return len(self._listeners) + len(self._starting)

    async def changed(self, vaults: set[str]) -> None:
        """Note vaults that changed on the chain, for the next read."""
        if len(self):
            self._vaults |= vaults

    async def _read(self) -> None:
        last: FeedSnapshot | None = None
        checked = time.monotonic()
        self._vaults.clear()
        while len(self):
            try:
                vaults, starting = set(self._vaults), set(self._starting)
                orgs = {one.org for one in self._listeners | starting}
                after = None if last is None else last.position
                found = await self._db.read(partial(_look, after=after, vaults=vaults, orgs=orgs))
                reached = total(found.position, found.lengths, orgs)
                moved = _moved(found, last)
                if found.events or moved or time.monotonic() - checked > PATIENCE:
                    await self._end_sessions()
                    checked = time.monotonic()
                self._tell_all(found.events, moved, reached)
                self._start(starting, reached)
                last = found
                self._vaults -= vaults
            except UnavailableError as error:
                _log.warning("feed_hub", error=str(error))
            await asyncio.sleep(INTERVAL)

    async def _end_sessions(self) -> None:
        """Stop listeners whose session has ended."""
        digests = {one.digest for one in self._listeners}
        still = await self._db.read(lambda conn: still_signed_in(conn, digests, now_ms()))
        for one in [one for one in self._listeners if one.digest in digests - still]:
            self._listeners.discard(one)
            one.stopping.set()

    def _start(self, starting: set[OpenPage], reached: dict[str, int]) -> None:
        for one in starting & self._starting:
            self._starting.discard(one)
            one.queue.put_nowait(reached[one.org])
            self._listeners.add(one)

    def _tell_all(self, events: Sequence[FeedEvent], moved: set[str], reached: dict[str, int]) -> None:
        for event in events:
            if event.org in reached:
                self._tell(event.org, Message(reached[event.org], event))
        for org in moved:
            if org in reached:
                self._tell(org, Message(reached[org]))

    def _tell(self, org: str, message: Message) -> None:
        for one in self._listeners:
            if one.org == org and not one.queue.full():
                one.queue.put_nowait(message)


def _moved(found: FeedSnapshot, last: FeedSnapshot | None) -> set[str]:
    """Return the organisations that have a change but no new event."""
    before = found.lengths if last is None else last.lengths
    longer = {org for org, length in found.lengths.items() if before.get(org, length) != length}
    return (found.moved | longer) - {event.org for event in found.events}


def _look(conn: Connection, *, after: int | None, vaults: set[str], orgs: set[str]) -> FeedSnapshot:
    moved = set(orgs_of_vaults(conn, vaults).values()) if vaults else set[str]()
    events = [] if after is None else feed_after(conn, after, _BATCH)
    position = events[-1].position if events else last_position(conn) if after is None else after
    return FeedSnapshot(events, position, moved, log_lengths(conn, orgs))


class _Stream(EventSourceResponse):
    """The response that streams a listener's messages. The listener is registered while the stream runs."""

    def __init__(self, hub: FeedHub, listener: OpenPage) -> None:
        super().__init__(
            _events(listener),
            ping=int(PATIENCE),
            headers={"Cache-Control": "no-store"},
            shutdown_event=listener.stopping,
            shutdown_grace_period=_GRACE,
        )
        self._hub, self._listener = hub, listener

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with self._hub.listen(self._listener):
            await super().__call__(scope, receive, send)


@page("/stream", roles=READERS)
async def stream(view: View) -> Response:
    """Stream the organisation's events until the session ends. Raises ``rate_limited`` as ``FeedHub.listen`` does."""
    by = view.principal
    return _Stream(view.service.part(FeedHub), OpenPage(by.org, by.actor, digest(view.token)))


async def _events(listener: OpenPage) -> AsyncIterator[dict[str, Any]]:
    stopped = asyncio.create_task(listener.stopping.wait())
    told = asyncio.create_task(listener.queue.get())
    try:
        while not stopped.done():
            await asyncio.wait({stopped, told}, return_when=asyncio.FIRST_COMPLETED)
            if told.done() and not stopped.done():
                yield {"data": json.dumps(_told(told.result()))}
                told = asyncio.create_task(listener.queue.get())
    finally:
        stopped.cancel()
        told.cancel()


def _told(message: Message | int) -> dict[str, Any]:
    if isinstance(message, int):
        return {"reached": message}
    event = message.event
    if event is None:
        return {"reached": message.reached, "wallets": []}
    wallets = [one for one in (event.wallet_id, event.other_wallet_id) if one is not None]
    return {"reached": message.reached, "event_id": event.event_id, "event": event.type, "wallets": wallets}
