"""Use cases of webhooks."""

from urllib.parse import urlsplit

from sqlalchemy import Connection

from app.access.keyring import Principal
from app.api.fields import Page
from app.core.errors import BusinessError, NotFoundError
from app.core.identifiers import random_id
from app.core.timestamps import now_ms
from app.store.audit import append
from app.store.deliveries import has_new_events, queue_new_events, restart
from app.store.webhooks import (
    WebhookRecord,
    change_webhook,
    count_webhooks,
    insert_webhook,
    webhook,
    webhook_created_under,
    webhooks,
)
from app.submission.claim import Claim
from app.submission.context import Service
from app.webhooks._signing import ROTATION_OVERLAP, new_secret
from app.webhooks.delivery_client import DeliveryClient, body_of
from app.webhooks.models import CreateWebhook, UpdateWebhook, Webhook, WebhookPage, WebhookWithSecret

MAX_WEBHOOKS = 50
"""Maximum number of webhooks of one organisation."""
_BATCH = 200
"""Number of events that one transaction queues, or of deliveries that it resets.

It is small, so that payments do not wait long.
"""


def find(conn: Connection, org: str, webhook_id: str) -> WebhookRecord:
    """Return the organisation's webhook. Raises ``webhook_not_found``."""
    found = webhook(conn, org, webhook_id)
    if found is None or found.status == "deleted":
        raise NotFoundError("webhook_not_found")
    return found


async def get(service: Service, principal: Principal, webhook_id: str) -> Webhook:
    """Return a webhook. Raises ``webhook_not_found``."""
    return _answer(await service.db.read(lambda conn: find(conn, principal.org, webhook_id)))


async def page(service: Service, principal: Principal, query: Page) -> WebhookPage:
    """Return one page of webhooks, newest first."""
    found = await service.db.read(lambda conn: webhooks(conn, principal.org, limit=query.limit, cursor=query.cursor))
    return WebhookPage.showing(found, _answer)


async def create(service: Service, principal: Principal, claim: Claim, body: CreateWebhook) -> WebhookWithSecret:
    """Register a webhook. Raises ``invalid_request`` if its URL is not allowed, and ``too_many_webhooks``."""
    org, delivery_client = principal.org, service.part(DeliveryClient)
    delivery_client.rules.check(body.url)
    made = await claim.earlier(lambda conn, key: webhook_created_under(conn, org, key))
    if made is not None:
        return _with_secret(delivery_client, made)
    now = now_ms()
    new = WebhookRecord(
        webhook_id=random_id("wh_"),
        org=org,
        url=body.url,
        events=body.events,
        status="enabled",
        secret=delivery_client.hide(new_secret()),
        old_secret=None,
        old_secret_until=None,
        position=0,
        created_at=now,
        updated_at=now,
        created_under=claim.key,
        rotated_under=None,
    )

    def store(conn: Connection) -> None:
        if count_webhooks(conn, org) >= MAX_WEBHOOKS:
            raise BusinessError("too_many_webhooks")
        insert_webhook(conn, new)
        # Only the host is recorded, because the path or query may contain a secret of the receiver.
        host = urlsplit(body.url).hostname
        append(conn, principal.entry("webhook.create", new.webhook_id, host=host, events=body.events))

    await claim.store(store)
    return _with_secret(delivery_client, new)


async def update(service: Service, principal: Principal, claim: Claim, webhook_id: str, body: UpdateWebhook) -> Webhook:
    """Change a webhook. The status `enabled` ends a pause and restarts the webhook's queue.

    Events stored before a change to `events` are queued according to the old subscriptions. A request repeated after a
    crash changes nothing, because the webhook may have been changed since. Raises ``invalid_request`` for the URL, and
    ``webhook_not_found``.
    """
    if body.url is not None:
        service.part(DeliveryClient).rules.check(body.url)
    now, org = now_ms(), principal.org
    changes = body.model_dump(include={"url", "events", "status"}, exclude_none=True)

    def prepare(conn: Connection) -> bool:
        """Do one batch of the work that must precede the change. Returns True if there may be more."""
        find(conn, org, webhook_id)
        if body.events is not None and has_new_events(conn):
            queue_new_events(conn, body_of, now, limit=_BATCH)
            return True
        return body.status is not None and restart(conn, webhook_id, now, limit=_BATCH)

    def store(conn: Connection) -> WebhookRecord:
        if not claim.repeats:
            while prepare(conn):
                pass
            change_webhook(conn, webhook_id, updated_at=now, **changes)
            append(conn, principal.entry("webhook.update", webhook_id, fields=sorted(changes)))
        return find(conn, org, webhook_id)

    # Prepares in small transactions first, so that little remains in the transaction of the change.
    while not claim.repeats and await service.db.write(prepare):
        pass
    return _answer(await claim.store(store))


async def delete(principal: Principal, claim: Claim, webhook_id: str) -> Webhook:
    """Delete a webhook with its secrets, its queue and its log. Raises ``webhook_not_found``."""
    org, now = principal.org, now_ms()

    def store(conn: Connection) -> WebhookRecord:
        deleted = webhook(conn, org, webhook_id)
        if deleted is None or deleted.status != "deleted" or not claim.repeats:
            find(conn, org, webhook_id)
            values = {"status": "deleted", "secret": "", "old_secret": None, "old_secret_until": None}
            change_webhook(conn, webhook_id, updated_at=now, **values)
            append(conn, principal.entry("webhook.delete", webhook_id))
            deleted = webhook(conn, org, webhook_id)
        assert deleted is not None
        return deleted

    return _answer(await claim.store(store))


async def rotate(service: Service, principal: Principal, claim: Claim, webhook_id: str) -> WebhookWithSecret:
    """Give a webhook a new secret. The old secret also signs for 24 hours or until the next rotation.

    Raises ``webhook_not_found``.
    """
    delivery_client, key, now = service.part(DeliveryClient), claim.key, now_ms()
    secret = delivery_client.hide(new_secret())

    def store(conn: Connection) -> WebhookRecord:
        found = find(conn, principal.org, webhook_id)
        if claim.repeats and key is not None and found.rotated_under == key:
            return found
        change_webhook(
            conn,
            webhook_id,
            secret=secret,
            old_secret=found.secret,
            old_secret_until=now + ROTATION_OVERLAP,
            rotated_under=key,
            updated_at=now,
        )
        append(conn, principal.entry("webhook.rotate_secret", webhook_id))
        return find(conn, principal.org, webhook_id)

    return _with_secret(delivery_client, await claim.store(store))


def _previous_secret_expires_at(found: WebhookRecord) -> int | None:
    until = found.old_secret_until
    return until if until is not None and now_ms() < until else None


def _answer(found: WebhookRecord) -> Webhook:
    return Webhook.of(found, previous_secret_expires_at=_previous_secret_expires_at(found))


def _with_secret(delivery_client: DeliveryClient, found: WebhookRecord) -> WebhookWithSecret:
    until, secret = _previous_secret_expires_at(found), delivery_client.secret(found)
    return WebhookWithSecret.of(found, previous_secret_expires_at=until, signing_secret=secret)
