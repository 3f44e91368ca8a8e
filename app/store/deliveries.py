"""Deliveries: every webhook's queue, and its log. Times are Unix milliseconds.

The feed is the outbox. Positions in it follow the order of commits, and one transaction queues an event and moves the
webhook's own position past it. Every committed event is therefore queued once, in order, even if the process dies.

A rebuild of the read models adds events to the feed again, at new positions. The feed ignores events that it still has,
and this table ignores deliveries that it still has. Once a delivery is deleted, its event is no longer recent and is
therefore not queued again, unless the chain gives no time for the event.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from sqlalchemy import (
    Connection,
    Index,
    Integer,
    Select,
    Text,
    bindparam,
    exists,
    func,
    select,
    union_all,
    update,
)

from app.core.identifiers import derived_id
from app.core.pages import RecordPage
from app.database.claims import claim
from app.database.columns import upsert_all
from app.database.paging import fetch_page, listing
from app.database.record_tables import table_of
from app.database.records import columns_of, fetch_all, fetch_one
from app.database.statements import rows, scalar
from app.store import webhooks
from app.store.feed import FeedEvent, feed_after, last_position
from app.store.feed import table as feed
from app.store.webhooks import WebhookRecord, listening

DELIVERY_PREFIX = "dlv_"
MAX_ATTEMPTS = 5
"""Number of failed attempts at one delivery after which its webhook is degraded."""
DELAYS = (60_000, 300_000, 1_800_000, 7_200_000)
"""Milliseconds from each failed attempt to the next attempt."""
LIFETIME = 90 * 24 * 60 * 60 * 1000
"""Milliseconds for which deliveries, queued or logged, are kept, and for which events count as recent."""
_TOLERANCE = 24 * 60 * 60 * 1000
"""Milliseconds by which an event may seem older than the webhook that receives it; see `_is_for`."""


@dataclass(frozen=True, slots=True)
class DeliveryRecord:
    """An event on its way to a webhook: `pending` while queued, then `delivered`.

    `attempts` counts the failures since the delivery was last queued or its queue restarted. A ping is stored after it
    was sent, as `delivered` or `failed`, and is queued only when it is resent.
    """

    delivery_id: str
    webhook_id: str
    event_id: str
    event: str
    position: int
    """The event's position in the feed."""
    body: Annotated[str, Text()]
    status: str
    """The status: `pending`, `delivered` or `failed`."""
    attempts: Annotated[int, Integer()]
    """Number of failed attempts since the delivery was queued or the webhook's queue restarted."""
    due_at: int
    """Time of the next attempt or, if none is planned, of the last attempt."""
    created_at: int
    """Time when the delivery was last queued."""


table = table_of(
    "webhook_deliveries",
    DeliveryRecord,
    Index("webhook_deliveries_newest", "webhook_id", "position", "delivery_id"),
    Index("webhook_deliveries_by_status", "webhook_id", "status", "position", "delivery_id"),
    Index("webhook_deliveries_by_round", "webhook_id", "status", "attempts", "position", "delivery_id"),
    Index("webhook_deliveries_due", "webhook_id", "status", "due_at"),
    key=["delivery_id"],
)


Encode = Callable[[FeedEvent], str]
"""Function that returns the request body for an event."""


def has_new_events(connection: Connection) -> bool:
    """Return True if the feed has events that some webhook has neither queued nor skipped."""
    return bool(scalar(connection, _HAS_NEW, {}))


def queue_new_events(connection: Connection, encode: Encode, now: int, *, limit: int) -> None:
    """Queue the next events of the feed, up to `limit`, for the webhooks subscribed to them."""
    listeners = listening(connection)
    events = feed_after(connection, min(one.position for one in listeners), limit) if listeners else []
    if not events:
        return
    rows = [
        columns_of(delivery_of(one, event, encode(event), now))
        for event in events
        for one in listeners
        if event.position > one.position and _is_for(one, event, now)
    ]
    # An event that a chain reorganisation removed and then restored is already queued.
    upsert_all(connection, table, rows, keys=["delivery_id"], replace=False)
    last = events[-1].position
    passed = update(webhooks.table).where(webhooks.table.c.position < last, webhooks.table.c.status != "deleted")
    connection.execute(passed.values(position=last))


def is_recent(event: FeedEvent, now: int) -> bool:
    """Return True if an event that is new in the feed may have happened recently.

    Always True if the timestamp is 0, which means that the chain gives no time for the event.
    """
    return event.timestamp == 0 or event.timestamp >= now - LIFETIME


