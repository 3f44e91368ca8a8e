"""A node among several on one database: it shows that it is alive, and runs the jobs of the leases it holds."""

import asyncio
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager

import structlog
from sqlalchemy import Connection

from app.access.rate_limit import Peers
from app.core.background import Periodic, Startable
from app.core.errors import StorageUnavailableError
from app.database import leases
from app.database.claims import delete_claims_of_dead_nodes
from app.database.interface import WRITE_ERRORS
from app.database.leases import API, NODE, Lease, fenced_by
from app.database.postgres.database import PostgresDatabase

_log = structlog.get_logger(__name__)

_INTERVAL = 1.0
"""Seconds between two renewals, and between two checks for free leases."""
_PATIENCE = 2.0
"""Seconds that the database may take for a renewal or a check."""
_FORGOTTEN = 3_600_000
"""Milliseconds for which a dead node's own lease is kept in the database after the lease has expired."""


class ServingNode(Periodic):
    """Holds the leases of this process, and runs the jobs of each lease only while it is held.

    ``works`` maps the name of each lease to its jobs, in the order in which they start. Their writes are fenced: the
    database refuses them once another node has the lease, even if this process has not noticed. If a lease
    cannot be renewed, its jobs stop when this process's own clock says that the lease has run out.
    """

    name = "node"

    def __init__(
        self,
        db: PostgresDatabase,
        works: Mapping[str, Sequence[Startable]],
        *,
        peers: Peers | None = None,
        lifetime: int = leases.LIFETIME,
        interval: float = _INTERVAL,
    ) -> None:
        """Leases last ``lifetime`` milliseconds.

        ``peers`` is given for a node that answers requests, and is kept up to date with the number of such nodes.
        """
        super().__init__(interval)
        self._db = db
        self._works = works
        self._peers = peers
        self._lifetime = lifetime
        self._running: dict[Lease, list[Startable]] = {}
        self._renewed = 0.0

    @property
    def holds(self) -> set[str]:
        """The names of the leases with jobs that run here."""
        return {lease.name for lease in self._running}

    async def start(self) -> None:
        """Start the jobs that no other node runs, then continue in the background."""
        try:
            await self.tick()
        except WRITE_ERRORS as error:
            _log.warning("leases_wait_for_storage", error=str(error))
        await super().start()

    async def stop(self) -> None:
        """Stop all jobs and free their leases, so that another node need not wait for their expiry."""
        await super().stop()
        for works in self._running.values():
            await _stop(works)
        self._running = {}
        try:
            async with _patiently():
                await self._db.write(lambda conn: leases.release(conn, self._db.node))
        except WRITE_ERRORS as error:
            _log.warning("leases_not_released", error=str(error))

    async def tick(self) -> None:
        """Renew the held leases, drop the lost ones, and take free ones."""
        try:
            await self._renew()
        except WRITE_ERRORS:
            if time.monotonic() - self._renewed > self._lifetime / 1000:
                await self._drop(set(self._running))
            raise
        await self._take()

    async def _renew(self) -> None:
        began = time.monotonic()
        async with _patiently():
            mine = await self._db.write_unordered(
                lambda conn: leases.renew(conn, self._db.node, lifetime=self._lifetime)
            )
        self._renewed = began
        await self._drop(self._running.keys() - mine)
        for lease in mine - self._running.keys():
            # The lease was taken, but the response was lost, or the lease's jobs could not be started.
            if lease.name in self._works:
                await self._begin(lease)

    async def _take(self) -> None:
        own = [NODE + self._db.node, *([] if self._peers is None else [API + self._db.node])]
        names = [*own, *(name for name in self._works if name not in self.holds)]
        async with _patiently():
            alive = await self._db.write_unordered(leases.alive)
        for name in names:
            if name in alive:
                continue
            lease = await self._db.write(lambda conn, name=name: self._take_one(conn, name))  # type: ignore[misc]
            if lease is not None:
                alive.add(name)
                if name in self._works:
                    await self._begin(lease)

        if self._peers is not None:
            self._peers.count = sum(name.startswith(API) for name in alive)

    def _take_one(self, conn: Connection, name: str) -> Lease | None:
        if name not in self._works:
            leases.delete_dead_nodes(conn, after=_FORGOTTEN)
            delete_claims_of_dead_nodes(conn)
        return leases.take(conn, name, self._db.node, lifetime=self._lifetime)

    async def _begin(self, lease: Lease) -> None:
        _log.info("lease_taken", lease=lease.name, fencing=lease.fencing)
        started: list[Startable] = []
        with fenced_by(lease):
            try:
                for work in self._works[lease.name]:
                    await work.start()
                    started.append(work)
            except BaseException:
                await _stop(started)
                raise
        self._running[lease] = started

    async def _drop(self, lost: set[Lease]) -> None:
        for lease in lost:
            _log.warning("lease_ended", lease=lease.name, fencing=lease.fencing)
            await _stop(self._running.pop(lease))


@asynccontextmanager
async def _patiently() -> AsyncIterator[None]:
    """Give the database `_PATIENCE` seconds. Raises ``storage_unavailable`` after that."""
    try:
        async with asyncio.timeout(_PATIENCE):
            yield
    except TimeoutError:
        raise StorageUnavailableError from None


async def _stop(works: Sequence[Startable]) -> None:
    for work in reversed(works):
        try:
            await work.stop()
        except WRITE_ERRORS as error:
            _log.warning("work_not_stopped_cleanly", work=type(work).__name__, error=str(error))
