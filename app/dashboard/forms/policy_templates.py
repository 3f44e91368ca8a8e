"""Templates of policies by use. A template fills the form of a new policy and is validated like any other policy."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from app.policies.models import CreatePolicy

_RISKY = ["adult", "cash_out", "dating", "drugs", "gambling", "lottery", "mixer", "weapons"]


@dataclass(frozen=True, slots=True)
class Template:
    """A template: its use as a sentence, and the policy that it fills in."""

    use: str
    body: CreatePolicy


def _template(use: str, **fields: Any) -> Template:
    return Template(use, CreatePolicy.model_validate({"blocked_categories": _RISKY, **fields}))


#: All templates, by the name in the page's address. Amounts are in USDC.
TEMPLATES: Mapping[str, Template] = {
    "api-calls": _template(
        "Many small payments for data, models and tools.",
        name="API calls",
        max_per_tx="1",
        max_per_day="25",
        max_per_month="300",
        velocity_cap=300,
    ),
    "ads": _template(
        "Campaigns within a monthly budget. A large booking waits for a person.",
        name="Ads",
        max_per_tx="500",
        max_per_day="1000",
        max_per_month="15000",
        velocity_cap=20,
        require_co_sign="200",
    ),
    "travel": _template(
        "Few large bookings. An expensive one waits for a person.",
        name="Travel",
        max_per_tx="2000",
        max_per_day="4000",
        max_per_month="20000",
        velocity_cap=10,
        require_co_sign="500",
    ),
    "contractors": _template(
        "Invoices of registered payees. Every one waits for a person.",
        name="Contractors",
        max_per_tx="5000",
        max_per_day="10000",
        max_per_month="40000",
        velocity_cap=10,
        require_co_sign="0",
        blocked_categories=["uncategorized", *_RISKY],
    ),
}