def _is_for(webhook: WebhookRecord, event: FeedEvent, now: int) -> bool:
    """Return True if an event must be queued for a webhook.

    A webhook receives recent events that happened after its registration, even if they are indexed much later. The feed
    position cannot decide this, because a rebuild appends old events. Nor can the exact time, because the chain's clock
    may run behind the service's, as Solana's once did by half an hour. Therefore only events more than a day older than
    the webhook are excluded. These include all events that the feed had deleted before the registration, because the
    feed keeps events for at least a day.
    """
    if event.org != webhook.org or not webhook.wants(event.type) or not is_recent(event, now):
        return False
    return event.timestamp == 0 or event.timestamp >= webhook.created_at - _TOLERANCE


def delivery_of(webhook: WebhookRecord, event: FeedEvent, body: str, now: int) -> DeliveryRecord:
    """Return the delivery of an event to a webhook.

    There is exactly one delivery for each pair of event and webhook.
    """
    return DeliveryRecord(
        delivery_id=derived_id(DELIVERY_PREFIX, webhook.webhook_id, event.event_id),
        webhook_id=webhook.webhook_id,
        event_id=event.event_id,
        event=event.type,
        position=event.position,
        body=body,
        status="pending",
        attempts=0,
        due_at=now,
        created_at=now,
    )


@dataclass(frozen=True, slots=True)
class Backlog:
    """Numbers of queued deliveries to enabled and to degraded webhooks.

    `overdue_ms` is the time since the first due delivery to an enabled webhook became due. `events` is the number of
    positions in the feed after the last one that every webhook has queued or skipped.
    """

    events: int
    enabled: int
    degraded: int
    overdue_ms: int


def backlog(connection: Connection, now: int) -> Backlog:
    """Return the sizes of the queues.

    At most 10,000 deliveries per webhook are counted, to limit the time of the query.
    """
    queued = {"enabled": 0, "degraded": 0}
    oldest = now
    for webhook_id, status in connection.execute(_WEBHOOKS).all():
        queued[status] += connection.scalar(_QUEUED, {"webhook": webhook_id}) or 0
        if status == "enabled":
            oldest = min(oldest, connection.scalar(_OLDEST_DUE, {"webhook": webhook_id}) or now)
    behind = connection.scalar(_BEHIND)
    events = 0 if behind is None else max(0, last_position(connection) - behind)
    return Backlog(events, queued["enabled"], queued["degraded"], now - oldest)


def due_webhooks(connection: Connection, now: int) -> list[str]:
    """Return the ids of the enabled webhooks with a delivery due."""
    return [webhook_id for (webhook_id,) in rows(connection, _DUE, {"now": now})[1]]


def claim_webhooks(connection: Connection, now: int, node: str) -> list[str]:
    """Claim the enabled webhooks that have a due delivery and that no other node has claimed. Return their ids."""
    return claim(connection, webhooks.table.c.webhook_id, _DUE.params(now=now), node)


def next_delivery(connection: Connection, webhook_id: str, now: int) -> DeliveryRecord | None:
    """Return the webhook's next delivery to send, or None if none is due.

    Deliveries with the same number of failed attempts form a round. A round is a separate queue, and only its oldest
    event may be sent. Unless a delivery is queued again, the n-th attempts therefore follow the order of the events,
    regardless of the clock.
    """
    heads = fetch_all(connection, DeliveryRecord, _HEADS, {"webhook": webhook_id})
    due = [head for head in heads if head.due_at <= now]
    return min(due, key=lambda head: (head.due_at, head.position), default=None)


def retry_at(failed: int, now: int) -> int:
    """Return the time of the next attempt after this many failed attempts, the last of them now."""
    return now + DELAYS[min(failed, len(DELAYS)) - 1]


def queue_again(connection: Connection, delivery_id: str, now: int) -> None:
    """Queue a delivery again, at its event's position in the order."""
    mine = update(table).where(table.c.delivery_id == delivery_id)
    connection.execute(mine.values(status="pending", attempts=0, due_at=now, created_at=now))


