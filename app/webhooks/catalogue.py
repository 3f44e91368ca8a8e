"""The events that webhooks can subscribe to, and what is sent of one."""

from pydantic_core import to_json

from app.core.timestamps import iso_ms
from app.events.catalogue import EVENTS
from app.store.feed import FeedEvent

PING = "ping"
EVENT_TYPES = tuple(EVENTS)


def body_of(event: FeedEvent) -> str:
    """Return the JSON that is sent of an event: its id, name and time, then the fields of its payload."""
    named = {"event": event.type, "event_id": event.event_id, "timestamp": iso_ms(event.timestamp)}
    return to_json({**named, **event.payload, **named}).decode()
