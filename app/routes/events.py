"""Events: what happened in the organisation, newest first."""

from starlette.routing import Route

from app import transactions
from app.auth import READERS_AND_AGENT
from app.models.payments import EventPage, ListEvents
from app.routes._operation import Call, operation


@operation(tag="events", roles=READERS_AND_AGENT, query=ListEvents, answer=EventPage, errors=("wallet_not_found",))
async def list_events(call: Call, query: ListEvents) -> EventPage:
    """Query events."""
    return transactions.events(call.service, call.principal, query)


routes = [Route("/v1/events", list_events, methods=["GET"])]