def replay(connection: Connection, deliveries: Sequence[DeliveryRecord], moment: int) -> None:
    """Queue deliveries, including those that were queued before.

    A delivery created at exactly this `moment` was queued by an earlier call of the same replay and is skipped.
    """
    mine = table.c.delivery_id.in_([one.delivery_id for one in deliveries])
    done = set(connection.scalars(select(table.c.delivery_id).where(mine, table.c.created_at == moment)))
    rows = [columns_of(one) for one in deliveries if one.delivery_id not in done]
    upsert_all(connection, table, rows, keys=["delivery_id"])


def restart(connection: Connection, webhook_id: str, now: int, *, limit: int) -> bool:
    """Reset up to `limit` queued deliveries with failed attempts and make them due. Return True if more may remain.

    Deliveries with the most failures come first, oldest events first, because they may be sent before the rest is
    reset.
    """
    failed = connection.scalars(_FAILED, {"webhook": webhook_id, "most": limit}).all()
    connection.execute(update(table).where(table.c.delivery_id.in_(failed)).values(attempts=0, due_at=now))
    return len(failed) == limit


def events_between(connection: Connection, webhook: WebhookRecord, start: int, end: int, limit: int) -> list[FeedEvent]:
    """Return up to `limit` events from `start` (inclusive) to `end` (exclusive) that the webhook is subscribed to."""
    mine = [feed.c.org == webhook.org, feed.c.timestamp >= start, feed.c.timestamp < end]
    if webhooks.ALL_EVENTS not in webhook.events:
        mine.append(feed.c.type.in_(webhook.events))
    query = select(feed).where(*mine).order_by(feed.c.timestamp, feed.c.position).limit(limit)
    return fetch_all(connection, FeedEvent, query)


def delivery(connection: Connection, webhook_id: str, delivery_id: str) -> DeliveryRecord | None:
    """Return a webhook's delivery with this id, or None."""
    query = select(table).where(table.c.webhook_id == webhook_id, table.c.delivery_id == delivery_id)
    return fetch_one(connection, DeliveryRecord, query)


def deliveries(
    connection: Connection, webhook_id: str, *, status: str | None = None, limit: int = 20, cursor: str | None = None
) -> RecordPage[DeliveryRecord]:
    """Return a webhook's deliveries, newest event first. Raises `InvalidCursorError`."""
    chosen = _LISTING if status is None else _LISTING_OF_STATUS
    parameters = {"webhook": webhook_id, "status": status}
    return fetch_page(connection, DeliveryRecord, chosen, parameters, limit=limit, cursor=cursor)


_OF_WEBHOOK = select(table).where(table.c.webhook_id == bindparam("webhook"))
_LISTING, _LISTING_OF_STATUS = (
    listing(query, time=table.c.position, key=table.c.delivery_id)
    for query in (_OF_WEBHOOK, _OF_WEBHOOK.where(table.c.status == bindparam("status")))
)
_BEHIND = select(func.min(webhooks.table.c.position)).where(webhooks.table.c.status != "deleted")
_HAS_NEW = select(select(func.max(feed.c.position)).scalar_subquery() > _BEHIND.scalar_subquery())
_MOST_COUNTED = 10_000
_WEBHOOKS = select(webhooks.table.c.webhook_id, webhooks.table.c.status).where(
    webhooks.table.c.status.in_(("enabled", "degraded"))
)
_PENDING = (table.c.webhook_id == bindparam("webhook"), table.c.status == "pending")
_QUEUED = select(func.count()).select_from(select(table.c.delivery_id).where(*_PENDING).limit(_MOST_COUNTED).subquery())
_OLDEST_DUE = select(func.min(table.c.due_at)).where(*_PENDING)
_DUE = select(webhooks.table.c.webhook_id).where(
    webhooks.table.c.status == "enabled",
    exists().where(
        table.c.webhook_id == webhooks.table.c.webhook_id,
        table.c.status == "pending",
        table.c.due_at <= bindparam("now"),
    ),
)


def _round(failed: int) -> Select[Any]:
    """Return the query for a webhook's queued deliveries with this many failed attempts, in event order."""
    mine = _OF_WEBHOOK.where(table.c.status == "pending", table.c.attempts == failed)
    return mine.order_by(table.c.position, table.c.delivery_id)


_HEADS = union_all(*(select(_round(failed).limit(1).subquery()) for failed in range(MAX_ATTEMPTS)))
_FAILED = union_all(
    *(
        select(_round(failed).with_only_columns(table.c.delivery_id).limit(bindparam("most")).subquery())
        for failed in range(MAX_ATTEMPTS, 0, -1)
    )
).limit(bindparam("most"))
