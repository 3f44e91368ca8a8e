"""What an organisation does with its webhooks."""

from sqlalchemy import Connection

from app.access.keyring import Principal
from app.api.fields import Page
from app.core.errors import BusinessError, NotFoundError
from app.core.identifiers import random_id
from app.core.timestamps import iso_ms
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
from app.submission.context import Service
from app.submission.idempotency import Claim
from app.webhooks.catalogue import body_of
from app.webhooks.courier import Courier
from app.webhooks.models import CreateWebhook, UpdateWebhook, Webhook, WebhookPage, WebhookWithSecret
from app.webhooks.signing import ROTATION_OVERLAP, new_secret
from app.webhooks.urls import UrlRules

MAX_WEBHOOKS = 50
"""Webhooks of one organisation."""
_BATCH = 200
"""Events or deliveries of one transaction, while which nothing else runs."""


def find(conn: Connection, org: str, webhook_id: str) -> WebhookRecord:
    """Return the organisation's webhook. Raises ``webhook_not_found``."""
    found = webhook(conn, org, webhook_id)
    if found is None or found.status == "deleted":
        raise NotFoundError("webhook_not_found")
    return found


async def get(service: Service, principal: Principal, webhook_id: str) -> Webhook:
    """Return a webhook. Raises ``webhook_not_found``."""
    return _answer(service, await service.db.read(lambda conn: find(conn, principal.org, webhook_id)))


async def page(service: Service, principal: Principal, query: Page) -> WebhookPage:
    """Return one page of webhooks, newest first."""
    found = await service.db.read(lambda conn: webhooks(conn, principal.org, limit=query.limit, cursor=query.cursor))
    return WebhookPage(
        data=[_answer(service, one) for one in found.data], has_more=found.has_more, next_cursor=found.next_cursor
    )


async def create(service: Service, principal: Principal, claim: Claim, body: CreateWebhook) -> WebhookWithSecret:
    """Register a webhook. Raises ``invalid_request`` for its URL, and ``too_many_webhooks``."""
    _check_url(service, body.url)
    org, courier = principal.org, service.part(Courier)
    made = await claim.earlier(lambda conn, key: webhook_created_under(conn, org, key))
    if made is not None:
        return _answer_with_secret(service, made)
    now = courier.clock()
    new = WebhookRecord(
        webhook_id=random_id("wh_"),
        org=org,
        url=body.url,
        events=body.events,
        status="enabled",
        secret=courier.hide(new_secret()),
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

    await claim.store(store)
    return _answer_with_secret(service, new)


async def update(service: Service, principal: Principal, claim: Claim, webhook_id: str, body: UpdateWebhook) -> Webhook:
    """Change a webhook; enabled anew, its queue is sent at once and in order.

    What happened before another choice of events is queued by the one before. A repetition after a crash changes
    nothing: others may have changed it since. Raises ``invalid_request`` for its URL and ``webhook_not_found``.
    """
    if body.url is not None:
        _check_url(service, body.url)
    now, again = service.part(Courier).clock(), claim.repeats
    changes = body.model_dump(include={"url", "events", "status"}, exclude_none=True)
    if not again:
        await _work_off(service, principal.org, webhook_id, body, now)

    def store(conn: Connection) -> WebhookRecord:
        found = find(conn, principal.org, webhook_id)
        if again:
            return found
        while body.events is not None and has_new_events(conn):
            queue_new_events(conn, body_of, now, limit=_BATCH)
        change_webhook(conn, webhook_id, updated_at=now, **changes)
        while body.status is not None and restart(conn, webhook_id, now, limit=_BATCH):
            pass
        return find(conn, principal.org, webhook_id)

    changed = await claim.store(store)
    return _answer(service, changed)


async def _work_off(service: Service, org: str, webhook_id: str, body: UpdateWebhook, now: int) -> None:
    """Do in batches what a change asks for, so that its own transaction has only what came since to do.

    Raises ``webhook_not_found``.
    """
    await service.db.read(lambda conn: find(conn, org, webhook_id))
    while body.events is not None and await service.db.read(has_new_events):
        await service.db.write(lambda conn: queue_new_events(conn, body_of, now, limit=_BATCH))
    while body.status is not None and await service.db.write(lambda conn: restart(conn, webhook_id, now, limit=_BATCH)):
        pass


async def delete(service: Service, principal: Principal, claim: Claim, webhook_id: str) -> Webhook:
    """Delete a webhook with its secrets, its queue and its log. Raises ``webhook_not_found``."""
    now, again = service.part(Courier).clock(), claim.repeats

    def store(conn: Connection) -> WebhookRecord:
        found = webhook(conn, principal.org, webhook_id)
        if found is not None and found.status == "deleted" and again:
            return found
        find(conn, principal.org, webhook_id)
        values = {"status": "deleted", "secret": "", "old_secret": None, "old_secret_until": None}
        change_webhook(conn, webhook_id, updated_at=now, **values)
        deleted = webhook(conn, principal.org, webhook_id)
        assert deleted is not None
        return deleted

    deleted = await claim.store(store)
    return _answer(service, deleted)


async def rotate(service: Service, principal: Principal, claim: Claim, webhook_id: str) -> WebhookWithSecret:
    """Give a webhook a new secret; the one before signs, too, for 24 hours. Raises ``webhook_not_found``."""
    courier, again, key = service.part(Courier), claim.repeats, claim.key
    now, secret = courier.clock(), courier.hide(new_secret())

    def store(conn: Connection) -> WebhookRecord:
        found = find(conn, principal.org, webhook_id)
        if again and key is not None and found.rotated_under == key:
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
        return find(conn, principal.org, webhook_id)

    rotated = await claim.store(store)
    return _answer_with_secret(service, rotated)


def _check_url(service: Service, url: str) -> None:
    UrlRules(local=service.settings.cluster == "localnet").check(url)


def _answer(service: Service, found: WebhookRecord) -> Webhook:
    until = found.old_secret_until
    overlaps = until is not None and service.part(Courier).clock() < until
    return Webhook.model_validate(
        {
            "webhook_id": found.webhook_id,
            "id": found.webhook_id,
            "url": found.url,
            "events": list(found.events),
            "status": found.status,
            "created_at": iso_ms(found.created_at),
            "updated_at": iso_ms(found.updated_at),
            "previous_secret_expires_at": iso_ms(until) if until is not None and overlaps else None,
        }
    )


def _answer_with_secret(service: Service, found: WebhookRecord) -> WebhookWithSecret:
    shown = _answer(service, found).model_dump()
    return WebhookWithSecret(**shown, signing_secret=service.part(Courier).secret(found))
