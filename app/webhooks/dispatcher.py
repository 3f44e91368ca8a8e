"""Queues new events of the feed and sends due deliveries."""

import asyncio
import contextlib

import structlog
from sqlalchemy import Connection

from app.core.background import Periodic
from app.core.errors import RequestError, UnavailableError
from app.core.slots import Slots
from app.database.claims import holds, release
from app.database.interface import WRITE_ERRORS, Database
from app.store.deliveries import (
    MAX_ATTEMPTS,
    DeliveryRecord,
    claim_webhooks,
    due_webhooks,
    has_new_events,
    next_delivery,
    queue_new_events,
)
from app.store.delivery_attempts import DeliveryAttemptRecord, record_attempt
from app.store.delivery_retention import purge
from app.store.feed import report_once
from app.store.webhooks import mark_degraded, webhook_to_serve
from app.store.webhooks import table as webhooks
from app.webhooks.delivery_client import DeliveryClient, body_of

_log = structlog.get_logger(__name__)

_BATCH = 200
_PURGE_BATCH = 200
"""Maximum number of deliveries, and of attempts, deleted per tick, so that new events need not wait long."""
_PURGE_INTERVAL = 60 * 60 * 1000
_RETRY_PAUSE = 5.0
"""Seconds before a webhook is tried again after an unexpected error, and before another try to store an outcome."""
_POSTPONEMENT = 1.0
"""Seconds before a webhook is tried again if too many names are being looked up, or the database is unavailable."""


class Dispatcher(Periodic):
    """Checks the feed and the queues at the start and every `interval` seconds.

    Each webhook gets one delivery at a time, and at most `at_once` webhooks get one from this node at the same time.
    Before each delivery, a webhook waits for one of the `at_once` slots, which organisations share. All state is in the
    database, except outcomes that could not be stored yet. Such an outcome is stored before its webhook gets another
    delivery, unless the process ends or another node takes over the webhook. A delivery without a stored outcome is
    sent again, because its outcome is unknown. So a receiver may get an event more than once. With several nodes, each
    node sends to the webhooks that it claims.
    """

    name = "webhooks"

    def __init__(self, db: Database, delivery_client: DeliveryClient, *, interval: float, at_once: int) -> None:
        super().__init__(interval)
        self._db = db
        self._courier = delivery_client
        self._clock = delivery_client.clock
        self._slots = Slots(at_once)
        self._serving: dict[str, asyncio.Task[None]] = {}
        self._purge_at = 0
        self._stopping = False

    async def stop(self) -> None:
        """Stop once the running requests have ended."""
        self._stopping = True
        await super().stop()
        await self.idle()

    async def tick(self) -> None:
        """Queue new events, and start sending to webhooks with due deliveries."""
        now = self._clock()
        while (due := await self._db.look_up(lambda conn: _due(conn, now))) is None:  # noqa: B023 - awaited immediately
            await self._db.write(lambda conn: queue_new_events(conn, body_of, now, limit=_BATCH))  # noqa: B023
            now = self._clock()
        for webhook_id in await self._claimed(due, now):
            if webhook_id not in self._serving:
                self._serving[webhook_id] = asyncio.create_task(self._serve(webhook_id))
        if now >= self._purge_at:
            # Set the time of the next purge before this one, so that a failing purge is not repeated at every tick.
            self._purge_at = now + _PURGE_INTERVAL
            if await self._db.write(lambda conn: purge(conn, now, limit=_PURGE_BATCH)):
                self._purge_at = now

    async def _claimed(self, due: list[str], now: int) -> list[str]:
        node = self._db.node
        if not node or not set(due) - self._serving.keys():
            return due
        # Only one node at a time sends to a webhook, which keeps its deliveries in order.
        return await self._db.write_unordered(lambda conn: claim_webhooks(conn, now, node))

    async def idle(self) -> None:
        """Wait until nothing is being sent."""
        while self._serving:
            await asyncio.gather(*self._serving.values())

    async def _serve(self, webhook_id: str) -> None:
        try:
            webhook = await self._db.read(lambda conn: webhook_to_serve(conn, webhook_id))
            while webhook is not None and await self._send_next(webhook_id, webhook.org):
                pass
        except (RequestError, UnavailableError) as error:
            _log.warning("webhook_postponed", webhook_id=webhook_id, error=error.message)
            await asyncio.sleep(_POSTPONEMENT)
        except Exception:  # noqa: BLE001 - an error with one webhook must not delay the others
            _log.exception("webhook_failed", webhook_id=webhook_id)
            await asyncio.sleep(_RETRY_PAUSE)
        finally:
            await self._release(webhook_id)
            del self._serving[webhook_id]

    async def _release(self, webhook_id: str) -> None:
        if self._db.node:
            # If the release fails, this node can claim the webhook again. Other nodes can claim it once this node is
            # dead.
            with contextlib.suppress(*WRITE_ERRORS):
                await self._db.write_unordered(lambda conn: release(conn, webhooks.name, webhook_id, self._db.node))

    async def _send_next(self, webhook_id: str, org: str) -> bool:
        """Make the next attempt and store its outcome.

        Returns False if no attempt is due, the dispatcher stops or the outcome was not stored.
        """
        async with self._slots.awaited(org):
            if self._stopping:
                return False
            now = self._clock()
            delivery, webhook = await self._db.read(
                lambda conn: (next_delivery(conn, webhook_id, now), webhook_to_serve(conn, webhook_id))
            )
            if delivery is None or webhook is None:
                return False
            attempt, delivered = await self._courier.attempt(webhook, delivery)
        return await self._store(org, delivery, attempt, delivered=delivered)

    async def _store(
        self, org: str, delivery: DeliveryRecord, attempt: DeliveryAttemptRecord, *, delivered: bool
    ) -> bool:
        """Store an outcome, and retry until this succeeds, because the delivery would otherwise be sent again.

        Returns false without storing the outcome if another node declared this node dead and took over the webhook, or
        if the dispatcher stops before the database can be written to.
        """
        now, node = self._clock(), self._db.node

        def record(conn: Connection) -> bool | None:
            if node and not holds(conn, webhooks.name, delivery.webhook_id, node):
                return None
            last = record_attempt(conn, delivery, attempt, delivered=delivered, now=now)
            degraded = last and mark_degraded(conn, delivery.webhook_id, now)
            if degraded:
                webhook_id, says = delivery.webhook_id, f"A webhook failed {MAX_ATTEMPTS} times and is paused"
                fields = {"webhook_id": webhook_id, "failed_event_id": delivery.event_id}
                report_once(conn, "webhook.degraded", org, now, webhook_id, str(now), summary=says, **fields)
            return degraded

        while True:
            try:
                degraded = await self._db.write(record)
                break
            except UnavailableError as error:
                _log.warning("webhook_outcome_not_stored", webhook_id=delivery.webhook_id, error=error.message)
            except Exception:  # noqa: BLE001 - any error may be temporary
                _log.exception("webhook_outcome_not_stored", webhook_id=delivery.webhook_id)
            if self._stopping:
                return False
            await asyncio.sleep(_RETRY_PAUSE)
        if degraded:
            _log.warning("webhook_degraded", webhook_id=delivery.webhook_id, event_id=delivery.event_id)
        return degraded is not None


def _due(connection: Connection, now: int) -> list[str] | None:
    """Return the ids of webhooks with due deliveries, or None if new events must be queued first."""
    return None if has_new_events(connection) else due_webhooks(connection, now)
