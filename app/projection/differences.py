"""The difference between two versions of a policy, as the API shows it."""

from collections.abc import Sequence
from typing import Any

from app.chain.rules import BudgetLimits, Rules, category_names
from app.core.money import format_usdc
from app.core.timestamps import iso

Shown = dict[str, Any]


def shown(rules: Rules, allowed_recipients: Sequence[str]) -> Shown:
    """Return a policy's rules as the API shows them."""
    return {
        "max_per_tx": _money(rules.max_per_tx),
        "max_per_day": _money(rules.max_per_day),
        "max_per_month": _money(rules.max_per_month),
        "velocity_cap": rules.velocity_cap,
        "allowed_recipients": list(allowed_recipients) if rules.restricted else [],
        "blocked_categories": category_names(rules.blocked_categories),
        "require_co_sign": _money(rules.require_co_sign),
        "new_recipient_cap": _money(rules.new_recipient_cap),
        "max_open_escrows": rules.max_open_escrows,
        "allow_allowances": rules.allow_allowances,
        "expiry": None if rules.expiry is None else iso(rules.expiry),
    }


def shown_limits(limits: BudgetLimits) -> Shown:
    """Return a budget's limits as the API shows them."""
    return {
        "max_per_day": _money(limits.max_per_day),
        "max_per_month": _money(limits.max_per_month),
        "velocity_cap": limits.velocity_cap,
        "max_total": _money(limits.max_total),
        "expires_at": None if limits.expires_at is None else iso(limits.expires_at),
    }


def difference(before: Shown, after: Shown) -> dict[str, dict[str, Any]]:
    """Return the changed fields, as `{field: {"from": ..., "to": ...}}`."""
    return {name: {"from": before[name], "to": value} for name, value in after.items() if before[name] != value}


def _money(micro: int | None) -> str | None:
    return None if micro is None else format_usdc(micro)
