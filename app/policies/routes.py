"""Policies: the rules that the program enforces."""

import json
from functools import wraps

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from app.access.auth import ADMINS, OPERATORS, READERS
from app.api.fields import EmptyBody
from app.api.operation import Call, Endpoint, operation
from app.policies import audit as policy_audit
from app.policies import changes as policy_changes
from app.policies import preview as policy_preview
from app.policies import service as policies
from app.policies.models import (
    AuditLog,
    ClonePolicy,
    CreatePolicy,
    Policy,
    PolicyList,
    PolicyPreview,
    PreviewPolicy,
    UpdatePolicy,
)
from app.policies.terms import Expected, tag

_WRITING = ("invalid_amount", "invalid_recipient", "authority_offline", "transaction_failed")


def _tagged(endpoint: Endpoint) -> Endpoint:
    """Have the endpoint's answer, a policy, carry its `ETag`."""

    @wraps(endpoint)
    async def answer(request: Request) -> Response:
        response = await endpoint(request)
        policy = json.loads(bytes(response.body))
        response.headers["etag"] = f'"{tag(policy["version"], policy["name"])}"'
        return response

    return answer


def _expected(call: Call) -> Expected:
    return Expected.of(call.request.headers.get("if-match"))


@_tagged
@operation(tag="policies", roles=ADMINS, body=CreatePolicy, answer=Policy, tagged=True, errors=_WRITING, changes=True)
async def create_policy(call: Call, body: CreatePolicy) -> Policy:
    """Create a policy.

    A rule that is left out is not set. Signed by the organisation's authority.
    """
    return await policies.create(call.service, call.principal, call.claim, body)


@operation(tag="policies", roles=READERS, answer=PolicyList, errors=("chain_unavailable",))
async def list_policies(call: Call) -> PolicyList:
    """List policies, the presets first."""
    return await policies.all_of(call.service, call.principal)


@_tagged
@operation(tag="policies", roles=READERS, answer=Policy, tagged=True, errors=("policy_not_found", "chain_unavailable"))
async def get_policy(call: Call) -> Policy:
    """Get a policy.

    The header `ETag` names its version and name; sent as `If-Match` with a change, it keeps that from undoing
    somebody else's.
    """
    return await policies.get(call.service, call.principal, call.path("policy_id"))


@_tagged
@operation(
    tag="policies",
    roles=ADMINS,
    body=UpdatePolicy,
    answer=Policy,
    tagged=True,
    errors=("policy_not_found", "policy_immutable", "version_conflict", *_WRITING),
    changes=True,
    version=True,
)
async def update_policy(call: Call, body: UpdatePolicy) -> Policy:
    """Update a policy.

    An absent field stays, `null` or an empty list clears a rule. The change binds all attached wallets at once; a
    long allowlist is written first and takes effect as a whole. With `If-Match` only the policy of that `ETag` is
    changed.
    """
    identifier, expected = call.path("policy_id"), _expected(call)
    return await policy_changes.update(call.service, call.principal, call.claim, identifier, body, expected)


@_tagged
@operation(
    tag="policies",
    roles=ADMINS,
    body=EmptyBody,
    answer=Policy,
    tagged=True,
    errors=(
        "policy_not_found",
        "policy_immutable",
        "policy_in_use",
        "version_conflict",
        "authority_offline",
        "transaction_failed",
    ),
    changes=True,
    version=True,
)
async def delete_policy(call: Call, _body: EmptyBody) -> Policy:
    """Delete a policy.

    No wallet may be attached to it. Answers the policy as it was; its audit log stays.
    """
    identifier, expected = call.path("policy_id"), _expected(call)
    return await policy_changes.delete(call.service, call.principal, call.claim, identifier, expected)


@_tagged
@operation(
    tag="policies",
    roles=ADMINS,
    body=ClonePolicy,
    answer=Policy,
    tagged=True,
    errors=("policy_not_found", "version_conflict", *_WRITING),
    changes=True,
)
async def clone_policy(call: Call, body: ClonePolicy) -> Policy:
    """Clone a policy.

    The new policy says what the old one does, its allowlist included, but for the fields in the body. Presets can be
    cloned, and the clone changed.
    """
    return await policies.clone(call.service, call.principal, call.claim, call.path("policy_id"), body)


@operation(tag="policies", roles=READERS, answer=AuditLog, errors=("policy_not_found",))
async def get_policy_audit_log(call: Call) -> AuditLog:
    """Get a policy's audit log.

    All changes, oldest first, of deleted policies too. `changed_by` is the id of the API key that asked, or the
    address that signed a change past this service.
    """
    return await policy_audit.log(call.service, call.principal, call.path("policy_id"))


@operation(
    tag="policies",
    roles=OPERATORS,
    body=PreviewPolicy,
    answer=PolicyPreview,
    errors=("policy_not_found", "invalid_amount", "invalid_recipient", "version_conflict", "chain_unavailable"),
)
async def preview_policy(call: Call, body: PreviewPolicy) -> PolicyPreview:
    """Preview a change of a policy.

    What the payments and escrows of the last seven days would have become, had the change been made before: the
    program judges each again, one after the other, in a virtual machine beside the chain. Nothing is changed.
    Balances, freezes and pauses do not count, and co-signatures and approvals are those that were given.
    """
    return await policy_preview.preview(call.service, call.principal, call.path("policy_id"), body)


routes = [
    Route("/v1/policies", list_policies, methods=["GET"]),
    Route("/v1/policies", create_policy, methods=["POST"]),
    Route("/v1/policies/{policy_id}", get_policy, methods=["GET"]),
    Route("/v1/policies/{policy_id}", update_policy, methods=["PATCH"]),
    Route("/v1/policies/{policy_id}", delete_policy, methods=["DELETE"]),
    Route("/v1/policies/{policy_id}/clone", clone_policy, methods=["POST"]),
    Route("/v1/policies/{policy_id}/preview", preview_policy, methods=["POST"]),
    Route("/v1/policies/{policy_id}/audit-log", get_policy_audit_log, methods=["GET"]),
]
