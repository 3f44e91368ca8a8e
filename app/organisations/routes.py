"""Routes of the organisation."""

from starlette.routing import Route

from app.access.auth import READERS
from app.api.operation import Call, operation
from app.organisations import service as organisations
from app.organisations.models import Organization


@operation(tag="organization", roles=READERS, answer=Organization, errors=("chain_unavailable",))
async def get_organization(call: Call) -> Organization:
    """Get the organisation.

    Deposit USDC of `mint` into the token account `reserve_address`. `roles` are the addresses that the program obeys.
    """
    return await organisations.show(call.service, call.principal)


routes = [Route("/v1/organization", get_organization, methods=["GET"])]
