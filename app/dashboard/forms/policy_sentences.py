"""Policies in plain words: a sentence about each rule, and the effect of a change."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from markupsafe import Markup

from app.core.hosts import ANY_HOST
from app.core.money import parse_usdc
from app.core.timestamps import parse_iso_ms
from app.dashboard.forms.formatting import LABELS, Words, moment, short, usdc, words
from app.policies.models import MAX_OPEN_ESCROWS

MONEY = ("max_per_tx", "max_per_day", "max_per_month", "require_co_sign", "new_recipient_cap")
_UNSET: Mapping[str, str] = {
    "velocity_cap": "no cap",
    "require_co_sign": "never",
    "approvals": "none",
    "expiry": "never",
    "expires_at": "never",
    "max_open_escrows": str(MAX_OPEN_ESCROWS),
    "x402_hosts": "the default",
    "allowed_recipients": "any",
    "blocked_categories": "none",
}
_ALL_REFUSED = "Every payment is refused."
_MIXED_UP = " The cap of {} is lower, so it can refuse first."
#: Maximum number of entries of a list that a page names.
_NAMED = 20


@dataclass(frozen=True, slots=True)
class Reader:
    """The context of a rule's sentence: the time in Unix milliseconds, and True if any host is allowed by default."""

    now: int
    any_host: bool


@dataclass(frozen=True, slots=True)
class FieldChange:
    """A changed field of a policy or budget: its old and new value. A list also has its added and removed entries."""

    name: str
    label: str
    before: Words
    after: Words
    added: Sequence[str] = field(default=())
    removed: Sequence[str] = field(default=())
    #: The number of added and removed entries that are not named.
    unnamed: int = 0


def sentences(shown: Mapping[str, Any], reader: Reader) -> dict[str, Words]:
    """Return a sentence for each rule in ``shown``, by the rule's name. ``shown`` may lack some rules."""
    found = {name: say(shown[name], reader) for name, say in _SAYS.items() if name in shown}
    for name, lower, label in (
        ("max_per_tx", "max_per_day", "24 hours"),
        ("max_per_tx", "max_per_month", "the month"),
        ("max_per_day", "max_per_month", "the month"),
        ("require_co_sign", "max_per_tx", "a payment"),
    ):
        amount, cap = shown.get(name), shown.get(lower)
        if amount and cap and 0 < parse_usdc(cap, allow_zero=True) < parse_usdc(amount, allow_zero=True):
            found[name] += _MIXED_UP.format(f"{usdc(cap)} for {label}")
    return found


def differences(changes: Mapping[str, tuple[Any, Any]]) -> list[FieldChange]:
    """Return changed fields in the order of the form. ``changes`` has the old and the new value of each field."""
    return [_difference(name, *changes[name]) for name in LABELS if name in changes]


def _difference(name: str, before: Any, after: Any) -> FieldChange:
    if not isinstance(before, list | None) or not isinstance(after, list | None) or not (before or after):
        return FieldChange(name, LABELS[name], worth(name, before), worth(name, after))
    old, new = before or [], after or []
    added, removed = ([one for one in new if one not in set(old)], [one for one in old if one not in set(new)])
    show: Callable[[str], str] = words if name == "blocked_categories" else str
    return FieldChange(
        name,
        LABELS[name],
        worth(name, before),
        worth(name, after),
        [show(one) for one in added[:_NAMED]],
        [show(one) for one in removed[:_NAMED]],
        len(added[_NAMED:]) + len(removed[_NAMED:]),
    )


def worth(name: str, value: Any) -> Words:
    """Return a field's value as words for a table of changes."""
    if value is None or (value == [] and name != "x402_hosts"):
        return _UNSET.get(name, "no cap")
    if isinstance(value, dict):
        return f"{value['required']} above {usdc(value['above'])} USDC"
    if isinstance(value, bool):
        return "allowed" if value else "not allowed"
    if name in {*MONEY, "max_total"}:
        return f"{usdc(value)} USDC"
    if name in {"expiry", "expires_at"}:
        return moment(value)
    if isinstance(value, list):
        return "any host" if value == [ANY_HOST] else f"{len(value) or 'no'} {_unit(name, len(value))}"
    return str(value)


def _unit(name: str, count: int) -> str:
    one, many = {
        "allowed_recipients": ("recipient", "recipients"),
        "blocked_categories": ("category", "categories"),
    }.get(name, ("host", "hosts"))
    return one if count == 1 else many


def _per_payment(value: str | None, _: Reader) -> Words:
    if value is None:
        return "This policy has no cap for a single payment."
    if not parse_usdc(value, allow_zero=True):
        return _ALL_REFUSED
    return f"A payment of more than {usdc(value)} USDC is refused."


def _per_period(period: str) -> Callable[[str | None, Reader], Words]:
    def say(value: str | None, _: Reader) -> Words:
        if value is None:
            return f"This policy has no spending cap in {period}."
        if not parse_usdc(value, allow_zero=True):
            return _ALL_REFUSED
        return f"Each vault may spend at most {usdc(value)} USDC in {period}."

    return say


