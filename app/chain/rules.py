"""A policy's rules as the program stores them, and the names of the program's codes."""

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Self

CATEGORIES = (
    "uncategorized",
    "adult",
    "alcohol_tobacco",
    "cash_out",
    "crypto_exchange",
    "dating",
    "drugs",
    "financial",
    "gambling",
    "gift_cards",
    "lottery",
    "marketplace",
    "mixer",
    "nft",
    "pharmacy",
    "political",
    "privacy_tool",
    "securities",
    "subscription",
    "weapons",
)
"""Category names. The index of a name is its code."""

RULES = (
    "paused",
    "frozen",
    "expiry",
    "allowed_recipients",
    "blocked_categories",
    "max_per_tx",
    "velocity_cap",
    "max_per_day",
    "max_per_month",
    "require_co_sign",
    "budget_max_per_day",
    "budget_max_per_month",
    "budget_velocity_cap",
    "budget_max_total",
    "budget_expired",
    "budget_frozen",
    "new_recipient",
)
"""Rule names. The index of a name is its code. The program applies `require_co_sign` and `new_recipient` last, and the
rules of a budget before those of its parent.
"""

BUDGET_RULES = RULES[10:16]
"""Rules that belong to a wallet's budget. All other rules belong to the wallet's policy."""

HOLDING_RULES = frozenset(
    {"max_per_day", "max_per_month", "budget_max_per_day", "budget_max_per_month", "budget_max_total"}
)
"""Rules that count the held money of outstanding allowances as spent."""

RULE_ERRORS = (
    "OrgPaused",
    "WalletFrozen",
    "PolicyExpired",
    "RecipientNotAllowed",
    "CategoryBlocked",
    "MaxPerTxExceeded",
    "VelocityCapExceeded",
    "MaxPerDayExceeded",
    "MaxPerMonthExceeded",
    "CoSignRequired",
    "BudgetMaxPerDayExceeded",
    "BudgetMaxPerMonthExceeded",
    "BudgetVelocityCapExceeded",
    "BudgetMaxTotalExceeded",
    "BudgetExpired",
    "BudgetFrozen",
    "NewRecipientCapped",
)
"""The program's errors for payments refused by a rule. The index of an error is the code of the rule."""


_FLAGS = ("max_per_tx", "max_per_day", "max_per_month", "velocity_cap", "require_co_sign", "expiry")
"""Rules in the order of their bits in a policy account's `flags`. The next bit is `restricted`."""

_BUDGET_FLAGS = {"max_per_day": 1, "max_per_month": 2, "velocity_cap": 3, "max_total": 9, "expires_at": 5}
"""The bit of each limit in a budget account's `flags`. A limit that policies also have has the same bit in a policy
account."""


@dataclass(frozen=True, slots=True)
class Rules:
    """A policy's rules; `None` means that a rule is not set.

    Money is in micro-USDC, `velocity_cap` in payments per hour, `expiry` in Unix seconds. `blocked_categories` is a bit
    set over the category codes. `restricted` means that only the entries of the policy's allowlist may be paid.
    Two settings are not rules: `max_open_escrows` limits the number of escrows that a vault may have open, and
    `allow_allowances` permits a vault to hand money to a delegate.
    """

    max_per_tx: int | None = None
    max_per_day: int | None = None
    max_per_month: int | None = None
    velocity_cap: int | None = None
    require_co_sign: int | None = None
    expiry: int | None = None
    blocked_categories: int = 0
    restricted: bool = False
    max_open_escrows: int | None = None
    allow_allowances: bool = False
    new_recipient_cap: int | None = None

    def to_args(self) -> dict[str, Any]:
        """Return the rules as an argument of an instruction."""
        return asdict(self)

    @classmethod
    def from_account(cls, fields: Mapping[str, Any]) -> Self:
        """Return the rules in a policy account."""
        flags = fields["flags"]
        values = {name: fields[name] if flags >> bit & 1 else None for bit, name in enumerate(_FLAGS)}
        return cls(
            **values,
            blocked_categories=fields["blocked_categories"],
            restricted=bool(flags >> len(_FLAGS) & 1),
            max_open_escrows=fields["max_open_escrows"] if flags >> (len(_FLAGS) + 1) & 1 else None,
            allow_allowances=bool(flags >> (len(_FLAGS) + 2) & 1),
            new_recipient_cap=fields["new_recipient_cap"] if flags >> 10 & 1 else None,
        )

    @classmethod
    def from_event(cls, fields: Mapping[str, Any]) -> Self:
        """Return the rules that an event carries."""
        return cls(**fields)


@dataclass(frozen=True, slots=True)
class BudgetLimits:
    """A budget's limits; `None` means that a limit is not set.

    Money is in micro-USDC, `expires_at` in Unix seconds. `max_total` limits the spending in the budget's life.
    """

    max_per_day: int | None = None
    max_per_month: int | None = None
    velocity_cap: int | None = None
    max_total: int | None = None
    expires_at: int | None = None

    def to_args(self) -> dict[str, Any]:
        """Return the limits as an instruction's argument."""
        return asdict(self)

    @classmethod
    def from_account(cls, fields: Mapping[str, Any]) -> Self:
        """Return the limits in a budget account."""
        return cls(
            **{name: fields[name] if fields["flags"] >> bit & 1 else None for name, bit in _BUDGET_FLAGS.items()}
        )

    @classmethod
    def from_event(cls, fields: Mapping[str, Any]) -> Self:
        """Return the limits that an event carries."""
        return cls(**fields)


def category_bits(names: Iterable[str]) -> int:
    """Return the bit set of these categories. Raises `ValueError` for an unknown name."""
    bits = 0
    for name in names:
        bits |= 1 << CATEGORIES.index(name)
    return bits


def category_names(bits: int) -> list[str]:
    """Return the names of the categories in a bit set, in the order of their codes."""
    return [name for code, name in enumerate(CATEGORIES) if bits >> code & 1]
