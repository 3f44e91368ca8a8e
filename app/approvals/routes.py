"""Approvals: the operator's decisions on payments above a policy's threshold for a co-signature."""

from app.access.auth import OPERATORS, READERS_AND_AGENT
from app.api.fields import EmptyBody
from app.api.operation import Call, operation
from app.approvals import service as approvals
from app.approvals.models import Approval, ApprovalPage, ListApprovals, RejectApproval


@operation("GET /v1/approvals", roles=READERS_AND_AGENT, errors=("wallet_not_found",))
async def list_approvals(call: Call, query: ListApprovals) -> ApprovalPage:
    """List approvals, newest first."""
    return await approvals.page(call.service, call.principal, query)


@operation("GET /v1/approvals/{approval_id}", roles=READERS_AND_AGENT, errors=("approval_not_found",))
async def get_approval(call: Call) -> Approval:
    """Get an approval."""
    return await approvals.get(call.service, call.principal, call.path("approval_id"))


@operation(
    "POST /v1/approvals/{approval_id}/approve",
    roles=OPERATORS,
    errors=("approval_not_found", "approval_not_pending", "approval_outdated", "wallet_archived", "transaction_failed"),
)
async def approve_payment(call: Call, _body: EmptyBody) -> Approval:
    """Approve a payment.

    Puts the approval on the chain. For 24 hours, the agent may make this payment once. The wallet must still have the
    policy that refused the payment, in the same version. All other rules still apply. If the policy's `approvals`
    requires people, the request is refused with `insufficient_permissions`, because an API key is not a person. The
    people approve in the dashboard.
    """
    return await approvals.approve(call.service, call.principal, call.claim, call.path("approval_id"))


@operation(
    "POST /v1/approvals/{approval_id}/reject",
    roles=OPERATORS,
    errors=("approval_not_found", "approval_not_pending", "transaction_failed"),
)
async def reject_payment(call: Call, body: RejectApproval) -> Approval:
    """Reject a payment.

    Also withdraws an unused approval, even an expired one, and returns the rent of the approval's account.
    """
    return await approvals.reject(
        call.service, call.principal, call.claim, call.path("approval_id"), reason=body.reason
    )