def _per_hour(value: int | None, _: Reader) -> Words:
    if value is None:
        return "This policy does not limit the number of payments."
    payments = "1 payment" if value == 1 else f"{value:,} payments"
    return f"Each vault may make at most {payments} in any hour." if value else _ALL_REFUSED


def _recipients(value: list[str], _: Reader) -> Words:
    if not value:
        return "There is no allowlist: any recipient may be paid unless its category is blocked."
    only = "this recipient" if len(value) == 1 else f"these {len(value):,} recipients"
    return f"Only {only} can be paid. Payments to others are refused."


def _categories(value: list[str], _: Reader) -> Words:
    if not value:
        return "No category is refused."
    said = f"Recipients in {_joined([words(one) for one in value])} are refused."
    if "uncategorized" in value:
        return f"{said} So are unregistered addresses."
    return f"{said} Unregistered addresses belong to no other category. Block Uncategorized to refuse them."


def _approval(value: str | None, _: Reader) -> Words:
    if value is None:
        return "No payment needs an approval."
    if not parse_usdc(value, allow_zero=True):
        return "Every payment of an agent waits for an operator's approval."
    return f"An agent's payment of more than {usdc(value)} USDC waits for an operator's approval."


def _new_recipients(value: str | None, _: Reader) -> Words:
    if value is None:
        return "New recipients have no cap of their own."
    return f"Until 24 hours after its first payment, a recipient gets at most {usdc(value)} USDC without an approval."


def _people(value: Mapping[str, Any] | None, _: Reader) -> Words:
    if value is None:
        return "No payment needs approvals by several people."
    people = "1 person" if value["required"] == 1 else f"{value['required']} people"
    return f"A payment of more than {usdc(value['above'])} USDC must be approved by {people}, each by passkey."


def _end(value: str | None, reader: Reader) -> Words:
    if value is None:
        return "The policy has no end."
    if parse_iso_ms(value) <= reader.now:
        return "This time has passed: every payment is refused, and the keeper freezes the policy's vaults."
    return Markup("After {} every payment is refused, and the keeper freezes the policy's vaults.").format(
        moment(value)
    )


def _escrows(value: int | None, _: Reader) -> Words:
    count = MAX_OPEN_ESCROWS if value is None else value
    return f"Each vault may have at most {count} escrows open at a time." if count else "No escrow may be opened."


def _allowances(value: bool, _: Reader) -> Words:
    if not value:
        return "No vault may hand money to a delegate."
    return (
        "A vault may set money aside for a delegate, who pays by a plain transfer. All rules are checked beforehand, "
        "but the holder of the delegate's key alone decides where the money goes."
    )


def _opened(value: bool, _: Reader) -> Words:
    if not value:
        return "Paid requests go only to payees that have a USDC account."
    return "Paid requests out of an allowance may open the payee's USDC account. The fee payer pays its rent."


def _hosts(value: list[str] | None, reader: Reader) -> Words:
    if value is None:
        return f"The default of this network: paid requests may go to {'any host' if reader.any_host else 'no host'}."
    if not value:
        return "Paid requests are refused."
    return f"Paid requests may go to {'any host' if ANY_HOST in value else 'only ' + _joined(value)}."


def _joined(texts: Sequence[str]) -> str:
    named = list(texts[:_NAMED]) + ([f"{len(texts) - _NAMED} more"] if len(texts) > _NAMED else [])
    return named[0] if len(named) == 1 else f"{', '.join(named[:-1])} and {named[-1]}"


_SAYS: Mapping[str, Callable[[Any, Reader], Words]] = {
    "max_per_tx": _per_payment,
    "max_per_day": _per_period("any 24 hours"),
    "max_per_month": _per_period("a calendar month (UTC)"),
    "velocity_cap": _per_hour,
    "allowed_recipients": _recipients,
    "blocked_categories": _categories,
    "require_co_sign": _approval,
    "new_recipient_cap": _new_recipients,
    "approvals": _people,
    "expiry": _end,
    "max_open_escrows": _escrows,
    "allow_allowances": _allowances,
    "x402_hosts": _hosts,
    "opens_accounts": _opened,
}


def facts(said: Mapping[str, Words]) -> list[tuple[str, Words]]:
    """Return label and sentence of each rule, for a page without a form."""
    return [(label, said[name]) for name, label in LABELS.items() if name in said]


def chips(payees: Sequence[str], names: Mapping[str, str]) -> Markup:
    """Return each payee by its name, or else by its short address. The full address is in the title."""
    shown = [(one, names.get(one) or short(one)) for one in payees[:_NAMED]]
    more = Markup(" and {:,} more").format(len(payees) - _NAMED) if len(payees) > _NAMED else ""
    return Markup("").join(Markup(' <span class="chip" title="{}">{}</span>').format(*one) for one in shown) + more
