"""Request and response bodies of budgets."""

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
    """Body of a budget's creation. An omitted limit is not set."""

    name: Name
    idempotency_key: IdempotencyKey | None = None


class UpdateBudget(CreateBudget):
    """Body of a budget's update. An omitted field keeps its value; `null` clears a limit."""

    name: Name = Field(default="")


class BudgetConsumption(ResponseBody):
    """The consumption of a budget: amounts in the last 24 hours and this UTC month, and the number in the last hour.

    Payments, escrows and allowances of the budget's wallets count.

    The windows move in steps of 15 minutes (24 hours) and one minute (hour), as in the program.
    """

    day: Usdc
    month: Usdc
    payments_in_hour: Annotated[int, ReadFrom("hour")]


class BudgetHeadroom(ResponseBody):
    """The headroom of each limit: the amount or number that the wallets have left. Null if the limit is not set."""

    day: Usdc | None
    month: Usdc | None
    payments_in_hour: int | None


class Budget(ResponseBody):
    """A budget. `version` increases with every change of its limits, and no two of an organisation share one."""

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
