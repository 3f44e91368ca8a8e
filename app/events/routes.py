"""Routes of events."""

from starlette.routing import Route

from app.access.auth import READERS_AND_AGENT
from app.api.operation import Call, operation
from app.events import service as events
from app.events.models import EventPage, ListEvents


@operation(tag="events", roles=READERS_AND_AGENT, query=ListEvents, answer=EventPage, errors=("wallet_not_found",))
async def list_events(call: Call, query: ListEvents) -> EventPage:
    """Query events.

    They are listed newest first and kept for 90 days, unless the operator of the service set another time. All filters
    must match; `type` takes several names, separated by commas. A wallet's events include those of escrows that it
    receives. `/docs/events` explains each type.
    """
    return await events.page(call.service, call.principal, query)


routes = [Route("/v1/events", list_events, methods=["GET"])]
