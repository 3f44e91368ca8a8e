"""Policies: the rules that the program enforces on wallets."""

from app.access.auth import ADMINS, OPERATORS, READERS, READERS_AND_AGENT
from app.api.fields import EmptyBody
from app.api.operation import Call, operation
from app.policies import audit, changes
from app.policies import service as policies
from app.policies.changes import PolicyChange
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
from app.policies.preview import preview

_WRITING = ("invalid_amount", "invalid_recipient", "recipient_unverified", "transaction_failed")
_CHANGING = ("policy_not_found", "policy_immutable", "approvals_missing", "version_conflict", "transaction_failed")


@operation("POST /v1/policies", roles=ADMINS, tagged=True, errors=_WRITING, signable=True)
async def create_policy(call: Call, body: CreatePolicy) -> Policy:
    """Create a policy.

    An omitted rule is not set. The organisation's authority signs the creation.
    """
    return await policies.create(call.service, call.principal, call.claim, body)


@operation("GET /v1/policies", roles=READERS, errors=("chain_unavailable",))
async def list_policies(call: Call) -> PolicyList:
    """List policies, presets first."""
    return await policies.list_all(call.service, call.principal)


@operation(
    "GET /v1/policies/{policy_id}",
    roles=READERS_AND_AGENT,
    tagged=True,
    errors=("policy_not_found", "chain_unavailable"),
)
async def get_policy(call: Call) -> Policy:
    """Get a policy.

    The header `ETag` identifies the policy's version, name, `x402_hosts`, `opens_accounts` and `approvals`. Send it as
    `If-Match` with a change, so that you do not undo a concurrent change. A key with the role agent reads only the
    policy of its own wallet.
    """
    return await policies.get(call.service, call.principal, call.path("policy_id"))


@operation(
    "PATCH /v1/policies/{policy_id}",
    roles=ADMINS,
    tagged=True,
    errors=(*_CHANGING, *_WRITING),
    version=True,
    signable=True,
)
async def update_policy(call: Call, body: UpdatePolicy) -> Policy:
    """Update a policy.

    An omitted field keeps its value; `null` or an empty list clears a rule. The change binds all attached wallets
    simultaneously. A long allowlist is written first and takes effect as a whole. With `If-Match`, the policy changes
    only if it still has that `ETag`.
    """
    return await changes.update(PolicyChange.of(call, "policy_id"), body)


@operation(
    "DELETE /v1/policies/{policy_id}",
    roles=ADMINS,
    tagged=True,
    errors=("policy_in_use", *_CHANGING),
    version=True,
    signable=True,
)
async def delete_policy(call: Call, _body: EmptyBody) -> Policy:
    """Delete a policy.

    No wallet may be attached to it. Returns the policy as it was. Its audit log is kept.
    """
    return await changes.delete(PolicyChange.of(call, "policy_id"))


@operation(
    "POST /v1/policies/{policy_id}/clone",
    roles=ADMINS,
    tagged=True,
    errors=("policy_not_found", "version_conflict", *_WRITING),
    signable=True,
)
async def clone_policy(call: Call, body: ClonePolicy) -> Policy:
    """Clone a policy.

    The new policy has the rules and the allowlist of the old one, except for the fields in the body. Presets cannot be
    changed, but you can clone them and change the clone.
    """
    return await policies.create(call.service, call.principal, call.claim, body, call.path("policy_id"))


@operation("GET /v1/policies/{policy_id}/audit-log", roles=READERS, errors=("policy_not_found",))
async def get_policy_audit_log(call: Call) -> AuditLog:
    """Get a policy's audit log.

    Lists all changes, oldest first. Deleted policies keep their log. `changed_by` is the id of the API key or person
    that requested the change, or the address that signed a change made without this service. It is `on-chain` if that
    address is not known.
    """
    return await audit.log(call.service, call.principal, call.path("policy_id"))


@operation(
    "POST /v1/policies/{policy_id}/preview",
    roles=OPERATORS,
    errors=("policy_not_found", "invalid_amount", "invalid_recipient", "version_conflict", "chain_unavailable"),
    weight=20,
    changes=False,
)
async def preview_policy(call: Call, body: PreviewPolicy) -> PolicyPreview:
    """Preview a change of a policy.

    Shows the outcomes that the payments and escrows of the last seven days would have had if the change had been made
    before them. The program judges each of them again, in order, in a virtual machine apart from the chain. Nothing is
    changed. Balances, freezes, pauses and the number of open escrows are ignored; co-signatures and approvals count as
    they were given. Refusals by a budget stay refusals, but no other payment is judged by a budget. If the change
    leaves the allowlist or a blocked category as it is, the original verdict of that rule counts. Otherwise recipients
    count as they are registered now. A registration permits payments only from its `effective_at` on.
    """
    return await preview(call.service, call.principal, call.path("policy_id"), body)
