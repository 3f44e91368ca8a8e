"""Reports holes and gaps of the index: unreadable transactions, and missing events of vaults and organisations."""

from collections.abc import Mapping

from sqlalchemy import Connection

from app.core.background import Periodic
from app.core.timestamps import now_ms
from app.reconciliation._events import INCOMPLETE, append_incomplete
from app.store.feed import FeedFilter, feed
from app.store.organisations import organisations
from app.store.reconciliation import owners
from app.submission.context import Service

_PAUSE_MS = 3_600_000
"""Minimum milliseconds between two reports to an organisation."""


_MOMENT = 5
"""Seconds that a hole must last before it is reported, so that a single wrong response of a node is not reported."""


async def lasting_gaps(service: Service) -> Mapping[str, str]:
    """Return the addresses of this service's vaults and organisations with gaps, each with its organisation."""
    found = await service.indexer.gaps()
    return await service.db.read(lambda conn: owners(conn, found)) if found else {}


class IndexWatch(Periodic):
    """Reports to an organisation, at most once an hour, that it has gaps or that new holes have been found."""

    name = "index_watch"

    def __init__(self, service: Service, *, interval: float = 10.0) -> None:
        super().__init__(interval)
        self._service = service

    async def tick(self) -> None:
        """Report new holes and lasting gaps."""
        now, gaps = now_ms(), await lasting_gaps(self._service)
        found = await self._service.indexer.transaction_holes()
        holes = [one.since for one in found if one.since < now // 1000 - _MOMENT]

        def report(conn: Connection) -> None:
            for one in organisations(conn):
                mine = sorted(address for address, org in gaps.items() if org == one.org)
                last = feed(conn, one.org, FeedFilter(types=[INCOMPLETE]), limit=1).data
                reported = last[0].timestamp if last else 0
                new = any(since >= reported // 1000 - _MOMENT for since in holes)
                if now - reported >= _PAUSE_MS and (mine or new):
                    append_incomplete(conn, one.org, len(holes), mine, now)

        if holes or gaps:
            await self._service.db.write(report)
