"""Live events: what happens in an organisation, to each of its open pages."""

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from typing import Any

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
Queue = asyncio.Queue[FeedEvent]


class FeedHub:
    """Reads new events once for all open pages, and only while there are any."""

    def __init__(self, db: Database) -> None:
        self._db = db
        self._listeners: dict[Queue, str] = {}
        self._reading: asyncio.Task[None] | None = None

    @contextmanager
    def listen(self, org: str) -> Iterator[Queue]:
        """Queue the organisation's events from now on."""
        queue = Queue(_MAX_BEHIND)
        self._listeners[queue] = org
        if self._reading is None or self._reading.done():
            self._reading = asyncio.create_task(self._read(), name="feed_hub")
        try:
            yield queue
        finally:
            del self._listeners[queue]

    async def _read(self) -> None:
        position = None
        while self._listeners:
            try:
                if position is None:
                    position = await self._db.read(last_position)
                for event in await self._db.read(lambda conn, after=position: feed_after(conn, after, _BATCH)):  # type: ignore[misc]
                    position = event.position
                    self._tell(event)
            except UnavailableError as error:
                _log.warning("feed_hub", error=str(error))
            await asyncio.sleep(INTERVAL)

    def _tell(self, event: FeedEvent) -> None:
        for queue, org in self._listeners.items():
            if org == event.org and not queue.full():
                queue.put_nowait(event)


@page(roles=READERS)
async def stream(view: View) -> Response:
    """Send what happens until the session ends."""
    return EventSourceResponse(_events(view), ping=int(PATIENCE), headers={"Cache-Control": "no-store"})


async def _events(view: View) -> AsyncIterator[dict[str, Any]]:
    hub: FeedHub = view.request.app.state.feed_hub
    service, token, org = view.service, view.token, view.principal.org
    with hub.listen(org) as queue:
        while True:
            event = None
            try:
                async with asyncio.timeout(PATIENCE):
                    event = await queue.get()
            except TimeoutError:
                pass
            if await service.db.read(lambda conn: recognise(conn, token, now_ms())) is None:
                return
            if event is not None:
                wallets = [one for one in (event.wallet_id, event.other_wallet_id) if one is not None]
                told = {"event_id": event.event_id, "event": event.type, "wallets": wallets}
                yield {"id": str(event.position), "data": json.dumps(told)}


routes = [Route("/dashboard/stream", stream, methods=["GET"])]
