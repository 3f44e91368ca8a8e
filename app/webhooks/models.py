"""Requests and responses of webhooks and their deliveries."""

from typing import Annotated, Literal

from pydantic import (
    AfterValidator,
    Field,
    StringConstraints,
    WithJsonSchema,
)
from pydantic_core import PydanticCustomError

from app.api.fields import (
    Body,
    DeliveryId,
    End,
    EventId,
    IdempotencyKey,
    ListResponse,
    Moment,
    Page,
    ReadFrom,
    ResponseBody,
    Time,
    WebhookId,
)
from app.api.partial_body import UpdateBody
from app.events.catalogue import EVENTS
from app.store.webhooks import ALL_EVENTS

WebhookStatus = Literal["enabled", "degraded", "deleted"]
DeliveryStatus = Literal["pending", "delivered", "failed"]
_NAMES = (ALL_EVENTS, *EVENTS)


def _known(name: str) -> str:
    if name not in _NAMES:
        raise PydanticCustomError("unknown_event", "must be one of {names}", {"names": ", ".join(_NAMES)})
    return name


def _once(names: list[str]) -> list[str]:
    return list(dict.fromkeys(names))


EventName = Annotated[str, AfterValidator(_known), WithJsonSchema({"type": "string", "enum": list(_NAMES)})]
#: Names of events, or ``*`` for all, without duplicates.
EventNames = Annotated[list[EventName], Field(min_length=1, max_length=64), AfterValidator(_once)]
Url = Annotated[
    str,
    StringConstraints(min_length=1, max_length=2048),
    Field(json_schema_extra={"format": "uri", "examples": ["https://example.com/agent-vault"]}),
]


class CreateWebhook(Body):
    """Body of a registration."""

    url: Url
    events: EventNames
    idempotency_key: IdempotencyKey | None = None


class UpdateWebhook(UpdateBody):
    """Body of an update. Absent fields keep their values.

    The `status` `enabled` ends a pause and sends the queue immediately.
    """

    url: Url | None = None
    events: EventNames | None = None
    status: Literal["enabled"] | None = None
    idempotency_key: IdempotencyKey | None = None


class ReplayEvents(Body):
    """Body of a replay. `from` is inclusive. `to` is exclusive and defaults to now."""

    from_: Annotated[Moment, Field(alias="from")]
    to: End | None = None
    idempotency_key: IdempotencyKey | None = None


class ListDeliveries(Page):
    """Query of a webhook's deliveries."""

    status: DeliveryStatus | None = None


class Webhook(ResponseBody):
    """A webhook. A degraded webhook is paused. Its queue is kept for 90 days, and sent once it is enabled again."""

    webhook_id: WebhookId
    id: Annotated[WebhookId, ReadFrom("webhook_id")]
    url: str
    events: list[str]
    status: WebhookStatus
    created_at: Time
    updated_at: Time
    previous_secret_expires_at: Time | None


class WebhookWithSecret(Webhook):
    """A webhook with its signing secret. Only creation, rotation and their replays show the secret."""

    signing_secret: str


class WebhookPage(ListResponse[Webhook]):
    """One page of webhooks, newest first."""


class DeliveryAttempt(ResponseBody):
    """An attempt to deliver an event, with the receiver's response or the reason why none came."""

    attempt: int
    timestamp: Annotated[Time, ReadFrom("started_at")]
    status_code: int | None
    error: Literal["timeout", "address_not_allowed", "connection_failed"] | None
    duration_ms: Annotated[int, ReadFrom("duration")]
    response_excerpt: Annotated[str, ReadFrom("excerpt")]


class Delivery(ResponseBody):
    """The delivery of an event to a webhook, with its newest 20 attempts, oldest first.

    `attempt` starts at 1 again whenever the delivery is resent, replayed or resumed after a pause.
    """

    delivery_id: DeliveryId
    id: Annotated[DeliveryId, ReadFrom("delivery_id")]
    webhook_id: WebhookId
    event_id: EventId
    event: str
    status: DeliveryStatus
    queued_at: Annotated[Time, ReadFrom("created_at")]
    next_attempt_at: Time | None
    attempts: list[DeliveryAttempt]


class DeliveryPage(ListResponse[Delivery]):
    """One page of deliveries, newest event first."""


class Replay(ResponseBody):
    """The number of queued events. It includes events that were queued before."""

    webhook_id: WebhookId
    queued: int
