"""Webhooks: the URLs that receive an organisation's events. Times are Unix milliseconds."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import (
    Connection,
    Index,
    bindparam,
    func,
    insert,
    select,
    update,
)

from app.core.pages import RecordPage
from app.database.paging import fetch_page, listing
from app.database.record_tables import table_of
from app.database.records import columns_of, fetch_all, fetch_one
from app.store.feed import last_position

ALL_EVENTS = "*"
"""The subscription to events of every type."""


@dataclass(frozen=True, slots=True)
class WebhookRecord:
    """One webhook. Both secrets are encrypted. Until `old_secret_until`, the old secret signs deliveries, too."""

    webhook_id: str
    org: str
    url: str
    events: Sequence[str]
    status: str
    """The status: `enabled`, `degraded` or `deleted`."""
    secret: str
    """The signing secret, encrypted."""
    old_secret: str | None
    """The secret from before the last rotation, encrypted."""
    old_secret_until: int | None
    position: int
    """Feed position of the last queued or skipped event."""
    created_at: int
    updated_at: int
    created_under: str | None
    rotated_under: str | None

    def wants(self, event: str) -> bool:
        """Return True if the webhook is subscribed to this type of event."""
        return ALL_EVENTS in self.events or event in self.events


table = table_of(
    "webhooks",
    WebhookRecord,
    Index("webhooks_newest", "org", "created_at", "webhook_id"),
    Index("webhooks_by_status", "status"),
    key=["webhook_id"],
)
_LIVING = table.c.status != "deleted"
_LISTING = listing(
    select(table).where(table.c.org == bindparam("org"), _LIVING), time=table.c.created_at, key=table.c.webhook_id
)


def insert_webhook(connection: Connection, webhook: WebhookRecord) -> None:
    """Store a new webhook. The webhook receives the events that are stored from now on."""
    connection.execute(insert(table).values(columns_of(webhook) | {"position": last_position(connection)}))


def webhook(connection: Connection, org: str, webhook_id: str) -> WebhookRecord | None:
    """Return the organisation's webhook with this id, including a deleted one while it is kept, or None."""
    return fetch_one(
        connection, WebhookRecord, select(table).where(table.c.org == org, table.c.webhook_id == webhook_id)
    )


def webhook_to_serve(connection: Connection, webhook_id: str) -> WebhookRecord | None:
    """Return the webhook if it is enabled, otherwise None."""
    query = select(table).where(table.c.webhook_id == webhook_id, table.c.status == "enabled")
    return fetch_one(connection, WebhookRecord, query)


def webhook_created_under(connection: Connection, org: str, key: str) -> WebhookRecord | None:
    """Return the newest webhook requested under this idempotency key that is not deleted, or None."""
    query = select(table).where(table.c.org == org, table.c.created_under == key, _LIVING)
    return fetch_one(connection, WebhookRecord, query.order_by(table.c.created_at.desc()).limit(1))


def webhooks(
    connection: Connection, org: str, *, limit: int = 20, cursor: str | None = None
) -> RecordPage[WebhookRecord]:
    """Return the organisation's webhooks, newest first. Raises `InvalidCursorError`."""
    return fetch_page(connection, WebhookRecord, _LISTING, {"org": org}, limit=limit, cursor=cursor)


def count_webhooks(connection: Connection, org: str) -> int:
    """Return the number of the organisation's webhooks, without deleted ones."""
    return connection.scalar(select(func.count()).select_from(table).where(table.c.org == org, _LIVING)) or 0


def listening(connection: Connection) -> list[WebhookRecord]:
    """Return the webhooks of all organisations for which events are queued, including degraded webhooks."""
    return fetch_all(connection, WebhookRecord, select(table).where(_LIVING))


def change_webhook(connection: Connection, webhook_id: str, **values: Any) -> None:
    """Set columns of a webhook."""
    connection.execute(update(table).where(table.c.webhook_id == webhook_id).values(values))


def mark_degraded(connection: Connection, webhook_id: str, now: int) -> bool:
    """Mark an enabled webhook as degraded, which pauses it. Return False if it is not enabled."""
    mine = update(table).where(table.c.webhook_id == webhook_id, table.c.status == "enabled")
    return connection.execute(mine.values(status="degraded", updated_at=now)).rowcount == 1
