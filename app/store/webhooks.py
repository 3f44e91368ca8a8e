"""Webhooks: where an organisation's events are sent. Times are Unix milliseconds."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import (
    JSON,
    BigInteger,
    Column,
    Connection,
    Index,
    Row,
    String,
    Table,
    bindparam,
    func,
    insert,
    select,
    update,
)

from app.store.columns import columns_of, metadata
from app.store.paging import RecordPage, fetch_page, listing
from app.store.read_tables import feed

ALL_EVENTS = "*"
"""The subscription to events of every type."""

table = Table(
    "webhooks",
    metadata,
    Column("webhook_id", String, primary_key=True),
    Column("org", String, nullable=False),
    Column("url", String, nullable=False),
    Column("events", JSON, nullable=False),
    Column("status", String, nullable=False, comment="enabled, degraded or deleted"),
    Column("secret", String, nullable=False, comment="encrypted"),
    Column("old_secret", String, comment="encrypted; the one before the last rotation"),
    Column("old_secret_until", BigInteger),
    Column("position", BigInteger, nullable=False, comment="of the last event of the feed that was queued or passed"),
    Column("created_at", BigInteger, nullable=False),
    Column("updated_at", BigInteger, nullable=False),
    # Idempotency keys of the requests that made the two secrets: one repeated after a crash gets its secret again.
    Column("created_under", String),
    Column("rotated_under", String),
    Index("webhooks_newest", "org", "created_at", "webhook_id"),
    Index("webhooks_by_status", "status"),
)
_LIVING = table.c.status != "deleted"
_LISTING = listing(
    select(table).where(table.c.org == bindparam("org"), _LIVING), time=table.c.created_at, key=table.c.webhook_id
)


@dataclass(frozen=True, slots=True)
class WebhookRecord:
    """One webhook. `secret` and `old_secret` are encrypted; the old one signs, too, until `old_secret_until`."""

    webhook_id: str
    org: str
    url: str
    events: Sequence[str]
    status: str
    secret: str
    old_secret: str | None
    old_secret_until: int | None
    position: int
    created_at: int
    updated_at: int
    created_under: str | None
    rotated_under: str | None

    def wants(self, event: str) -> bool:
        """Whether it is subscribed to events of this type."""
        return ALL_EVENTS in self.events or event in self.events


def insert_webhook(connection: Connection, webhook: WebhookRecord) -> None:
    """Store a new webhook, which gets the events that are stored from now on."""
    last = connection.scalar(select(func.max(feed.c.position))) or 0
    connection.execute(insert(table).values(columns_of(webhook) | {"position": last}))


def webhook(connection: Connection, org: str, webhook_id: str) -> WebhookRecord | None:
    """Return the organisation's webhook with this id, a deleted one too while it is remembered."""
    return _one(connection, table.c.org == org, table.c.webhook_id == webhook_id)


def webhook_to_serve(connection: Connection, webhook_id: str) -> WebhookRecord | None:
    """Return the webhook if events are to be sent to it now."""
    return _one(connection, table.c.webhook_id == webhook_id, table.c.status == "enabled")


def webhook_created_under(connection: Connection, org: str, key: str) -> WebhookRecord | None:
    """Return the newest webhook that was made by a request with this idempotency key."""
    query = select(table).where(table.c.org == org, table.c.created_under == key, _LIVING)
    row = connection.execute(query.order_by(table.c.created_at.desc()).limit(1)).one_or_none()
    return None if row is None else _record(row)


def webhooks(
    connection: Connection, org: str, *, limit: int = 20, cursor: str | None = None
) -> RecordPage[WebhookRecord]:
    """Return the organisation's webhooks, newest first. Raises `InvalidCursorError`."""
    rows, more, following = fetch_page(connection, _LISTING, {"org": org}, limit=limit, cursor=cursor)
    return RecordPage([_record(row) for row in rows], more, following)


def count_webhooks(connection: Connection, org: str) -> int:
    """Return how many webhooks the organisation has."""
    return connection.scalar(select(func.count()).select_from(table).where(table.c.org == org, _LIVING)) or 0


def listening(connection: Connection) -> list[WebhookRecord]:
    """Return the webhooks of all organisations whose queues grow; that of a degraded one does."""
    return [_record(row) for row in connection.execute(select(table).where(_LIVING))]


def change_webhook(connection: Connection, webhook_id: str, **values: Any) -> None:
    """Set columns of a webhook."""
    connection.execute(update(table).where(table.c.webhook_id == webhook_id).values(values))


def mark_degraded(connection: Connection, webhook_id: str, now: int) -> bool:
    """Pause an enabled webhook; false when it is none."""
    mine = update(table).where(table.c.webhook_id == webhook_id, table.c.status == "enabled")
    return connection.execute(mine.values(status="degraded", updated_at=now)).rowcount == 1


def _one(connection: Connection, *conditions: Any) -> WebhookRecord | None:
    row = connection.execute(select(table).where(*conditions)).one_or_none()
    return None if row is None else _record(row)


def _record(row: Row[Any]) -> WebhookRecord:
    return WebhookRecord(**row._mapping)  # noqa: SLF001
