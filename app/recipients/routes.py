"""Recipients: the category of an address and the address of a domain, attested by the organisation."""

from app.access.auth import OPERATORS, READERS, READERS_AND_AGENT
from app.api.operation import Call, operation
from app.recipients import service as recipients
from app.recipients.models import ListRecipients, PutRecipient, RecipientPage, RegisteredRecipient


@operation(
    "PUT /v1/recipients/{recipient}", roles=OPERATORS, errors=("invalid_recipient", "transaction_failed"), signable=True
)
async def put_recipient(call: Call, body: PutRecipient) -> RegisteredRecipient:
    """Register a recipient.

    A domain needs `address`. Changing a registration needs an admin's key.
    """
    return await recipients.put(call.service, call.principal, call.claim, call.path("recipient"), body)


@operation("GET /v1/recipients/{recipient}", roles=READERS_AND_AGENT, errors=("recipient_not_found",))
async def get_recipient(call: Call) -> RegisteredRecipient:
    """Get the registration of an address or a domain."""
    return await recipients.get(call.service, call.principal, call.path("recipient"))


@operation("GET /v1/recipients", roles=READERS)
async def list_recipients(call: Call, query: ListRecipients) -> RecipientPage:
    """List the registrations.

    The most recently changed comes first.
    """
    return await recipients.page(call.service, call.principal, query)
