"""Entries of the audit log as sentences with names and amounts."""

from collections.abc import Mapping
from decimal import Decimal, InvalidOperation
from typing import Any

from markupsafe import Markup

from app.dashboard.forms.formatting import Words, short, usdc, words
from app.dashboard.forms.policy_sentences import differences

_VERBS: Mapping[str, str] = {
    "archive": "archived",
    "clone": "copied a policy to",
    "create": "created",
    "delete": "deleted",
    "freeze": "froze",
    "join": "joined as",
    "pause": "paused",
    "register": "registered",
    "remove": "removed",
    "revoke": "revoked",
    "rotate": "replaced",
    "unfreeze": "unfroze",
    "unpause": "ended the pause of",
    "update": "changed",
}
_NOUNS: Mapping[str, str] = {"wallet": "the vault", "key": "the API key", "organization": "", "session": "a token of"}
_SENTENCES: Mapping[str, str] = {
    "alerts.set": "{who} set the alert rules of {it}",
    "allowance.grant": "{who} granted an allowance of {amount} to {delegate}",
    "approval.approve": "{who} approved {it}",
    "approval.reject": "{who} rejected {it}",
    "escrow.resolve": "{who} decided a dispute: {decision}, {released_amount} to the receiver",
    "organization.withdraw": "{who} withdrew {amount} from the reserve to {to}",
    "person.invite": "{who} invited a person as {role}",
    "person.sign_in": "{who} signed in",
    "person.sign_out": "{who} signed out",
    "person.step_up": "{who} confirmed their identity",
    "topup.set": "{who} set the automatic top-up of {it}: {topup_amount} when the balance is below {trigger_below}",
    "wallet.withdraw": "{who} moved {amount} from {it} to the reserve",
}
"""Sentences for actions that have an amount or no single object. They contain details by name."""


def sentence(action: str, who: Words, it: Words | None, details: Mapping[str, Any]) -> Words:
    """Return an entry as a sentence. ``it`` is the name of its object.

    If the entry lacks a detail, as older entries do, return the action in words and the actor.
    """
    noun, _, verb = action.partition(".")
    try:
        if details.get("changes"):
            return _changed(who, it, {name: (one["from"], one["to"]) for name, one in details["changes"].items()})
        if action == "wallet.fund":
            sums = details.get("allocations") or [details]
            total = usdc(str(sum(Decimal(one["amount"]) for one in sums)))
            whom = it if "amount" in details else f"{len(sums)} vaults"
            return Markup("{} funded {} with {} USDC").format(who, whom, total)
        if action in _SENTENCES and (it or "{it}" not in _SENTENCES[action]) and details.get("enabled", True):
            given = {name: _value(name, value) for name, value in details.items()}
            return Markup(_SENTENCES[action]).format(**{**given, "who": who, "it": it})  # noqa: S704 (the templates are constants)
        if verb in _VERBS and it:
            return Markup("{} {} {} {}").format(who, _VERBS[verb], _NOUNS.get(noun, f"the {noun}"), it)
    except (KeyError, TypeError, ValueError, AttributeError, InvalidOperation):
        pass
    return Markup("{}: {}").format(words(action), who)


def _changed(who: Words, it: Words | None, changes: Mapping[str, tuple[Any, Any]]) -> Words:
    found = differences(changes)
    said = [Markup("{} from {} to {}").format(one.label, one.before, one.after) for one in found]
    if len(found) == 1 and None not in (pair := changes[found[0].name]):
        verb = "raised" if Decimal(pair[1]) > Decimal(pair[0]) else "lowered"
        return Markup("{} {} “{}” of {} from {} to {}").format(
            who, verb, found[0].label, it, found[0].before, found[0].after
        )
    return Markup("{} changed {}: {}").format(who, it, Markup("; ").join(said))


def _value(name: str, value: Any) -> Words:
    if value == "all":
        return "the whole balance"
    if "amount" in name or name == "trigger_below":
        return f"{usdc(value)} USDC"
    return short(value) if isinstance(value, str) else str(value)
