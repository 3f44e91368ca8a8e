"""Webhooks: the receivers of events, and the outcome of each delivery."""

from urllib.parse import urlsplit

from starlette.responses import Response

from app.access.auth import OPERATORS, READERS
from app.api.fields import EmptyBody, Page
from app.core.event_catalogue import EVENTS
from app.core.timestamps import parse_iso_ms
from app.dashboard.forms.submit_once import once
from app.dashboard.pages import View, action, page
from app.store.webhooks import ALL_EVENTS
from app.webhooks import deliveries
from app.webhooks import service as webhooks
from app.webhooks.models import CreateWebhook, Delivery, ListDeliveries, UpdateWebhook, WebhookWithSecret

#: A delivery counts as due if its next attempt is at most this many milliseconds away.
_SOON = 10_000
_PATH = ("developers", "webhooks")


@page("/developers/webhooks", roles=READERS)
async def show_all(view: View) -> Response:
    """Show the webhooks."""
    found = await webhooks.page(view.service, view.principal, Page(limit=100))
    return view.render("webhooks.html", webhooks=found.data, events=sorted(EVENTS), every=ALL_EVENTS)


@action("/developers/webhooks", roles=OPERATORS, back=show_all, step_up=True)
async def create(view: View) -> Response:
    """Register a webhook, and show its secret. No other page shows it."""
    body = view.body(CreateWebhook, events=view.chosen("events"))
    made = await once(view, body, WebhookWithSecret, view.asks(webhooks.create, body), secret=True)
    return await _show(view, made.webhook_id, made=made)


@page("/developers/webhooks/{webhook_id}", roles=READERS)
async def show(view: View) -> Response:
    """Show a webhook with its deliveries. If a filter is invalid, show all deliveries with a message."""
    return await _show(view, view.path("webhook_id"))


async def _show(
    view: View, webhook_id: str, *, made: WebhookWithSecret | None = None, ping: Delivery | None = None
) -> Response:
    service, by = view.service, view.principal
    query = view.understood(ListDeliveries)
    found = await webhooks.get(service, by, webhook_id)
    log = await deliveries.page(service, by, webhook_id, query)
    given = {} if query.status is None else {"status": query.status}
    return view.render(
        "webhook.html",
        webhook=found,
        host=urlsplit(found.url).hostname,
        deliveries=log.data,
        given=given,
        address=view.url(*_PATH, webhook_id, **given),
        following=view.url(*_PATH, webhook_id, **{**given, "cursor": log.next_cursor}) if log.next_cursor else None,
        made=made,
        ping=ping,
        first=query.cursor is None,
        waiting=query.cursor is None and found.status == "enabled" and any(_is_due(one, view.now) for one in log.data),
    )


def _is_due(delivery: Delivery, now: int) -> bool:
    """Return True if a delivery will be sent soon enough for the open page to wait for its outcome."""
    if delivery.status != "pending":
        return False
    return delivery.next_attempt_at is None or parse_iso_ms(delivery.next_attempt_at) < now + _SOON


@action("/developers/webhooks/{webhook_id}/ping", roles=OPERATORS, back=show)
async def ping(view: View) -> Response:
    """Send a ping to a webhook, and show its outcome."""
    webhook_id = view.path("webhook_id")
    sent = await deliveries.ping(view.service, view.principal, webhook_id)
    return await _show(view, webhook_id, ping=sent)


@action("/developers/webhooks/{webhook_id}/enable", roles=OPERATORS, back=show)
async def enable(view: View) -> str:
    """Enable a webhook that was paused after repeated failures."""
    webhook_id = view.path("webhook_id")
    body = UpdateWebhook(status="enabled")
    await webhooks.update(view.service, view.principal, view.claim(), webhook_id, body)
    return view.url(*_PATH, webhook_id, done="webhook-enabled")


@action("/developers/webhooks/{webhook_id}/secret", roles=OPERATORS, back=show, step_up=True)
async def rotate(view: View) -> Response:
    """Replace the signing secret, and show the new one. No other page shows it."""
    webhook_id, body = view.path("webhook_id"), view.body(EmptyBody)
    made = await once(view, body, WebhookWithSecret, view.asks(webhooks.rotate, webhook_id), secret=True)
    return await _show(view, webhook_id, made=made)


@action("/developers/webhooks/{webhook_id}/delete", roles=OPERATORS, back=show, step_up=True)
async def delete(view: View) -> str:
    """Delete a webhook with its queue and its log."""
    await webhooks.delete(view.principal, view.claim(), view.path("webhook_id"))
    return view.url(*_PATH, done="webhook-deleted")


@action("/developers/webhooks/{webhook_id}/deliveries/{delivery_id}/resend", roles=OPERATORS, back=show)
async def resend(view: View) -> str:
    """Queue a delivery again."""
    webhook_id = view.path("webhook_id")
    await deliveries.resend(view.principal, view.claim(), webhook_id, view.path("delivery_id"))
    return view.url(*_PATH, webhook_id, done="resent")
