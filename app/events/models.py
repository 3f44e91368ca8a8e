"""Requests and responses of the list of events."""

import re
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, ConfigDict, Field, WithJsonSchema, model_validator
from pydantic_core import PydanticCustomError

from app.api.fields import End, EventId, Identifier, ListResponse, Moment, Page, ResponseBody, Time
from app.events.catalogue import EVENTS

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
    """Query of events. `type` and `event` are synonyms; `from` is inclusive, `to` exclusive."""

    type: EventTypes | None = None
    event: EventTypes | None = None
    wallet_id: Identifier | None = None
    severity: Severity | None = None
    from_: Annotated[Moment | None, Field(alias="from")] = None
    to: End | None = None

    @model_validator(mode="after")
    def _names_types_once(self) -> "ListEvents":
        if self.type is not None and self.event is not None:
            raise PydanticCustomError("event_types", "type and event are the same; send only one of them")
        return self


class Event(ResponseBody):
    """One event. Its other members are the fields of its type."""

    model_config = ConfigDict(extra="allow")

    event_id: EventId
    event: str
    severity: Severity
    summary: str
    timestamp: Time


class EventPage(ListResponse[Event]):
    """One page of events, newest first."""
