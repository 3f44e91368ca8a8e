"""Budgets: their limits, the amounts spent, the vaults in each, and the forms that change a budget."""

from dataclasses import dataclass
from typing import Literal

from starlette.responses import Response

from app.access.auth import ADMINS, OPERATORS, READERS
from app.api.forms import validated
from app.api.versions import Precondition
from app.audit import service as audit
from app.audit.models import ListAuditLog
from app.budgets import changes
from app.budgets import service as budgets
from app.budgets.changes import BudgetChange
from app.budgets.models import Budget, UpdateBudget
from app.chain.errors import ChainUnavailable, RpcError
from app.core.errors import BusinessError, RequestError
from app.dashboard.actors import names_of
from app.dashboard.forms.budget import (
    bars,
    check,
    fields_of,
    merge_concurrent_edits,
    new,
    sentences,
    shown_by,
    tag_of,
    typed_differences,
    wanted,
)
from app.dashboard.forms.error_messages import concurrent_edit
from app.dashboard.forms.formatting import LABELS, Words
from app.dashboard.forms.review import BeforeAfter, Review, ask
from app.dashboard.forms.submit_once import once
from app.dashboard.forms.vault_lookup import labelled, vault_named
from app.dashboard.pages import View, action, page
from app.store.budgets import budgets as open_budgets
from app.store.budgets import wallets_in
from app.submission.claim import Claim
from app.wallets import service as wallets
from app.wallets.models import UpdateWallet

#: Maximum number of changes, and of vaults, on a page.
_SHOWN, _VAULTS = 20, 30
_SAID = {
    "budget.create": "Created",
    "budget.update": "Changed",
    "budget.delete": "Deleted",
    "budget.freeze": "Frozen",
    "budget.unfreeze": "Unfrozen",
}
_HERE = "Budgets"


@dataclass(frozen=True, slots=True)
class _Entry:
    """An entry of the audit log about a budget, as shown on the budget's page."""

    timestamp: str
    who: Words
    what: str


@page("/budgets", roles=READERS)
async def show_all(view: View) -> Response:
    """Show all budgets with their headroom, each followed by the budgets that are part of it."""
    found = (await budgets.list_all(view.service, view.principal)).data
    tree = [one for top in found if top.parent_id is None for one in (top, *_parts(found, top))]
    return view.render(
        "budgets.html",
        budgets=[(one, bars(one)) for one in tree],
        parents=[("", "None"), *((one.budget_id, one.name) for one in found if one.parent_id is None)],
        says=sentences(check(view)[0]),
        offline=view.service.signers.authority is None,
    )


@page("/budgets/{budget_id}", roles=READERS)
async def show(view: View) -> Response:
    """Show a budget, with a form if the person may change it."""
    found = await look(view, view.path("budget_id"))
    editable = view.principal.role in ADMINS
    typed = "was_name" in dict(view.form)
    since = merge_concurrent_edits(view, found) if typed else []
    if not typed:
        # Keep the text typed into the page's other form.
        view.form = [*view.form, *fields_of(shown_by(found), found)]
    record = await budgets.find(view.service, view.principal.org, found.budget_id)
    family = await view.service.db.read(lambda conn: open_budgets(conn, view.principal.org))
    return view.render(
        "budget.html",
        budget=found,
        parent=next((one for one in family if one.budget_id == found.parent_id), None),
        members=[one for one in family if one.parent_id == found.budget_id],
        bars=bars(found),
        tag=tag_of(found),
        unlimited=record.unlimited,
        editable=editable,
        says=sentences(check(view)[0]),
        since=since,
        vaults=await labelled(view, lambda conn: wallets_in(conn, view.principal.org, record.address, _VAULTS)),
        history=await _history(view, found.budget_id) if editable else [],
        offline=view.service.signers.authority is None,
    )


def _parts(found: list[Budget], parent: Budget) -> list[Budget]:
    return [one for one in found if one.parent_id == parent.budget_id]


async def look(view: View, budget_id: str) -> Budget:
    """Return a budget, without its consumption if the chain does not answer. Raises ``budget_not_found``."""
    try:
        return await budgets.get(view.service, view.principal, budget_id)
    except (ChainUnavailable, RpcError):
        return budgets.shown(await budgets.find(view.service, view.principal.org, budget_id))


@action("/budgets/check", roles=ADMINS)
async def check_form(view: View) -> Response:
    """Return a sentence about each typed limit, or an error message. A script inserts the texts into the open page."""
    shown, wrong = check(view)
    said = dict.fromkeys(("name", *budgets.LIMITS), "") | sentences(shown)
    return view.render("policy_says.html", says=said, wrong=wrong)


@action("/budgets", roles=ADMINS, back=show_all, step_up=True)
async def create(view: View) -> str:
    """Create a budget."""
    body = new(view)
    made = await once(view, body, Budget, view.asks(budgets.create, body))
    return view.url("budgets", made.budget_id, done="budget-created")


