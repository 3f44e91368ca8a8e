"""Policies: the rules that the program enforces."""

from starlette.routing import Route

from app import policies
from app.auth import ADMINS, READERS
from app.models.policies import CreatePolicy, Policy, PolicyList
from app.routes._operation import Call, operation


@operation(
    tag="policies",
    roles=ADMINS,
    body=CreatePolicy,
    answer=Policy,
    errors=("invalid_amount", "invalid_recipient", "authority_offline", "transaction_failed"),
    changes=True,
)
async def create_policy(call: Call, body: CreatePolicy) -> Policy:
    """Create a policy.

    A rule that is left out is not set. Signed by the organisation's authority.
    """
    return await policies.create(call.service, call.principal, call.ticket, body)


@operation(tag="policies", roles=READERS, answer=PolicyList)
async def list_policies(call: Call) -> PolicyList:
    """List policies, the presets first."""
    return policies.all_of(call.service, call.principal)


@operation(tag="policies", roles=READERS, answer=Policy, errors=("policy_not_found",))
async def get_policy(call: Call) -> Policy:
    """Get a policy."""
    return policies.get(call.service, call.principal, call.path("policy_id"))


routes = [
    Route("/v1/policies", list_policies, methods=["GET"]),
    Route("/v1/policies", create_policy, methods=["POST"]),
    Route("/v1/policies/{policy_id}", get_policy, methods=["GET"]),
]
