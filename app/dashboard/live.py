"""Live events: what happens in an organisation, to each of its open pages."""

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import anyio
import structlog
from sqlalchemy import Connection
from sse_starlette import EventSourceResponse
from starlette.responses import Response
from starlette.routing import Route

from app.access.auth import READERS
from app.core.errors import UnavailableError
from app.core.timestamps import now_ms
from app.dashboard.pages import View, page
from app.dashboard.progress import total
from app.people.sessions import recognise
from app.store.audit import log_lengths
from app.store.database import Database
from app.store.feed import FeedEvent, feed_after, last_position
from app.store.wallets import orgs_of_vaults

_log = structlog.get_logger(__name__)

#: Seconds between two looks at the feed while a page is open, and between two at a silent page's session.
INTERVAL, PATIENCE = 0.25, 15.0
#: Events that a page may be behind; a slower one misses some, and its next refresh shows them all the same.
_MAX_BEHIND = 100
_BATCH = 500
#: Seconds that streams may take to end when the service stops.
_GRACE = 2.0


@dataclass(frozen=True, slots=True)
class Message:
    """What an organisation's open pages are told: an event, or that something changed which no event reports."""

    #: The organisation's total `Progress` with it.
    reached: int
    event: FeedEvent | None = None


@dataclass(frozen=True, slots=True)
class Look:
    """What a look at the database found in one transaction."""

    events: list[FeedEvent]
    #: Of the feed, after these events.
    position: int
    #: Organisations with a vault that changed on the chain.
    moved: set[str]
    #: Of the organisations' audit logs.
    lengths: dict[str, int]


#: Of messages, after the total `Progress` that there was when queueing began.
Queue = asyncio.Queue[Message | int]


class FeedHub:
    """Reads new events once for all open pages, and only while there are any.

    Without an event, it hints at a change that moved the organisation's audit log, or one of its vaults on the chain.
    """

    def __init__(self, db: Database) -> None:
        self._db = db
        self._listeners: dict[Queue, str] = {}
        self._starting: dict[Queue, str] = {}
        self._reading: asyncio.Task[None] | None = None
        self._vaults: set[str] = set()

    @contextmanager
    def listen(self, org: str) -> Iterator[Queue]:
        """Queue how far the organisation has come, as soon as it is known, and what happens to it after that."""
        queue = Queue(_MAX_BEHIND)
        self._starting[queue] = org
        if self._reading is None or self._reading.done():
            self._reading = asyncio.create_task(self._read(), name="feed_hub")
        try:
            yield queue
        finally:
            self._starting.pop(queue, None)
            self._listeners.pop(queue, None)

    def __len__(self) -> int:
        """Return how many listen."""
        return len(self._listeners) + len(self._starting)

    async def changed(self, vaults: set[str]) -> None:
        """Note vaults that changed on the chain, for the next look."""
        if len(self):
            self._vaults |= vaults

    async def _read(self) -> None:
        last: Look | None = None
        self._vaults.clear()
        while len(self):
            try:
                vaults, starting = set(self._vaults), dict(self._starting)
                orgs = {*self._listeners.values(), *starting.values()}
                after = None if last is None else last.position
                found = await self._db.read(partial(_look, after=after, vaults=vaults, orgs=orgs))
                reached = total(found.position, found.lengths, orgs)
                self._tell_all(found, last, reached)
                self._start(starting, reached)
                last = found
                self._vaults -= vaults
            except UnavailableError as error:
                _log.warning("feed_hub", error=str(error))
            await asyncio.sleep(INTERVAL)

    def _start(self, starting: dict[Queue, str], reached: dict[str, int]) -> None:
        for queue, org in starting.items():
            if self._starting.pop(queue, None) is not None:
                queue.put_nowait(reached[org])
                self._listeners[queue] = org

    def _tell_all(self, found: Look, last: Look | None, reached: dict[str, int]) -> None:
        for event in found.events:
            if event.org in reached:
                self._tell(event.org, Message(reached[event.org], event))
        before = found.lengths if last is None else last.lengths
        longer = {org for org, length in found.lengths.items() if before.get(org, length) != length}
        for org in (found.moved | longer) - {event.org for event in found.events}:
            if org in reached:
                self._tell(org, Message(reached[org]))

    def _tell(self, org: str, message: Message) -> None:
        for queue, listening in self._listeners.items():
            if listening == org and not queue.full():
                queue.put_nowait(message)


def _look(conn: Connection, *, after: int | None, vaults: set[str], orgs: set[str]) -> Look:
    moved = set(orgs_of_vaults(conn, vaults).values()) if vaults else set[str]()
    events = [] if after is None else feed_after(conn, after, _BATCH)
    position = events[-1].position if events else last_position(conn) if after is None else after
    return Look(events, position, moved, log_lengths(conn, orgs))


@page(roles=READERS)
async def stream(view: View) -> Response:
    """Send what happens until the session ends."""
    stopping = anyio.Event()
    return EventSourceResponse(
        _events(view, stopping),
        ping=int(PATIENCE),
        headers={"Cache-Control": "no-store"},
        shutdown_event=stopping,
        shutdown_grace_period=_GRACE,
    )


async def _events(view: View, stopping: anyio.Event) -> AsyncIterator[dict[str, Any]]:
    service, token, org = view.service, view.token, view.principal.org
    with service.part(FeedHub).listen(org) as queue:
        waiting = {asyncio.create_task(stopping.wait()), asyncio.create_task(queue.get())}
        try:
            while not stopping.is_set():
                done, waiting = await asyncio.wait(waiting, timeout=PATIENCE, return_when=asyncio.FIRST_COMPLETED)
                if await service.db.read(lambda conn: recognise(conn, token, now_ms())) is None:
                    return
                for message in (one.result() for one in done):
                    if message is not None:
                        yield {"data": json.dumps(_told(message))}
                        waiting.add(asyncio.create_task(queue.get()))
        finally:
            for one in waiting:
                one.cancel()


def _told(message: Message | int) -> dict[str, Any]:
    if isinstance(message, int):
        return {"reached": message}
    event = message.event
    if event is None:
        return {"reached": message.reached, "wallets": []}
    wallets = [one for one in (event.wallet_id, event.other_wallet_id) if one is not None]
    return {"reached": message.reached, "event_id": event.event_id, "event": event.type, "wallets": wallets}


routes = [Route("/dashboard/stream", stream, methods=["GET"])]
