"""Policies: their rules, an editor that previews the effect of a change, and the history of changes."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from starlette.responses import Response

from app.access.auth import ADMINS, READERS
from app.api.versions import Precondition
from app.chain.errors import ChainUnavailable, RpcError
from app.chain.rules import CATEGORIES
from app.core.actors import Actor
from app.core.errors import ApiError, RequestError, UnavailableError
from app.core.identifiers import PRESET_POLICY_IDS
from app.dashboard.actors import names_of
from app.dashboard.forms.error_messages import concurrent_edit
from app.dashboard.forms.formatting import Words
from app.dashboard.forms.policy import (
    FLAG_CHOICES,
    HOST_CHOICES,
    before_changes,
    blank,
    changed,
    check,
    consent,
    fields_of,
    meant,
    merged,
    shown_as,
    shown_by,
    tag_of,
    when,
)
from app.dashboard.forms.policy_sentences import FieldChange, Reader, chips, differences, facts, sentences
from app.dashboard.forms.policy_templates import TEMPLATES
from app.dashboard.forms.submit_once import once
from app.dashboard.forms.vault_lookup import labelled, payee_names
from app.dashboard.pages import View, action, page
from app.policies import audit, changes
from app.policies import service as policies
from app.policies.changes import PolicyChange
from app.policies.consent import votes_to_weaken, weakens
from app.policies.models import ClonePolicy, CreatePolicy, Policy, PreviewPolicy, UpdatePolicy
from app.policies.preview import preview
from app.projection.differences import Shown
from app.store.policies import DETAILS, RULE, attached_wallets, policy_audit_log
from app.store.wallets import labels

#: Maximum number of changes, and of vaults, on a page.
_SHOWN, _VAULTS = 20, 30
#: Length of the period that the review judges again, in days.
_DAYS = 30
_NOTHING_CHANGED = "You have not changed any field."


@dataclass(frozen=True, slots=True)
class _Change:
    """An entry of a policy's log of changes, as shown on the policy's page."""

    timestamp: str
    who: str
    differences: list[FieldChange]


@page("/policies", roles=READERS)
async def show_all(view: View) -> Response:
    """Show all policies."""
    found = await policies.list_all(view.service, view.principal)
    return view.render("policies.html", policies=found.data, presets=PRESET_POLICY_IDS)


@page("/policies/new", roles=ADMINS)
async def new(view: View) -> Response:
    """Show the form of a new policy. The form may start with the values of another policy or of a template."""
    source = view.typed("source") or view.request.query_params.get("from", "")
    copied = await policies.get(view.service, view.principal, source) if source else None
    templates = {name: await shown_as(view, one.body) for name, one in TEMPLATES.items()}
    chosen = templates.get(view.request.query_params.get("template", ""))
    if not view.form:
        shown = chosen or (blank() if copied is None else shown_by(copied) | {"name": f"Copy of {copied.name}"})
        view.form = fields_of(shown, source=source)
    listed = (await policies.list_all(view.service, view.principal)).data
    return view.render(
        "policy_new.html",
        chosen=chosen["name"] if chosen else copied and copied.name,
        templates=[(name, TEMPLATES[name].use, one) for name, one in templates.items()],
        presets=[one for one in listed if one.policy_id in PRESET_POLICY_IDS],
        says=await _says(view, (await check(view)).shown),
        **_form(view),
    )


@page("/policies/{policy_id}", roles=READERS)
async def show(view: View) -> Response:
    """Show a policy, with a form if the person may change it."""
    found = await _policy(view)
    typed = "name" in dict(view.form)
    since = await _merge_concurrent_edits(view, found) if typed else []
    shown = shown_by(found)
    editable = view.principal.role == "admin" and found.policy_id not in PRESET_POLICY_IDS
    if not typed:
        view.form = fields_of(shown, expected_version=tag_of(found))
    log = await audit.log(view.service, view.principal, found.policy_id)
    asked = view.request.query_params.get("older", "0")
    skipped = int(asked) if asked.isdecimal() and len(asked) < 7 else 0
    entries = log.data[::-1][skipped : skipped + _SHOWN]
    return view.render(
        "policy.html",
        policy=found,
        # The version on the chain is a number of the organisation, so the first one of a policy may be 52.
        version=len(log.data) + 1,
        preset=found.policy_id in PRESET_POLICY_IDS,
        editable=editable,
        says=(await _says(view, (await check(view)).shown)) if editable else {},
        facts=facts(await _says(view, shown)),
        vaults=await _vaults(view, found),
        history=await _history(view, [(one.timestamp, one.actor, _pairs(one.changes)) for one in entries]),
        days=_DAYS,
        older=skipped + _SHOWN if skipped + _SHOWN < len(log.data) else None,
        since=since,
        **_form(view),
    )


@action("/policies/check", roles=ADMINS)
async def check_form(view: View) -> Response:
    """Return a sentence about each typed rule, or an error message. A script inserts the texts into the open page."""
    checked = await check(view)
    said = dict.fromkeys(blank(), "") | await _says(view, checked.shown)
    return view.render("policy_says.html", says=said, wrong=checked.errors)


@action("/policies/{policy_id}/review", roles=ADMINS, back=show)
async def review(view: View) -> Response:
    """Show the changes made in the policy's form, and the affected vaults, before the changes are saved."""
    found = await _policy(view)
    wanted = await _wanted(view, found)
    if not wanted:
        raise RequestError("invalid_request", _NOTHING_CHANGED)
    approvals = wanted.get(RULE, (None, None))
    return view.render(
        "policy_review.html",
        policy=found,
        votes=votes_to_weaken(approvals[0]) if weakens(*approvals) else 0,
        differences=differences(wanted),
        says=await _says(view, shown_by(found) | {name: after for name, (_, after) in wanted.items()}),
        days=_DAYS,
        vaults=await _vaults(view, found),
        replayed=bool(wanted.keys() - set(DETAILS)),
        fields=[(name, value) for name, value in view.form if name != "csrf"],
        offline=view.service.signers.authority is None,
    )


