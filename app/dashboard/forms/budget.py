"""The form of a budget: its fields, the typed values, their changes, and a sentence about each limit."""

from collections.abc import Mapping
from dataclasses import dataclass

from markupsafe import Markup

from app.api.forms import Fields, InvalidFormError, validated
from app.api.versions import entity_tag
from app.budgets.models import Budget, CreateBudget
from app.budgets.service import LIMITS, with_changes
from app.chain.rules import BudgetLimits
from app.core.money import parse_usdc
from app.dashboard.forms.error_messages import messages_of
from app.dashboard.forms.formatting import Words, moment, usdc
from app.dashboard.forms.policy import changed, merged
from app.dashboard.forms.policy_sentences import FieldChange, differences
from app.dashboard.pages import FORM_KEY, View
from app.projection.differences import Shown, shown_limits

FIELDS = ("name", *LIMITS)
#: The prefix of the hidden fields with the values that the form showed at first.
_WAS = "was_"
#: Limits of money, and their periods.
_PERIODS = {"max_per_day": "in any 24 hours", "max_per_month": "in a calendar month (UTC)", "max_total": "in total"}
_NONE_LEFT = "Every payment of the budget's vaults is refused."


@dataclass(frozen=True, slots=True)
class Bar:
    """The used part of a budget's limit. `limit`, `left` and `share`, in per cent, are None if there is no limit."""

    name: str
    period: str
    used: str
    limit: str | None
    left: str | None
    share: int | None


def shown_by(budget: Budget) -> Shown:
    """Return the fields of a budget that its form can change."""
    return {name: getattr(budget, name) for name in FIELDS}


def tag_of(budget: Budget) -> str:
    """Return the tag of a budget's version. The form sends the tag back, so that it cannot change a newer version."""
    return entity_tag(budget.version, budget.name)


def fields_of(shown: Shown, budget: Budget) -> Fields:
    """Return the fields of a budget's form with these values, as a browser sends them."""
    was = {f"{_WAS}{name}": value for name, value in shown_by(budget).items()}
    fields = [(name, "" if value is None else str(value)) for name, value in (shown | was).items()]
    # A browser's input for a time has no zone. The form says that it is UTC.
    fields = [(name, value.removesuffix("Z") if name.endswith("expires_at") else value) for name, value in fields]
    return [*fields, ("expected_version", tag_of(budget))]


def new(view: View) -> CreateBudget:
    """Return the form as the body of a request to create a budget. Raises InvalidFormError."""
    parent = view.typed("parent_id") or None
    return validated(CreateBudget, {**_values(view), "parent_id": parent, FORM_KEY: view.typed(FORM_KEY)})


def wanted(view: View) -> Shown:
    """Return the fields that the form changes, with their new values. Raises InvalidFormError."""
    return {name: after for name, (_, after) in changed(_meant(view, _WAS), _meant(view)).items()}


def typed_differences(view: View) -> list[FieldChange]:
    """Return the changes made in the form, for display. Raises InvalidFormError."""
    return differences(changed(_meant(view, _WAS), _meant(view)))


def merge_concurrent_edits(view: View, budget: Budget) -> list[FieldChange]:
    """Return the changes saved since the form was opened, and copy them into the form's unedited fields.

    Does nothing while a typed value is invalid.
    """
    if view.typed("expected_version") == tag_of(budget):
        return []
    try:
        base, typed = _meant(view, _WAS), _meant(view)
    except InvalidFormError:
        return []
    now = shown_by(budget)
    view.form = fields_of(merged(base, now, typed), budget)
    return differences(changed(base, now))


def check(view: View) -> tuple[Shown, Mapping[str, str]]:
    """Return the valid limits of the form, and a message about each invalid field."""
    values, errors = _values(view), {}
    try:
        validated(CreateBudget, values)
    except InvalidFormError as error:
        errors = dict(messages_of(error, view.form))
    body = validated(CreateBudget, {name: one for name, one in values.items() if name not in errors} | {"name": "-"})
    limits = shown_limits(with_changes(BudgetLimits(), body))
    return {name: one for name, one in limits.items() if name not in errors}, errors


def sentences(shown: Shown) -> dict[str, Words]:
    """Return a sentence about each limit, by its name. ``shown`` may lack some limits."""
    found: dict[str, Words] = {
        name: _spending(shown[name], period) for name, period in _PERIODS.items() if name in shown
    }
    day, month = shown.get("max_per_day"), shown.get("max_per_month")
    if day and month and 0 < parse_usdc(month, allow_zero=True) < parse_usdc(day, allow_zero=True):
        found["max_per_day"] += f" The limit of {usdc(month)} for the month is lower, so it can refuse first."
    if "velocity_cap" in shown:
        found["velocity_cap"] = _paying(shown["velocity_cap"])
    if "expires_at" in shown:
        found["expires_at"] = _end(shown["expires_at"])
    return found


def bars(budget: Budget) -> list[Bar]:
    """Return a bar for each limit of a budget, or an empty list if the chain did not answer."""
    spent, left = budget.consumption, budget.headroom
    if spent is None or left is None:
        return []
    sums = (spent.day, spent.month, spent.total, spent.held)
    day, month, total, held = (parse_usdc(one, allow_zero=True) for one in sums)
    return [
        _money_bar("day", "in 24 hours", day + held, budget.max_per_day, left.day),
        _money_bar("month", "this month", month + held, budget.max_per_month, left.month),
        _money_bar("total", "in total", total + held, budget.max_total, left.total),
        Bar(
            "hour",
            "payments in an hour",
            f"{spent.payments_in_hour:,}",
            None if budget.velocity_cap is None else f"{budget.velocity_cap:,}",
            None if left.payments_in_hour is None else f"{left.payments_in_hour:,}",
            None if budget.velocity_cap is None else _share(spent.payments_in_hour, budget.velocity_cap),
        ),
    ]


def _money_bar(name: str, period: str, used: int, limit: str | None, left: str | None) -> Bar:
    if limit is None:
        return Bar(name, period, usdc(used), None, None, None)
    share = _share(used, parse_usdc(limit, allow_zero=True))
    return Bar(name, period, usdc(used), usdc(limit), usdc(left), share)


def _share(used: int, limit: int) -> int:
    return 100 if used >= limit else used * 100 // limit


def _spending(limit: str | None, period: str) -> str:
    if limit is None:
        return f"The budget sets no spending limit {period}."
    if not parse_usdc(limit, allow_zero=True):
        return _NONE_LEFT
    return f"The budget's vaults together may spend at most {usdc(limit)} USDC {period}."


def _end(value: str | None) -> Words:
    if value is None:
        return "The budget has no end."
    return Markup("After {} every payment of the budget's vaults is refused.").format(moment(value))


def _paying(count: int | None) -> str:
    if count is None:
        return "The budget does not limit the number of payments. The policies of its vaults may do so."
    payments = "1 payment" if count == 1 else f"{count:,} payments"
    return f"The budget's vaults together may make at most {payments} in any hour." if count else _NONE_LEFT


def _meant(view: View, prefix: str = "") -> Shown:
    """Return the budget's fields as the form's fields with this prefix describe them. Raises InvalidFormError."""
    body = validated(CreateBudget, _values(view, prefix))
    return {"name": body.name, **shown_limits(with_changes(BudgetLimits(), body))}


def _values(view: View, prefix: str = "") -> dict[str, int | str]:
    """Return the user's input as the fields of the API's request body."""
    values = {name: view.typed(f"{prefix}{name}").strip() for name in FIELDS}
    return {**values, "velocity_cap": view.number(f"{prefix}velocity_cap")}
