"""Deliveries: the queue of every webhook, and the log of what was in it. Times are Unix milliseconds.

An event is queued by the position that it has in the feed. Positions are given out in the order of commits, and the
queue grows in the transaction that moves the webhook's own position: so the feed is the outbox. What a writer
committed there is queued once, in its order, whenever the process dies.

A rebuilding of the read models adds events to the feed again, at new positions. What the feed still had it ignores;
what was queued has its row here; and what is older than both are kept is no news.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import (
    BigInteger,
    Column,
    Connection,
    Index,
    Integer,
    Row,
    Select,
    String,
    Table,
    Text,
    bindparam,
    exists,
    func,
    select,
    union_all,
    update,
)

from app.core.identifiers import derived_id
from app.store import webhooks
from app.store.columns import columns_of, metadata, upsert_all
from app.store.feed import FeedEvent, feed_after
from app.store.paging import RecordPage, fetch_page, listing
from app.store.read_tables import feed
from app.store.webhooks import WebhookRecord, listening

DELIVERY_PREFIX = "dlv_"
MAX_ATTEMPTS = 5
"""Attempts after which a webhook is degraded."""
DELAYS = (60_000, 300_000, 1_800_000, 7_200_000)
"""Milliseconds from a failed attempt to the next one."""
LIFETIME = 90 * 24 * 60 * 60 * 1000
"""Milliseconds for which deliveries are kept, in the queue as in the log, and events are news."""
_TOLERANCE = 24 * 60 * 60 * 1000
"""Milliseconds by which an event may seem to have happened before a webhook was there; see `_is_for`."""

table = Table(
    "webhook_deliveries",
    metadata,
    Column("delivery_id", String, primary_key=True),
    Column("webhook_id", String, nullable=False),
    Column("event_id", String, nullable=False),
    Column("event", String, nullable=False),
    Column("position", BigInteger, nullable=False, comment="of the event in the feed"),
    Column("body", Text, nullable=False),
    Column("status", String, nullable=False, comment="pending, delivered or failed"),
    Column("attempts", Integer, nullable=False, comment="that failed since the delivery was queued"),
    Column("due_at", BigInteger, nullable=False, comment="of the next attempt; of the last one when there is no next"),
    Column("created_at", BigInteger, nullable=False, comment="when it was queued, the last time"),
    Index("webhook_deliveries_newest", "webhook_id", "position", "delivery_id"),
    Index("webhook_deliveries_by_status", "webhook_id", "status", "position", "delivery_id"),
    Index("webhook_deliveries_by_round", "webhook_id", "status", "attempts", "position", "delivery_id"),
    Index("webhook_deliveries_due", "webhook_id", "status", "due_at"),
)


Encode = Callable[[FeedEvent], str]
"""Returns the body that is sent of an event."""


@dataclass(frozen=True, slots=True)
class DeliveryRecord:
    """An event on its way to a webhook: `pending` while queued, then `delivered`.

    `attempts` counts those that failed since it was queued, for the first time or again. A ping is not queued; it is
    `delivered` or `failed`.
    """

    delivery_id: str
    webhook_id: str
    event_id: str
    event: str
    position: int
    body: str
    status: str
    attempts: int
    due_at: int
    created_at: int


def news(connection: Connection) -> bool:
    """Whether the feed has events that a webhook has neither queued nor passed."""
    behind = connection.scalar(select(func.min(webhooks.table.c.position)).where(webhooks.table.c.status != "deleted"))
    return behind is not None and (connection.scalar(_LAST) or 0) > behind


def queue_news(connection: Connection, encode: Encode, now: int, *, limit: int) -> None:
    """Queue the next events of the feed, at most `limit`, for the webhooks that want them."""
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
    # An event that a reorganisation of the chain took back and brought again was queued already.
    upsert_all(connection, table, rows, keys=["delivery_id"], replace=False)
    last = events[-1].position
    passed = update(webhooks.table).where(webhooks.table.c.position < last, webhooks.table.c.status != "deleted")
    connection.execute(passed.values(position=last))


def is_news(event: FeedEvent, now: int) -> bool:
    """Whether an event that is new in the feed may be one that happened lately.

    One of which the chain tells no time, which then is 0, always may.
    """
    return event.timestamp == 0 or event.timestamp >= now - LIFETIME


def _is_for(webhook: WebhookRecord, event: FeedEvent, now: int) -> bool:
    """Whether an event is to be queued for a webhook.

    A webhook gets what happens after its registration, however late it is indexed. Its position in the feed alone
    does not tell: a rebuilding adds old events behind it. The time alone does not either: the chain's clock may run
    behind this service's, as Solana's once did by half an hour. So time only excludes what happened a whole day
    before. That is nothing fresh, and all that the feed, which keeps events for a day at least, had deleted by then.
    """
    if event.org != webhook.org or not webhook.wants(event.type) or not is_news(event, now):
        return False
    return event.timestamp == 0 or event.timestamp >= webhook.created_at - _TOLERANCE


def delivery_of(webhook: WebhookRecord, event: FeedEvent, body: str, now: int) -> DeliveryRecord:
    """Return the delivery of an event to a webhook, of which there is one only."""
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


def due_webhooks(connection: Connection, now: int) -> list[str]:
    """Return the ids of the enabled webhooks to which something is to be sent now."""
    return list(connection.scalars(_DUE, {"now": now}))


def next_delivery(connection: Connection, webhook_id: str, now: int) -> DeliveryRecord | None:
    """Return what is to be sent to the webhook next.

    All deliveries with equally many failed attempts are a round, which is a queue of its own: of each only the oldest
    event may be sent. So the n-th attempts are made in the order of the events, whatever the clock does.
    """
    heads = [_record(row) for row in connection.execute(_HEADS, {"webhook": webhook_id})]
    due = [head for head in heads if head.due_at <= now]
    return min(due, key=lambda head: (head.due_at, head.position), default=None)


def retry_at(failed: int, now: int) -> int:
    """Return when to try again what has failed so many times, the last time now."""
    return now + DELAYS[min(failed, len(DELAYS)) - 1]


def queue_again(connection: Connection, delivery_id: str, now: int) -> None:
    """Queue one delivery again, in the place of its event."""
    mine = update(table).where(table.c.delivery_id == delivery_id)
    connection.execute(mine.values(status="pending", attempts=0, due_at=now, created_at=now))


def replay(connection: Connection, deliveries: Sequence[DeliveryRecord], moment: int) -> None:
    """Queue deliveries, again where they were queued before, but at this very moment: that is what was done already."""
    mine = table.c.delivery_id.in_([one.delivery_id for one in deliveries])
    done = set(connection.scalars(select(table.c.delivery_id).where(mine, table.c.created_at == moment)))
    rows = [columns_of(one) for one in deliveries if one.delivery_id not in done]
    upsert_all(connection, table, rows, keys=["delivery_id"])


def restart(connection: Connection, webhook_id: str, now: int, *, limit: int) -> bool:
    """Give at most `limit` queued deliveries their attempts again, the first one now.

    Returns whether there may be more. Those that failed most often come first, of these the oldest events: they may be
    sent before the next ones follow.
    """
    failed = connection.scalars(_FAILED, {"webhook": webhook_id, "most": limit}).all()
    connection.execute(update(table).where(table.c.delivery_id.in_(failed)).values(attempts=0, due_at=now))
    return len(failed) == limit


def events_between(connection: Connection, webhook: WebhookRecord, start: int, end: int, limit: int) -> list[FeedEvent]:
    """Return the events of a range of time, `end` excluded, that the webhook is subscribed to; at most `limit`."""
    mine = [feed.c.org == webhook.org, feed.c.timestamp >= start, feed.c.timestamp < end]
    if webhooks.ALL_EVENTS not in webhook.events:
        mine.append(feed.c.type.in_(webhook.events))
    rows = connection.execute(select(feed).where(*mine).order_by(feed.c.timestamp, feed.c.position).limit(limit))
    return [FeedEvent(**row._mapping) for row in rows]  # noqa: SLF001


def delivery(connection: Connection, webhook_id: str, delivery_id: str) -> DeliveryRecord | None:
    """Return one delivery of a webhook."""
    query = select(table).where(table.c.webhook_id == webhook_id, table.c.delivery_id == delivery_id)
    row = connection.execute(query).one_or_none()
    return None if row is None else _record(row)


def deliveries(
    connection: Connection, webhook_id: str, *, status: str | None = None, limit: int = 20, cursor: str | None = None
) -> RecordPage[DeliveryRecord]:
    """Return a webhook's deliveries, the newest event first. Raises `InvalidCursorError`."""
    chosen = _LISTING if status is None else _LISTING_OF_STATUS
    parameters = {"webhook": webhook_id, "status": status}
    rows, more, following = fetch_page(connection, chosen, parameters, limit=limit, cursor=cursor)
    return RecordPage([_record(row) for row in rows], more, following)