@action("/policies/{policy_id}/preview", roles=ADMINS)
async def show_preview(view: View) -> Response:
    """Show the outcomes of the last 30 days' payments under the new rules. A script inserts them into the review."""
    policy = await _policy(view)
    try:
        wanted = await _wanted(view, policy)
        body = PreviewPolicy.model_validate({name: after for name, (_, after) in wanted.items()})
        found = await preview(view.service, view.principal, view.path("policy_id"), body, days=_DAYS)
    except (ApiError, ChainUnavailable, RpcError) as error:
        # The change can be saved without a preview.
        known = error if isinstance(error, ApiError) else UnavailableError("chain_unavailable")
        return view.render("policy_preview.html", problem=known.message, preview=None, labels={}, payees={})
    ids = {one.wallet_id for one in found.changes}
    named = await view.service.db.read(lambda conn: labels(conn, ids))
    payees = await payee_names(view, (one.recipient for one in found.changes))
    return view.render("policy_preview.html", problem=None, preview=found, labels=named, payees=payees)


@action("/policies/{policy_id}/edit", roles=ADMINS, back=show)
async def edit(view: View) -> Response:
    """Go back from the review to the policy's form, with the typed values."""
    await _policy(view)
    return await show.shown(view)


@action("/policies/{policy_id}", roles=ADMINS, back=show, step_up=True)
async def save(view: View) -> str:
    """Save the changes made in the policy's form, unless the policy has changed since the form was opened."""
    found = await _policy(view)
    wanted = await _wanted(view, found)
    if not wanted:
        raise RequestError("invalid_request", _NOTHING_CHANGED)
    body = UpdatePolicy.model_validate({name: after for name, (_, after) in wanted.items()} | consent(view))
    await changes.update(_request(view), body)
    return view.url("policies", found.policy_id, done="policy-saved")


