"""Requests and responses of the list of events."""

import re
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, ConfigDict, Field, WithJsonSchema, model_validator
from pydantic_core import PydanticCustomError

from app.api.fields import End, EventId, ListResponse, Moment, Page, ResponseBody, Time, WalletRef, example
from app.core.event_catalogue import EVENTS

Severity = Literal["info", "warning", "critical"]


def _types(value: Any) -> list[str]:
    found = value.split(",") if isinstance(value, str) else []
    if not found or not set(found) <= set(EVENTS):
        raise PydanticCustomError("event_types", "must be names of events, separated by commas")
    return found


_ONE_TYPE = "|".join(re.escape(name) for name in EVENTS)
#: Names of events from a comma-separated text.
EventTypes = Annotated[
    list[str],
    BeforeValidator(_types),
    WithJsonSchema(
        {
            "type": "string",
            "pattern": f"^({_ONE_TYPE})(,({_ONE_TYPE}))*$",
            "examples": ["wallet.frozen,balance.low"],
        }
    ),
]


class ListEvents(Page):
    """Query of events. All given filters must match; `type` and `event` are synonyms."""

    type: EventTypes | None = None
    """The names of events, separated by commas."""
    event: EventTypes | None = None
    """The same as `type`. Send only one of them."""
    wallet_id: WalletRef | None = None
    """The wallet that the events are about."""
    severity: Severity | None = None
    """The severity of the events."""
    from_: Annotated[Moment | None, Field(alias="from")] = None
    """The start of the period, inclusive."""
    to: End | None = None
    """The end of the period, exclusive. It must be later than `from`."""

    @model_validator(mode="after")
    def _names_types_once(self) -> "ListEvents":
        if self.type is not None and self.event is not None:
            raise PydanticCustomError("event_types", "type and event are the same; send only one of them")
        return self


class Event(ResponseBody):
    """One event. Besides these members, an event has the fields that belong to its type."""

    model_config = ConfigDict(extra="allow")

    event_id: EventId
    """The id of the event. It is the same each time the event is sent."""
    event: Annotated[str, example("transaction.completed")]
    """The type of the event."""
    severity: Severity
    """The severity: `info`, `warning` or `critical`."""
    summary: Annotated[str, example("The policy's max_per_tx refused a payment of 6.00 USDC.")]
    """A summary in one sentence."""
    timestamp: Time
    """The time of the event, with milliseconds."""


class EventPage(ListResponse[Event]):
    """One page of events, newest first."""
