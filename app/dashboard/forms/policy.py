"""The form of a policy: its fields, the typed values, and their changes."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from app.api.forms import Fields, InvalidFormError, validated
from app.api.versions import entity_tag
from app.core.errors import RequestError
from app.core.hosts import ANY_HOST
from app.core.timestamps import iso_ms
from app.dashboard.forms.error_messages import messages_of
from app.dashboard.forms.policy_sentences import MONEY
from app.dashboard.pages import View
from app.policies.models import CreatePolicy, Policy, UpdatePolicy
from app.policies.terms import NO_TERMS, apply_changes
from app.projection.differences import Shown, difference
from app.projection.differences import shown as shown_rules
from app.store.policies import DEFAULTS, DETAILS, AuditRecord

_NUMBERS = ("velocity_cap", "max_open_escrows")
#: Choices for a flag of a policy: the value that the form sends, and its label.
FLAG_CHOICES = (("", "No"), ("yes", "Yes"))
_FLAGS, _YES = ("allow_allowances", "opens_accounts"), "yes"
_CONSENT = "allow_unverified_recipient"
_TEXTS = ("name", *MONEY, "expiry")
#: Choices of hosts: the network's default, any host, or only the listed hosts.
HOST_CHOICES = (("default", "The default"), ("any", "Any host"), ("only", "Only the hosts below"))
_DIGITS = 10


@dataclass(frozen=True, slots=True)
class Checked:
    """The valid fields of a form, in the format of API responses, and the errors of the invalid fields."""

    shown: Shown
    errors: Mapping[str, str]


def blank(name: str = "") -> Shown:
    """Return a policy without rules, in the format of API responses."""
    return {**DEFAULTS, "name": name, **shown_rules(NO_TERMS.rules, [])}


def shown_by(policy: Policy) -> Shown:
    """Return the fields of a policy that its form can change."""
    return {name: getattr(policy, name) for name in blank()}


def tag_of(policy: Policy) -> str:
    """Return the tag of a policy's version. The form sends the tag back, so that it cannot change a newer version."""
    return entity_tag(policy.version, *(getattr(policy, name) for name in DETAILS))


def fields_of(shown: Shown, **hidden: str) -> Fields:
    """Return the fields of the form that shows a policy, as a browser sends them."""
    fields = [(name, str(shown[name] if shown[name] is not None else "")) for name in (*_TEXTS, *_NUMBERS)]
    # A browser's input for a time has no time zone. The form states that the time is in UTC.
    fields = [(name, value.removesuffix("Z") if name == "expiry" else value) for name, value in fields]
    fields.append(("allowed_recipients", "\n".join(shown["allowed_recipients"])))
    fields += [("blocked_categories", one) for one in shown["blocked_categories"]]
    fields += [(name, _YES if shown[name] else "") for name in _FLAGS]
    hosts = shown["x402_hosts"]
    choice = "default" if hosts is None else "any" if hosts == [ANY_HOST] else "only"
    fields += [("x402_choice", choice), ("x402_hosts", "\n".join(hosts or []) if choice == "only" else "")]
    rule = shown["approvals"] or {"required": "", "above": ""}
    fields += [(f"approvals_{name}", str(value)) for name, value in rule.items()]
    return fields + list(hidden.items())


async def meant(view: View) -> Shown:
    """Return the policy described by the form's typed values. Raises InvalidFormError and ``invalid_recipient``."""
    return await shown_as(view, validated(CreatePolicy, _values(view)))


async def check(view: View) -> Checked:
    """Return the valid fields of the form, and a message about each invalid field."""
    values, errors = _values(view), {}
    try:
        validated(CreatePolicy, values)
    except InvalidFormError as error:
        errors = dict(messages_of(error, view.form))
        # An error inside the rule about approvals belongs to no single field.
        values = {name: value for name, value in values.items() if name != "approvals" or "" not in errors}
    body = validated(UpdatePolicy, {name: value for name, value in values.items() if name not in errors})
    try:
        shown = await shown_as(view, body)
    except RequestError as error:
        errors |= messages_of(error, view.form)
        shown = await shown_as(view, body.model_copy(update={"allowed_recipients": []}))
    return Checked({name: value for name, value in shown.items() if name not in errors}, errors)


async def shown_as(view: View, body: CreatePolicy | UpdatePolicy) -> Shown:
    """Return the policy that a body describes, in the format of API responses. Raises ``invalid_recipient``."""
    terms = await apply_changes(view.service, view.principal.org, NO_TERMS, body)
    rules = shown_rules(terms.rules, list(terms.entries.values()))
    return {**{name: getattr(body, name) for name in DETAILS}, **rules}


def consent(view: View) -> dict[str, bool]:
    """Return the body's field that accepts recipients without a known owner. Empty if the box is unchecked."""
    return {_CONSENT: True} if view.typed(_CONSENT) == _YES else {}


def changed(before: Shown, after: Shown) -> dict[str, tuple[Any, Any]]:
    """Return the fields that differ, with both values."""
    return {name: (one["from"], one["to"]) for name, one in difference(before, after).items()}


def before_changes(now: Policy, log: Sequence[AuditRecord], tag: str) -> tuple[Shown, list[AuditRecord]]:
    """Return a policy as shown by a form with this tag, and the later changes from the policy's log, oldest first."""
    known = tag.partition("-")[0]
    version = int(known) if known.isdecimal() and len(known) <= 2 * _DIGITS else now.version
    shown, since = shown_by(now), list[AuditRecord]()
    for entry in reversed(log):
        if entry.version is None:
            # Off-chain changes, such as a new name, do not raise the version. They are recognised by the tag.
            if entity_tag(version, *(shown[name] for name in DETAILS)) == tag:
                break
        elif entry.version <= version:
            break
        shown |= {name: change["from"] for name, change in entry.changes.items() if name in shown}
        since.insert(0, entry)
    return shown, since


def merged(base: Shown, now: Shown, typed: Shown) -> Shown:
    """Return the typed value of each edited field, and the current value of each other field."""
    return {name: now[name] if typed[name] == base[name] else typed[name] for name in now}


def _values(view: View) -> dict[str, Any]:
    """Return the typed values in the form of the API's body."""
    values: dict[str, Any] = {name: view.typed(name).strip() for name in _TEXTS}
    values |= {name: _number(view.typed(name).strip()) for name in _NUMBERS}
    values |= {name: view.typed(name) == _YES for name in _FLAGS}
    values["allowed_recipients"] = _lines(view.typed("allowed_recipients"))
    values["blocked_categories"] = view.chosen("blocked_categories")
    required, above = (view.typed(f"approvals_{name}").strip() for name in ("required", "above"))
    if required or above:
        values["approvals"] = {"required": _number(required), "above": above}
    choice = view.typed("x402_choice", "default")
    if choice != "default":
        values["x402_hosts"] = [ANY_HOST] if choice == "any" else _lines(view.typed("x402_hosts"))
    return values


def _number(text: str) -> int | str:
    return int(text) if text.isascii() and text.isdecimal() and len(text) <= _DIGITS else text


def _lines(text: str) -> list[str]:
    return list(dict.fromkeys(line.strip() for line in text.splitlines() if line.strip()))


def when(entry: AuditRecord) -> str:
    """Return the time of a change as the API shows it."""
    return iso_ms(entry.timestamp)
