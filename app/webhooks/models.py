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
    ChangeBody,
    DeliveryId,
    End,
    EventId,
    ListResponse,
    Moment,
    Name,
    Page,
    ReadFrom,
    ResponseBody,
    Time,
    WebhookId,
    example,
)
from app.api.partial_body import UpdateBody
from app.core.event_catalogue import EVENTS
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


class SaveSlackChannel(Body):
    """A Slack channel to add, or the new URL of the channel with this name."""

    name: Name
    """The channel's name."""
    url: Url
    """The URL of the channel's incoming webhook."""


class CreateWebhook(ChangeBody):
    """Body of a registration."""

    url: Url
    """The URL of the receiver. It must use HTTPS and a public address. A service on the embedded chain or another local
    chain also accepts HTTP and this machine's own addresses.
    """
    events: EventNames
    """The names of the events to receive, or `*` for all."""


class UpdateWebhook(UpdateBody):
    """Body of an update. Absent fields keep their values.

    The `status` `enabled` ends a pause and sends the queue immediately.
    """

    url: Url | None = None
    """The new URL. If this is omitted, the URL stays the same."""
    events: EventNames | None = None
    """The new list of subscribed events. If this is omitted, the list stays the same."""
    status: Annotated[Literal["enabled"] | None, example("enabled")] = None
    """The new status: `enabled` ends the pause of a degraded webhook and sends its queue."""


class ReplayEvents(ChangeBody):
    """Body of a replay. `from` is inclusive. `to` is exclusive and defaults to now."""

    from_: Annotated[Moment, Field(alias="from")]
    """The start of the period. Events from this time on are sent again."""
    to: End | None = None
    """The end of the period, exclusive; now by default."""


class ListDeliveries(Page):
    """Query of a webhook's deliveries."""

    status: DeliveryStatus | None = None
    """The status of the deliveries: `pending`, `delivered`, or `failed` for a `ping` that was not acknowledged."""


class Webhook(ResponseBody):
    """A webhook. A degraded webhook is paused. Its queue is kept for 90 days, and sent once it is enabled again."""

    webhook_id: WebhookId
    """The webhook's id, which begins with `wh_`. `id` and `webhook_id` are equal."""
    id: Annotated[WebhookId, ReadFrom("webhook_id")]
    """The webhook's id, which begins with `wh_`. `id` and `webhook_id` are equal."""
    url: Annotated[str, example("https://example.com/agent-vault")]
    """The URL as set."""
    events: Annotated[list[str], example(["transaction.completed", "wallet.frozen"])]
    """The subscribed events as set; `*` means all events."""
    status: WebhookStatus
    """The status of the webhook. `/docs/reference` explains each status."""
    created_at: Time
    """The time of the creation."""
    updated_at: Time
    """The time of the last change."""
    previous_secret_expires_at: Time | None
    """The time until which requests are also signed with the old secret."""


class WebhookWithSecret(Webhook):
    """A webhook with its signing secret.

    Only the responses to its creation and to a rotation, and their replays, show the secret.
    """

    signing_secret: Annotated[str, example("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw")]
    """The signing secret. It begins with `whsec_`. Only this response and its replays show it."""


class WebhookPage(ListResponse[Webhook]):
    """One page of webhooks, newest first."""


class DeliveryAttempt(ResponseBody):
    """An attempt to deliver an event, with the receiver's response or the reason for a missing response."""

    attempt: Annotated[int, example(1)]
    """The number of the attempt, from 1. It starts again after a resend, a replay or the end of a pause."""
    timestamp: Annotated[Time, ReadFrom("started_at")]
    """The time when the attempt began."""
    status_code: Annotated[int | None, example(200)]
    """The HTTP status of the receiver's response. Null without a response."""
    error: Literal["timeout", "address_not_allowed", "connection_failed"] | None
    """The reason why there is no response: `timeout`, `address_not_allowed` or `connection_failed`. Null if there was a
    response.
    """
    duration_ms: Annotated[int, ReadFrom("duration"), example(84)]
    """The duration in milliseconds."""
    response_excerpt: Annotated[str, ReadFrom("excerpt"), example("ok")]
    """The beginning of the receiver's response."""


class Delivery(ResponseBody):
    """The delivery of an event to a webhook, with its newest 20 attempts, oldest first.

    `attempt` starts at 1 again whenever the delivery is resent, replayed or resumed after a pause.
    """

    delivery_id: DeliveryId
    """The delivery's id, which begins with `dlv_`. `id` and `delivery_id` are equal."""
    id: Annotated[DeliveryId, ReadFrom("delivery_id")]
    """The delivery's id, which begins with `dlv_`. `id` and `delivery_id` are equal."""
    webhook_id: WebhookId
    """The webhook."""
    event_id: EventId
    """The delivered event."""
    event: Annotated[str, example("transaction.completed")]
    """The type of the event."""
    status: DeliveryStatus
    """The status: `pending`, `delivered`, or `failed` for a `ping` that was not acknowledged."""
    queued_at: Annotated[Time, ReadFrom("created_at")]
    """The time when the event was last queued for the webhook."""
    next_attempt_at: Time | None
    """The time of the next attempt; a degraded webhook first waits for the end of its pause. Null if none is planned.
    """
    attempts: list[DeliveryAttempt]
    """The newest 20 attempts, oldest first."""


class DeliveryPage(ListResponse[Delivery]):
    """One page of deliveries, newest event first."""


class Replay(ResponseBody):
    """The number of queued events. It includes events that were queued before."""

    webhook_id: WebhookId
    """The webhook."""
    queued: Annotated[int, example(17)]
    """The number of events queued for the webhook."""