def _record(row: Row[Any]) -> DeliveryRecord:
    return DeliveryRecord(**row._mapping)  # noqa: SLF001


_OF_WEBHOOK = select(table).where(table.c.webhook_id == bindparam("webhook"))
_LISTING, _LISTING_OF_STATUS = (
    listing(query, time=table.c.position, key=table.c.delivery_id)
    for query in (_OF_WEBHOOK, _OF_WEBHOOK.where(table.c.status == bindparam("status")))
)
_LAST = select(func.max(feed.c.position))
_DUE = select(webhooks.table.c.webhook_id).where(
    webhooks.table.c.status == "enabled",
    exists().where(
        table.c.webhook_id == webhooks.table.c.webhook_id,
        table.c.status == "pending",
        table.c.due_at <= bindparam("now"),
    ),
)


def _round(failed: int) -> Select[Any]:
    """Return the query of what is queued for a webhook after so many failed attempts, in the order of the events."""
    mine = _OF_WEBHOOK.where(table.c.status == "pending", table.c.attempts == failed)
    return mine.order_by(table.c.position, table.c.delivery_id)


_HEADS = union_all(*(select(_round(failed).limit(1).subquery()) for failed in range(MAX_ATTEMPTS)))
_FAILED = union_all(
    *(
        select(_round(failed).with_only_columns(table.c.delivery_id).limit(bindparam("most")).subquery())
        for failed in range(MAX_ATTEMPTS, 0, -1)
    )
).limit(bindparam("most"))
