"""Routes of webhooks and their deliveries."""

from app.access.auth import OPERATORS, READERS
from app.api.fields import EmptyBody, Page
from app.api.operation import Call, operation
from app.webhooks import deliveries
from app.webhooks import service as webhooks
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


@operation("POST /v1/webhooks", roles=OPERATORS, errors=("too_many_webhooks",), secret=True)
async def create_webhook(call: Call, body: CreateWebhook) -> WebhookWithSecret:
    """Register a webhook.

    The webhook receives events that the service stores from now on. Use their `event_id` to recognise duplicates. The
    header `Service-Signature` is the lower-case hex HMAC-SHA256 of the body, keyed with `signing_secret`. Only this
    response, and its replays under the same idempotency key, contain the secret. The headers of Standard Webhooks
    (`webhook-id`, `webhook-timestamp`, `webhook-signature`) use the same secret. A 2xx response within 5 seconds
    acknowledges an event. Otherwise the event is sent again after 1 minute, 5 minutes, 30 minutes and 2 hours. After
    five failed attempts at one event, the webhook is `degraded`.
    """
    return await webhooks.create(call.service, call.principal, call.claim, body)


@operation("GET /v1/webhooks", roles=READERS)
async def list_webhooks(call: Call, query: Page) -> WebhookPage:
    """List webhooks, newest first."""
    return await webhooks.page(call.service, call.principal, query)


@operation("GET /v1/webhooks/{webhook_id}", roles=READERS, errors=_UNKNOWN)
async def get_webhook(call: Call) -> Webhook:
    """Get a webhook."""
    return await webhooks.get(call.service, call.principal, call.path("webhook_id"))


@operation("PATCH /v1/webhooks/{webhook_id}", roles=OPERATORS, errors=_UNKNOWN)
async def update_webhook(call: Call, body: UpdateWebhook) -> Webhook:
    """Update a webhook.

    Set `status` to `enabled` to end the pause of a degraded webhook. Its queue is then sent immediately, in order.
    """
    return await webhooks.update(call.service, call.principal, call.claim, call.path("webhook_id"), body)


@operation("DELETE /v1/webhooks/{webhook_id}", roles=OPERATORS, errors=_UNKNOWN)
async def delete_webhook(call: Call, _body: EmptyBody) -> Webhook:
    """Delete a webhook with its queue and its log."""
    return await webhooks.delete(call.principal, call.claim, call.path("webhook_id"))


@operation("POST /v1/webhooks/{webhook_id}/test", roles=OPERATORS, errors=_UNKNOWN)
async def ping_webhook(call: Call, _body: EmptyBody) -> Delivery:
    """Send a `ping`.

    The ping is sent immediately and is not retried, regardless of the webhook's status and subscriptions. The response
    has the outcome. A failure does not degrade the webhook. On each node, one `ping` of a webhook can
    run at a time, three of a key or person, and four of an organisation. Further requests get `rate_limited`.
    """
    return await deliveries.ping(call.service, call.principal, call.path("webhook_id"))


@operation("POST /v1/webhooks/{webhook_id}/rotate-secret", roles=OPERATORS, errors=_UNKNOWN, secret=True)
async def rotate_webhook_secret(call: Call, _body: EmptyBody) -> WebhookWithSecret:
    """Rotate the signing secret.

    From now on, `Service-Signature` uses the new secret. For 24 hours or until the next rotation,
    `Service-Signature-Previous` uses the old secret, and `webhook-signature` lists a signature by each secret.
    """
    return await webhooks.rotate(call.service, call.principal, call.claim, call.path("webhook_id"))


@operation("GET /v1/webhooks/{webhook_id}/deliveries", roles=READERS, errors=_UNKNOWN)
async def list_deliveries(call: Call, query: ListDeliveries) -> DeliveryPage:
    """List a webhook's deliveries, newest event first.

    Deliveries are kept for 90 days, delivered or not. Each delivery lists its newest 20 attempts.
    """
    return await deliveries.page(call.service, call.principal, call.path("webhook_id"), query)


@operation(
    "POST /v1/webhooks/{webhook_id}/deliveries/{delivery_id}/resend",
    roles=OPERATORS,
    errors=("webhook_not_found", "delivery_not_found"),
)
async def resend_delivery(call: Call, _body: EmptyBody) -> Delivery:
    """Send one delivery again, with the same body and `event_id`.

    The delivery is queued, so a degraded webhook gets it only after the pause has ended.
    """
    return await deliveries.resend(call.principal, call.claim, call.path("webhook_id"), call.path("delivery_id"))


@operation("POST /v1/webhooks/{webhook_id}/deliveries/replay", roles=OPERATORS, errors=_UNKNOWN)
async def replay_events(call: Call, body: ReplayEvents) -> Replay:
    """Send the events of a period again, at most 10,000.

    A period with more events is refused. The webhook gets all events that it is subscribed to now, even if it received
    them before.
    """
    return await deliveries.replay(call.service, call.principal, call.claim, call.path("webhook_id"), body)