@action("/policies", roles=ADMINS, back=new, step_up=True)
async def create(view: View) -> str:
    """Create a policy, or a copy of a policy with the changes made in the form."""
    source = view.typed("source") or None
    wanted = await meant(view)
    base = blank() if source is None else shown_by(await policies.get(view.service, view.principal, source))
    given = {name: wanted[name] for name in ("name", *changed(base, wanted))} | consent(view)
    body = CreatePolicy.model_validate(given) if source is None else ClonePolicy.model_validate(given)
    made = await once(view, body, Policy, view.asks(policies.create, body, source))
    return view.url("policies", made.policy_id, done="policy-created")


@action("/policies/{policy_id}/delete", roles=ADMINS, back=show, step_up=True)
async def delete(view: View) -> str:
    """Delete a policy. A policy with vaults is not deleted."""
    await changes.delete(_request(view))
    return view.url("policies", done="policy-deleted")


async def _policy(view: View) -> Policy:
    return await policies.get(view.service, view.principal, view.path("policy_id"))


async def _wanted(view: View, found: Policy) -> dict[str, tuple[Any, Any]]:
    """Return the old and new value of each changed field. Raises ``version_conflict`` if the form is outdated."""
    wanted = changed(shown_by(found), await meant(view))
    if view.typed("expected_version") != tag_of(found):
        raise concurrent_edit("policy")
    return wanted


async def _merge_concurrent_edits(view: View, found: Policy) -> list[_Change]:
    """Return the changes saved since the form was opened, and copy them into the form's unedited fields.

    Does nothing while a typed value is invalid.
    """
    tag = view.typed("expected_version")
    if not tag or tag == tag_of(found):
        return []
    checked = await check(view)
    if checked.errors:
        return []
    org, policy_id = view.principal.org, found.policy_id
    log = await view.service.db.read(lambda conn: policy_audit_log(conn, org, policy_id), in_thread=True)
    base, since = before_changes(found, log, tag)
    view.form = fields_of(merged(base, shown_by(found), checked.shown), expected_version=tag_of(found))
    return await _history(
        view, [(when(one), one.changed_by or audit.UNKNOWN, _raw_pairs(one.changes)) for one in since]
    )


def _form(view: View) -> dict[str, Any]:
    """Return the values that the form's template needs."""
    offline = view.service.signers.authority is None
    return {"categories": CATEGORIES, "host_choices": HOST_CHOICES, "flag_choices": FLAG_CHOICES, "offline": offline}


async def _says(view: View, shown: Mapping[str, Any]) -> dict[str, Words]:
    """Return a sentence for each rule, and the names of the allowed recipients below their sentence."""
    said, listed = sentences(shown, _reader(view)), shown.get("allowed_recipients", [])
    if listed:
        said["allowed_recipients"] += chips(listed, await payee_names(view, listed))
    return said


def _reader(view: View) -> Reader:
    service = view.service
    return Reader(service.clock.seen_ms(), any_host=service.identity.cluster == "localnet")


async def _vaults(view: View, found: Policy) -> list[tuple[str, str]]:
    """Return id and label of vaults under a policy, most recently used first."""
    record = await policies.find(view.service, view.principal.org, found.policy_id)
    return await labelled(view, lambda conn: attached_wallets(conn, record.address, _VAULTS))


async def _history(view: View, entries: list[tuple[str, Actor, dict[str, tuple[Any, Any]]]]) -> list[_Change]:
    names = await names_of(view.service, view.principal.org, {actor for _, actor, _ in entries})
    return [_Change(timestamp, names[actor], differences(pairs)) for timestamp, actor, pairs in entries]


def _pairs(found: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    return {name: (one.before, one.after) for name, one in found.items()}


def _raw_pairs(found: Shown) -> dict[str, tuple[Any, Any]]:
    return {name: (one["from"], one["to"]) for name, one in found.items()}


def _request(view: View) -> PolicyChange:
    expected = Precondition([view.typed("expected_version")])
    return PolicyChange(view.service, view.principal, view.claim(), view.path("policy_id"), expected)
