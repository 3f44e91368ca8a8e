"""Approvals: payments, escrows and allowances that wait for an operator's decision."""

from collections import defaultdict

from starlette.responses import Response

from app.access.auth import OPERATORS, READERS
from app.api.forms import validated
from app.approvals import service as approvals
from app.approvals.facts import facts_of
from app.approvals.models import Approval, ListApprovals, RejectApproval
from app.core.actors import Actor
from app.core.money import parse_usdc
from app.dashboard.actors import names_of
from app.dashboard.pages import View, action, page
from app.policies import service as policies
from app.store.wallets import labels
from app.wallets import service as wallets

_SHOWN = 50


def _deciders(one: Approval) -> list[Actor]:
    """Return the people who approved a request, or else the actor that decided on it."""
    return [given.by for given in one.approvals] or ([one.decided_by] if one.decided_by else [])


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
    acting = {one.requested_by for one in waiting.data} | {actor for one in recent.data for actor in _deciders(one)}
    who = await names_of(view.service, by.org, acting | {a.by for one in waiting.data for a in one.approvals})
    sums: dict[Actor, list[int]] = defaultdict(list)
    for one in decided:
        for actor in _deciders(one) if one.status in {"approved", "used"} else []:
            sums[actor].append(parse_usdc(one.amount))
    return view.render(
        "approvals.html",
        waiting=waiting,
        decided=decided,
        deciders=_deciders,
        sums=sums,
        labels=named,
        policies=ruled,
        who=who,
    )


@page("/approvals/{approval_id}", roles=READERS)
async def show_one(view: View) -> Response:
    """Show a request for an approval with its facts, and the buttons for the decision."""
    service, by = view.service, view.principal
    found = await approvals.get(service, by, view.path("approval_id"))
    wallet = await wallets.find(service, by.org, found.wallet_id)
    required = await approvals.required_for(service, wallet, parse_usdc(found.amount))
    asked = (found.policy_id, found.policy_version, found.approvals_required)
    acting = [found.requested_by, *(one.by for one in found.approvals)]
    acting += [found.decided_by] if found.decided_by else []
    return view.render(
        "approval.html",
        approval=found,
        policy=wallet.policy,
        outdated=wallet.archived or (wallet.policy.policy_id, wallet.policy.version, required) != asked,
        facts=await facts_of(service, wallet, found.recipient_address),
        who=await names_of(service, by.org, acting),
        mine=by.actor in {one.by for one in found.approvals},
    )


@action("/approvals/{approval_id}/approve", roles=OPERATORS, back=show_one, step_up=True)
async def approve(view: View) -> str:
    """Approve a payment, an escrow or an allowance."""
    made = await approvals.approve(view.service, view.principal, view.claim(), view.path("approval_id"))
    return _after(view, "approval-counted" if len(made.approvals) < made.approvals_required else "approved")


@action("/approvals/{approval_id}/reject", roles=OPERATORS, back=show_one, step_up=True)
async def reject(view: View) -> str:
    """Reject a request for approval, or withdraw an unused approval."""
    reason = validated(RejectApproval, {"reason": view.typed("reason").strip() or None}).reason
    await approvals.reject(view.service, view.principal, view.claim(), view.path("approval_id"), reason=reason)
    return _after(view, "rejected")


def _after(view: View, done: str) -> str:
    """Return the address of the page that sent the form: the request's own page, or the list."""
    place = (view.path("approval_id"),) if view.typed("stay") else ()
    return view.url("approvals", *place, done=done)