@action("/budgets/{budget_id}/review", roles=ADMINS, back=show)
async def review(view: View) -> Response:
    """Show the changes made in the budget's form, before they are saved."""
    found = await look(view, view.path("budget_id"))
    _wanted(view)
    if view.typed("expected_version") != tag_of(found):
        raise concurrent_edit("budget")
    shifts = [BeforeAfter(one.label, str(one.before), str(one.after)) for one in typed_differences(view)]
    text = "The budget has no vaults of its own."
    if found.wallet_count:
        vaults = "1 vault is" if found.wallet_count == 1 else f"{found.wallet_count:,} vaults are"
        text = f"{vaults} in the budget. The new limits apply once the change is confirmed. Earlier spending counts."
    path = view.url("budgets", found.budget_id)
    return ask(view, Review(f"Change {found.name}", text, shifts, "Save", path, _HERE, moves=False))


@action("/budgets/{budget_id}", roles=ADMINS, back=show, step_up=True)
async def save(view: View) -> str:
    """Save the changes made in the budget's form, unless the budget has changed since the form was opened."""
    body = _wanted(view)
    await once(view, body, Budget, lambda claim: changes.update(_change(view, claim), body))
    return view.url("budgets", view.path("budget_id"), done="budget-saved")


@action("/budgets/{budget_id}/freeze", roles=OPERATORS, back=show, brakes=True)
async def freeze(view: View) -> str:
    """Freeze the budget. The chain then refuses all payments under it."""
    return await _set_status(view, "frozen")


@action("/budgets/{budget_id}/unfreeze", roles=ADMINS, back=show, step_up=True, lifts=True)
async def unfreeze(view: View) -> str:
    """Make the budget active again."""
    return await _set_status(view, "active")


async def _set_status(view: View, status: Literal["frozen", "active"]) -> str:
    budget_id = view.path("budget_id")
    change = BudgetChange(view.service, view.principal, view.claim(), budget_id, Precondition(None))
    await changes.update(change, UpdateBudget(status=status))
    return view.url("budgets", budget_id, done="budget-frozen" if status == "frozen" else "budget-unfrozen")


@action("/budgets/{budget_id}/delete", roles=ADMINS, back=show, step_up=True)
async def delete(view: View) -> str:
    """Delete a budget. A budget with vaults is not deleted."""
    await changes.delete(_change(view, view.claim()))
    return view.url("budgets", done="budget-deleted")


@action("/budgets/{budget_id}/vaults", roles=ADMINS, back=show, step_up=True)
async def add(view: View) -> str:
    """Add a vault to the budget. The vault must not be in another budget."""
    found, budget_id = await vault_named(view, "vault"), view.path("budget_id")
    if found.budget_id not in (None, budget_id):
        raise BusinessError("invalid_request", "vault: The vault is in another budget. Move it on its own page.")
    await _put(view, found.wallet_id, budget_id)
    return view.url("budgets", budget_id, done="budget-joined")


@action("/budgets/{budget_id}/vaults/{wallet_id}/take-out", roles=ADMINS, back=show, step_up=True)
async def take_out(view: View) -> str:
    """Take a vault out of the budget, unless it has already left."""
    found = await wallets.find(view.service, view.principal.org, view.path("wallet_id"))
    if found.budget_id == view.path("budget_id"):
        await _put(view, found.wallet_id, None)
    return view.url("budgets", view.path("budget_id"), done="budget-left")


async def move(view: View, wallet_id: str) -> str:
    """Move a vault into the chosen budget, or out of its budget if none is chosen.

    Return the key of the notice to show.
    """
    chosen = view.typed("budget_id")
    await _put(view, wallet_id, validated(UpdateWallet, {"budget_id": chosen}).budget_id if chosen else None)
    return "budget-joined" if chosen else "budget-left"


async def _put(view: View, wallet_id: str, budget_id: str | None) -> None:
    await wallets.update(view.service, view.principal, view.claim(), wallet_id, UpdateWallet(budget_id=budget_id))


def _wanted(view: View) -> UpdateBudget:
    """Return the changes made in the form.

    Raises InvalidFormError if a field is invalid, and ``invalid_request`` if nothing was changed.
    """
    given = wanted(view)
    if not given:
        raise RequestError("invalid_request", "You have not changed any field.")
    return UpdateBudget.model_validate(given)


def _change(view: View, claim: Claim) -> BudgetChange:
    expected = Precondition([view.typed("expected_version")])
    return BudgetChange(view.service, view.principal, claim, view.path("budget_id"), expected)


async def _history(view: View, budget_id: str) -> list[_Entry]:
    """Return the budget's changes with their actors, newest first."""
    query = ListAuditLog(object=budget_id, limit=_SHOWN)
    found = [one for one in (await audit.page(view.service, view.principal, query)).data if one.action in _SAID]
    names = await names_of(view.service, view.principal.org, {one.actor for one in found})
    return [_Entry(one.timestamp, names[one.actor], _said(one.action, one.details.get("fields", ()))) for one in found]


def _said(action_name: str, fields: list[str]) -> str:
    of = ", ".join(LABELS.get(one, one).lower() for one in fields)
    return f"{_SAID[action_name]}: {of}" if of else _SAID[action_name]
