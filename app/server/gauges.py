"""Reads most gauges of `/metrics` in the background, so that no request waits for the chain or a long query."""

import math
import time

from sqlalchemy import Connection

from app.api.metrics import Metrics
from app.core.background import Periodic
from app.core.timestamps import now_ms
from app.server.health import Health
from app.store.attempts import count_pending
from app.store.deliveries import Backlog, backlog
from app.store.organisations import organisations, reserve_balance
from app.store.reconciliation import count_differences
from app.submission.context import Service
from app.submission.fee_payer import FeePayer


class Gauges(Periodic):
    """Reads the gauges at the start and every `interval` seconds. A value that the chain does not provide is NaN."""

    name = "gauges"

    def __init__(self, service: Service, *, interval: float = 15.0) -> None:
        super().__init__(interval)
        self._service = service
        self._metrics = service.part(Metrics)
        self._health = Health(service, remember=0.0)

    async def tick(self) -> None:
        """Read the gauges once."""
        metrics = self._metrics
        report = await self._health.report()
        metrics.ready.set(not report.failing)
        metrics.lag.set(report.lag)
        metrics.holes.set(len(report.holes) + len(report.unreadable))
        metrics.gaps.set(len(report.gaps))
        metrics.guard.set(report.guard is not None)
        metrics.free.set(report.free)
        metrics.backed_up.set(report.backed_up)
        for role, missing in metrics.missing_roles.items():
            missing.set(role in report.missing_roles)
        balance = await self._service.part(FeePayer).balance()
        metrics.fee_payer.set(math.nan if balance is None else balance)
        await self._service.db.read(self._read, in_thread=True)
        metrics.updated.set(time.time())

    def _read(self, conn: Connection) -> None:
        metrics = self._metrics
        metrics.pending.set(count_pending(conn))
        metrics.differences.set(count_differences(conn))
        own: dict[str | None, tuple[str, int]] = {
            one.org: (f'{{organization="{one.org_id}"}}', reserve_balance(conn, one.org)) for one in organisations(conn)
        }
        metrics.reserves = own | {None: ("", sum(balance for _, balance in own.values()))}
        found: Backlog = backlog(conn, now_ms())
        metrics.backlog["enabled"].set(found.enabled)
        metrics.backlog["degraded"].set(found.degraded)
        metrics.unqueued.set(found.events)
        metrics.overdue.set(found.overdue_ms / 1000)
