"""The operation that lists an organisation's events."""

from app.access.auth import READERS_AND_AGENT
from app.api.operation import Call, operation
from app.events import service as events
from app.events.models import EventPage, ListEvents


@operation("GET /v1/events", roles=READERS_AND_AGENT, errors=("wallet_not_found",))
async def list_events(call: Call, query: ListEvents) -> EventPage:
    """Query events.

    Events are listed newest first. They are kept for 90 days unless the operator of the service has set another time.
    All filters must match. `type` accepts several names, separated by commas. A wallet's events include events of the
    escrows that it receives. `/docs/events` explains each type.
    """
    return await events.page(call.service, call.principal, query)
