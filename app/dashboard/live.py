"""Live events: what happens in an organisation, to each of its open pages."""

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from typing import Any

import anyio
import structlog
from sse_starlette import EventSourceResponse
from starlette.responses import Response
from starlette.routing import Route

from app.access.auth import READERS
from app.core.errors import UnavailableError
from app.core.timestamps import now_ms
from app.dashboard.pages import View, page
from app.people.sessions import recognise
from app.store.database import Database
from app.store.feed import FeedEvent, feed_after, last_position

_log = structlog.get_logger(__name__)

#: Seconds between two looks at the feed while a page is open, and between two at a silent page's session.
INTERVAL, PATIENCE = 0.25, 15.0
#: Events that a page may be behind; a slower one misses some, and its next refresh shows them all the same.
_MAX_BEHIND = 100
_BATCH = 500
#: Seconds that streams may take to end when the service stops.
_GRACE = 2.0
#: Of events, after the position that the feed had reached when they began to be queued.
Queue = asyncio.Queue[FeedEvent | int]


class FeedHub:
    """Reads new events once for all open pages, and only while there are any."""

    def __init__(self, db: Database) -> None:
        self._db = db
        self._listeners: dict[Queue, str] = {}
        self._reading: asyncio.Task[None] | None = None
        self._position: int | None = None

    @contextmanager
    def listen(self, org: str) -> Iterator[Queue]:
        """Queue the position of the feed, as soon as it is known, and the organisation's events after it."""
        queue = Queue(_MAX_BEHIND)
        if self._position is not None:
            queue.put_nowait(self._position)
        self._listeners[queue] = org
        if self._reading is None or self._reading.done():
            self._reading = asyncio.create_task(self._read(), name="feed_hub")
        try:
            yield queue
        finally:
            del self._listeners[queue]

    def __len__(self) -> int:
        """Return how many listen."""
        return len(self._listeners)

    async def _read(self) -> None:
        while self._listeners:
            try:
                if self._position is None:
                    self._position = await self._db.read(last_position)
                    for queue in self._listeners:
                        queue.put_nowait(self._position)
                for event in await self._db.read(lambda conn, after=self._position: feed_after(conn, after, _BATCH)):  # type: ignore[misc]
                    self._position = event.position
                    self._tell(event)
            except UnavailableError as error:
                _log.warning("feed_hub", error=str(error))
            await asyncio.sleep(INTERVAL)
        self._position = None

    def _tell(self, event: FeedEvent) -> None:
        for queue, org in self._listeners.items():
            if org == event.org and not queue.full():
                queue.put_nowait(event)


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
                for told in (one.result() for one in done):
                    if told is not None:
                        yield _told(told)
                        waiting.add(asyncio.create_task(queue.get()))
        finally:
            for one in waiting:
                one.cancel()


def _told(event: FeedEvent | int) -> dict[str, Any]:
    if isinstance(event, int):
        return {"id": str(event), "data": json.dumps({"reached": event})}
    wallets = [one for one in (event.wallet_id, event.other_wallet_id) if one is not None]
    told = {"event_id": event.event_id, "event": event.type, "wallets": wallets}
    return {"id": str(event.position), "data": json.dumps(told)}


routes = [Route("/dashboard/stream", stream, methods=["GET"])]
