"""Budgets as clients write and read them."""

from typing import Annotated

from pydantic import Field

from app.api.fields import BudgetId, IdempotencyKey, Limit, Name, ReadFrom, ResponseBody, Time, Usdc
from app.api.partial_body import PartialBody


class LimitFields(PartialBody):
    """The limits of a budget."""

    max_per_day: Limit | None = None
    max_per_month: Limit | None = None
    velocity_cap: Annotated[int, Field(ge=0, le=2**32 - 1)] | None = None


class CreateBudget(LimitFields):
    """Body of a budget's creation. An absent limit is not set."""

    name: Name
    idempotency_key: IdempotencyKey | None = None


class UpdateBudget(CreateBudget):
    """Body of a budget's update. An absent field keeps its value; `null` clears a limit."""

    name: Name = Field(default="")


class BudgetConsumption(ResponseBody):
    """What the wallets of a budget have paid: in the last 24 hours, in this UTC month, and how often in the last hour.

    The windows move on in steps of 15 minutes and of one minute, as the program counts.
    """

    day: Usdc
    month: Usdc
    payments_in_hour: Annotated[int, ReadFrom("hour")]


class BudgetHeadroom(ResponseBody):
    """What they may still pay, by each limit; null where it is not set."""

    day: Usdc | None
    month: Usdc | None
    payments_in_hour: int | None


class Budget(ResponseBody):
    """A budget. `version` increases with every change of its limits, and no two budgets ever have the same."""

    budget_id: BudgetId
    id: Annotated[BudgetId, ReadFrom("budget_id")]
    name: str
    max_per_day: Annotated[Usdc | None, ReadFrom("limits.max_per_day")]
    max_per_month: Annotated[Usdc | None, ReadFrom("limits.max_per_month")]
    velocity_cap: Annotated[int | None, ReadFrom("limits.velocity_cap")]
    consumption: BudgetConsumption | None
    headroom: BudgetHeadroom | None
    wallet_count: int
    warnings: list[str]
    version: int
    created_at: Time


class BudgetList(ResponseBody):
    """All budgets of the organisation, oldest first."""

    data: list[Budget]
    has_more: bool = False
    next_cursor: str | None = None
