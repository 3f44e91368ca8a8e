"""Use cases of deliveries: list them, send a ping, and send events again."""

from collections.abc import Sequence
from dataclasses import replace

from sqlalchemy import Connection

from app.access.keyring import Principal
from app.core.errors import NotFoundError, RequestError
from app.core.identifiers import EVENT_PREFIX, random_id
from app.core.timestamps import now_ms
from app.store.audit import append
from app.store.deliveries import MAX_ATTEMPTS, DeliveryRecord, delivery, delivery_of, events_between, queue_again
from app.store.deliveries import deliveries as list_deliveries
from app.store.deliveries import replay as replay_deliveries
from app.store.delivery_attempts import DeliveryAttemptRecord, attempts_of, insert_ping
from app.store.feed import FeedEvent
from app.store.idempotency import find as find_claim
from app.submission.claim import Claim
from app.submission.context import Service
from app.webhooks.delivery_client import DeliveryClient, body_of
from app.webhooks.models import Delivery, DeliveryPage, ListDeliveries, Replay, ReplayEvents
from app.webhooks.service import find

MAX_REPLAY = 10_000
"""Maximum number of events that one request replays."""
_BATCH = 200
"""Number of events queued in one transaction. It is small, so that payments do not wait long."""


async def page(service: Service, principal: Principal, webhook_id: str, query: ListDeliveries) -> DeliveryPage:
    """Return one page of a webhook's deliveries, newest event first. Raises ``webhook_not_found``."""

    def read(conn: Connection) -> DeliveryPage:
        found = find(conn, principal.org, webhook_id)
        shown = list_deliveries(conn, found.webhook_id, status=query.status, limit=query.limit, cursor=query.cursor)
        attempts = attempts_of(conn, [one.delivery_id for one in shown.data])
        return DeliveryPage.showing(shown, lambda one: _answer(one, attempts.get(one.delivery_id, ())))

    return await service.db.read(read, in_thread=True)


async def ping(service: Service, principal: Principal, webhook_id: str) -> Delivery:
    """Send a `ping` once, without queueing it, and return its outcome.

    Raises ``webhook_not_found``, and ``rate_limited`` while another ping is being sent to the webhook, or while the
    organisation has too many pings running or too many names being looked up.
    """
    found = await service.db.read(lambda conn: find(conn, principal.org, webhook_id))
    now = now_ms()
    event = FeedEvent(
        position=found.position,
        event_id=random_id(EVENT_PREFIX),
        org=found.org,
        type="ping",
        timestamp=now,
        wallet_id=None,
        severity="info",
        summary="",
        payload={"webhook_id": webhook_id},
        signature=None,
        other_wallet_id=None,
    )
    sent = delivery_of(found, event, body_of(event), now)
    attempt, delivered = await service.part(DeliveryClient).ping(found, sent, principal.key_id)
    logged = replace(sent, status="delivered" if delivered else "failed")

    def store(conn: Connection) -> None:
        insert_ping(conn, logged, attempt)
        append(conn, principal.entry("webhook.ping", webhook_id, status=logged.status))

    await service.db.write(store)
    return _answer(logged, [attempt])


async def resend(principal: Principal, claim: Claim, webhook_id: str, delivery_id: str) -> Delivery:
    """Queue a delivery again, regardless of its status. Raises ``webhook_not_found`` and ``delivery_not_found``."""
    now = now_ms()

    def store(conn: Connection) -> Delivery:
        find(conn, principal.org, webhook_id)
        if delivery(conn, webhook_id, delivery_id) is None:
            raise NotFoundError("delivery_not_found")
        if not claim.repeats:
            queue_again(conn, delivery_id, now)
            append(conn, principal.entry("webhook.resend", webhook_id, delivery_id=delivery_id))
        queued = delivery(conn, webhook_id, delivery_id)
        assert queued is not None
        return _answer(queued, attempts_of(conn, [delivery_id]).get(delivery_id, ()))

    return await claim.store(store)


async def replay(service: Service, principal: Principal, claim: Claim, webhook_id: str, body: ReplayEvents) -> Replay:
    """Queue the events of a period that the webhook is subscribed to, even if they were queued before.

    All events are queued with the time of the idempotency key's claim. If the request is repeated after a crash or an
    error, it resumes: events already queued with this time are not queued again, even if they were sent since.

    Raises ``invalid_request`` if the period has too many events, and ``webhook_not_found``.
    """
    now, org = now_ms(), principal.org

    def begin(conn: Connection) -> int:
        find(conn, org, webhook_id)
        held = None if claim.key is None else find_claim(conn, org, claim.key, now)
        return now if held is None else held.created_at

    began = await claim.store(begin, lasts=False)
    end = began if body.to is None else body.to

    def read(conn: Connection) -> list[DeliveryRecord]:
        found = find(conn, org, webhook_id)
        events = events_between(conn, found, body.from_, end, MAX_REPLAY + 1)
        return [delivery_of(found, event, body_of(event), began) for event in events]

    wanted = await service.db.read(read, in_thread=True)
    if len(wanted) > MAX_REPLAY:
        raise RequestError("invalid_request", f"to: the period has more than {MAX_REPLAY:,} events; shorten it.")
    # Queue the events in feed order, because the first batches are already sent while later ones are queued.
    wanted.sort(key=lambda one: one.position)

    def store(conn: Connection, batch: Sequence[DeliveryRecord]) -> None:
        find(conn, org, webhook_id)
        replay_deliveries(conn, batch, began)

    for first in range(0, len(wanted), _BATCH):
        await claim.store(lambda conn: store(conn, wanted[first : first + _BATCH]))  # noqa: B023 - awaited immediately
    return Replay(webhook_id=webhook_id, queued=len(wanted))


def _answer(found: DeliveryRecord, attempts: Sequence[DeliveryAttemptRecord]) -> Delivery:
    waits = found.status == "pending" and found.attempts < MAX_ATTEMPTS
    return Delivery.of(found, next_attempt_at=found.due_at if waits else None, attempts=attempts)
