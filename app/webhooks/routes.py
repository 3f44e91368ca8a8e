"""Webhooks: registration, secrets, and the deliveries of events."""

from starlette.routing import Route

from app.access.auth import OPERATORS, READERS
from app.api.fields import EmptyBody, Page
from app.api.operation import Call, operation
from app.webhooks import deliveries, endpoints
from app.webhooks.models import (
    CreateWebhook,
    Delivery,
    DeliveryPage,
    ListDeliveries,
    Replay,
    ReplayEvents,
    UpdateWebhook,
    Webhook,
    WebhookPage,
    WebhookWithSecret,
)

_UNKNOWN = ("webhook_not_found",)


@operation(
    tag="webhooks",
    roles=OPERATORS,
    body=CreateWebhook,
    answer=WebhookWithSecret,
    errors=("too_many_webhooks",),
    changes=True,
    secret=True,
)
async def create_webhook(call: Call, body: CreateWebhook) -> WebhookWithSecret:
    """Register a webhook.

    It gets the events that happen from now on, each with an `event_id` by which a receiver knows one that it got
    before. The header `Service-Signature` is the lower-case hex HMAC-SHA256 of the body, keyed with `signing_secret`,
    which is shown this once. The headers of Standard Webhooks (`webhook-id`, `webhook-timestamp`,
    `webhook-signature`) are made with the same secret. An answer 2xx within 5 seconds acknowledges; else the event is
    sent again after 1 minute, 5 minutes, 30 minutes and 2 hours. After five failures the webhook is `degraded`.
    """
    return await endpoints.create(call.service, call.principal, call.claim, body)


@operation(tag="webhooks", roles=READERS, query=Page, answer=WebhookPage)
async def list_webhooks(call: Call, query: Page) -> WebhookPage:
    """List webhooks, newest first."""
    return await endpoints.page(call.service, call.principal, query)


@operation(tag="webhooks", roles=READERS, answer=Webhook, errors=_UNKNOWN)
async def get_webhook(call: Call) -> Webhook:
    """Get a webhook."""
    return await endpoints.get(call.service, call.principal, call.path("webhook_id"))


@operation(tag="webhooks", roles=OPERATORS, body=UpdateWebhook, answer=Webhook, errors=_UNKNOWN, changes=True)
async def update_webhook(call: Call, body: UpdateWebhook) -> Webhook:
    """Update a webhook.

    `status` = `enabled` ends the pause of a degraded one: what is queued is sent at once, in order.
    """
    return await endpoints.update(call.service, call.principal, call.claim, call.path("webhook_id"), body)


@operation(tag="webhooks", roles=OPERATORS, body=EmptyBody, answer=Webhook, errors=_UNKNOWN, changes=True)
async def delete_webhook(call: Call, _body: EmptyBody) -> Webhook:
    """Delete a webhook, with what it has queued and its log."""
    return await endpoints.delete(call.service, call.principal, call.claim, call.path("webhook_id"))


@operation(tag="webhooks", roles=OPERATORS, body=EmptyBody, answer=Delivery, errors=_UNKNOWN, changes=True)
async def ping_webhook(call: Call, _body: EmptyBody) -> Delivery:
    """Send a `ping`.

    It is sent once, at once, also to a degraded webhook and whatever it is subscribed to; the answer says what came of
    it. A failure counts for nothing. A webhook is sent one `ping` at a time, and an organisation's webhooks three;
    others are answered with `rate_limited`.
    """
    return await deliveries.ping(call.service, call.principal, call.path("webhook_id"))


@operation(
    tag="webhooks",
    roles=OPERATORS,
    body=EmptyBody,
    answer=WebhookWithSecret,
    errors=_UNKNOWN,
    changes=True,
    secret=True,
)
async def rotate_webhook_secret(call: Call, _body: EmptyBody) -> WebhookWithSecret:
    """Rotate the signing secret.

    `Service-Signature` is made with the new secret from now on. For 24 hours `Service-Signature-Previous` is made with
    the one before, and `webhook-signature` lists a signature by each.
    """
    return await endpoints.rotate(call.service, call.principal, call.claim, call.path("webhook_id"))


@operation(tag="webhooks", roles=READERS, query=ListDeliveries, answer=DeliveryPage, errors=_UNKNOWN)
async def list_deliveries(call: Call, query: ListDeliveries) -> DeliveryPage:
    """List a webhook's deliveries, the newest event first.

    They stay in the list for 90 days, also what was not delivered until then. Each has its newest attempts, at most 20.
    """
    return await deliveries.page(call.service, call.principal, call.path("webhook_id"), query)


@operation(
    tag="webhooks",
    roles=OPERATORS,
    body=EmptyBody,
    answer=Delivery,
    errors=("webhook_not_found", "delivery_not_found"),
    changes=True,
)
async def resend_delivery(call: Call, _body: EmptyBody) -> Delivery:
    """Send one delivery again, with the same body and `event_id`."""
    return await deliveries.resend(
        call.service, call.principal, call.claim, call.path("webhook_id"), call.path("delivery_id")
    )


@operation(tag="webhooks", roles=OPERATORS, body=ReplayEvents, answer=Replay, errors=_UNKNOWN, changes=True)
async def replay_events(call: Call, body: ReplayEvents) -> Replay:
    """Send the events of a range of time, at most 10,000.

    Those that the webhook is subscribed to now, whether it got them before or not.
    """
    return await deliveries.replay(call.service, call.principal, call.claim, call.path("webhook_id"), body)


_ONE = "/v1/webhooks/{webhook_id}"
routes = [
    Route("/v1/webhooks", create_webhook, methods=["POST"]),
    Route("/v1/webhooks", list_webhooks, methods=["GET"]),
    Route(_ONE, get_webhook, methods=["GET"]),
    Route(_ONE, update_webhook, methods=["PATCH"]),
    Route(_ONE, delete_webhook, methods=["DELETE"]),
    Route(f"{_ONE}/test", ping_webhook, methods=["POST"]),
    Route(f"{_ONE}/rotate-secret", rotate_webhook_secret, methods=["POST"]),
    Route(f"{_ONE}/deliveries", list_deliveries, methods=["GET"]),
    Route(f"{_ONE}/deliveries/{{delivery_id}}/resend", resend_delivery, methods=["POST"]),
    Route(f"{_ONE}/deliveries/replay", replay_events, methods=["POST"]),
]
