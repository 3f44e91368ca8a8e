"""Approvals: payments, escrows and allowances that wait for an operator's decision."""

from starlette.responses import Response

from app.access.auth import OPERATORS, READERS
from app.approvals import service as approvals
from app.approvals.models import ListApprovals
from app.dashboard.actors import names_of
from app.dashboard.pages import View, action, page
from app.policies import service as policies
from app.store.wallets import labels

_SHOWN = 50


@page("/approvals", roles=READERS)
async def show(view: View) -> Response:
    """Show pending approvals and recent decisions."""
    by = view.principal
    waiting = await approvals.page(view.service, by, ListApprovals(status="pending", limit=_SHOWN))
    recent = await approvals.page(view.service, by, ListApprovals(limit=_SHOWN))
    decided = [one for one in recent.data if one.status != "pending"]
    ids = {one.wallet_id for one in (*waiting.data, *decided)}
    named = await view.service.db.read(lambda conn: labels(conn, ids))
    ruled = await policies.by_id(view.service, by) if waiting.data else {}
    acting = {one.requested_by for one in waiting.data} | {a.by for one in waiting.data for a in one.approvals}
    who = await names_of(view.service, by.org, acting)
    return view.render("approvals.html", waiting=waiting, decided=decided, labels=named, policies=ruled, who=who)


@action("/approvals/{approval_id}/approve", roles=OPERATORS, back=show, step_up=True)
async def approve(view: View) -> str:
    """Approve a payment, an escrow or an allowance."""
    await approvals.approve(view.service, view.principal, view.claim(), view.path("approval_id"))
    return view.url("approvals", done="approved")


@action("/approvals/{approval_id}/reject", roles=OPERATORS, back=show)
async def reject(view: View) -> str:
    """Reject a request for approval, or withdraw an unused approval."""
    await approvals.reject(view.service, view.principal, view.claim(), view.path("approval_id"))
    return view.url("approvals", done="rejected")
