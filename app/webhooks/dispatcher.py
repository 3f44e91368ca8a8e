"""Queues what is new in the feed and sends what is due."""

import asyncio
from dataclasses import dataclass

import structlog
from sqlalchemy import Connection

from app.core.background import Periodic
from app.core.errors import UnavailableError
from app.store.database import Database
from app.store.deliveries import DeliveryRecord, due_webhooks, has_new_events, next_delivery, queue_new_events
from app.store.delivery_attempts import DeliveryAttemptRecord, record_attempt
from app.store.delivery_retention import purge
from app.store.webhooks import mark_degraded, webhook_to_serve
from app.webhooks.catalogue import body_of
from app.webhooks.courier import Courier

_log = structlog.get_logger(__name__)

_BATCH = 200
_PURGE_BATCH = 200
"""Deliveries deleted at one look, and attempts: what is new is queued and sent in between."""
_PURGE_INTERVAL = 60 * 60 * 1000
_RETRY_PAUSE = 5.0
"""Seconds until a webhook with which something went wrong is looked at again, or an outcome is stored again."""
_POSTPONEMENT = 1.0
"""Seconds until a webhook is looked at again whose name could not be looked up now."""


@dataclass(frozen=True, slots=True)
class _Outcome:
    """What came of a delivery that was sent; `now` is when that was known."""

    delivery: DeliveryRecord
    attempt: DeliveryAttemptRecord
    delivered: bool
    now: int


class Dispatcher(Periodic):
    """Looks at the feed and the queues at the start and every `interval` seconds.

    A webhook gets one delivery after the other, and its turn ends with each: at most `at_once` webhooks are sent to
    at the same time, the others follow in the order in which they began to wait. All state is in the database, but
    for outcomes that it does not take: they are stored before anything else is sent to their webhook. What was sent
    when the process died is sent again, for what came of it is not known; so receivers get every event at least once.
    """

    name = "webhooks"

    def __init__(self, db: Database, courier: Courier, *, interval: float, at_once: int) -> None:
        super().__init__(interval)
        self._db = db
        self._courier = courier
        self._clock = courier.clock
        self._turns = asyncio.Semaphore(at_once)
        self._serving: dict[str, asyncio.Task[None]] = {}
        self._purge_at = 0
        self._stopping = False

    async def stop(self) -> None:
        """End; what is being sent has its time to be acknowledged."""
        self._stopping = True
        await super().stop()
        await self.idle()

    async def tick(self) -> None:
        """Queue what is new, and begin to send to the webhooks to which something is due."""
        while await self._db.read(has_new_events):
            now = self._clock()
            await self._db.write(lambda conn: queue_new_events(conn, body_of, now, limit=_BATCH))  # noqa: B023 - awaited at once
        now = self._clock()
        for webhook_id in await self._db.read(lambda conn: due_webhooks(conn, now)):
            if webhook_id not in self._serving:
                task = asyncio.create_task(self._serve(webhook_id))
                self._serving[webhook_id] = task
        if now >= self._purge_at:
            # Set before: what fails is not tried again at every look.
            self._purge_at = now + _PURGE_INTERVAL
            if await self._db.write(lambda conn: purge(conn, now, limit=_PURGE_BATCH)):
                self._purge_at = now

    async def idle(self) -> None:
        """Wait until nothing is being sent."""
        while self._serving:
            await asyncio.gather(*self._serving.values())

    async def _serve(self, webhook_id: str) -> None:
        try:
            while not self._stopping:
                async with self._turns:
                    outcome = None if self._stopping else await self._send_next(webhook_id)
                if outcome is None:
                    return
                await self._store(outcome)
        except UnavailableError as error:
            _log.warning("webhook_postponed", webhook_id=webhook_id, error=error.message)
            await asyncio.sleep(_POSTPONEMENT)
        except Exception:  # noqa: BLE001 - whatever is wrong with this one, the others are not to wait
            _log.exception("webhook_failed", webhook_id=webhook_id)
            await asyncio.sleep(_RETRY_PAUSE)
        finally:
            del self._serving[webhook_id]

    async def _send_next(self, webhook_id: str) -> _Outcome | None:
        """Make the next attempt and return what came of it; None when none is due."""
        due = self._clock()
        delivery, webhook = await self._db.read(
            lambda conn: (next_delivery(conn, webhook_id, due), webhook_to_serve(conn, webhook_id))
        )
        if delivery is None or webhook is None:
            return None
        attempt, delivered = await self._courier.attempt(webhook, delivery)
        return _Outcome(delivery, attempt, delivered, self._clock())

    async def _store(self, outcome: _Outcome) -> None:
        """Note an outcome, as often as it takes: what the database does not know of it would send again."""
        delivery = outcome.delivery

        def record(conn: Connection) -> bool:
            last = record_attempt(conn, delivery, outcome.attempt, delivered=outcome.delivered, now=outcome.now)
            return last and mark_degraded(conn, delivery.webhook_id, outcome.now)

        while True:
            try:
                degraded = await self._db.write(record)
                break
            except Exception:  # noqa: BLE001 - whatever it is, as a full disk, it may be over soon
                _log.exception("webhook_outcome_not_stored", webhook_id=delivery.webhook_id)
            if self._stopping:
                return
            await asyncio.sleep(_RETRY_PAUSE)
        if degraded:
            _log.warning("webhook_degraded", webhook_id=delivery.webhook_id, event_id=delivery.event_id)
