"""Request and response bodies of budgets."""

from typing import Annotated

from pydantic import Field

from app.api.fields import BudgetId, Limit, Name, ReadFrom, ResponseBody, Time, Usdc, Warnings, example
from app.api.partial_body import PartialBody
from app.api.whole_list import WholeList


class LimitFields(PartialBody):
    """The limits of a budget."""

    max_per_day: Annotated[Limit | None, example("200.00")] = None
    """The highest sum that all wallets of the budget together may spend within 24 hours."""
    max_per_month: Limit | None = None
    """The highest sum that all wallets of the budget together may spend in a UTC month."""
    velocity_cap: Annotated[Annotated[int, Field(ge=0, le=2**32 - 1)] | None, example(20)] = None
    """The highest number of payments that all wallets of the budget together may make within an hour."""


class CreateBudget(LimitFields):
    """Body of a budget's creation. An omitted limit is not set."""

    name: Name
    """A display name for people."""


class UpdateBudget(CreateBudget):
    """Body of a budget's update. An omitted field keeps its value; `null` clears a limit."""

    name: Name = Field(default="")
    """The new name."""


class BudgetConsumption(ResponseBody):
    """The consumption of a budget. The amounts cover the last 24 hours and this UTC month, the payments the last hour.

    Payments, escrows and allowances of the budget's wallets count.

    As in the program, the window of 24 hours moves in steps of 15 minutes, and the window of one hour in steps of one
    minute.
    """

    day: Usdc
    """The amount spent in the last 24 hours, less refunds."""
    month: Usdc
    """The amount spent in this UTC calendar month, less refunds."""
    payments_in_hour: Annotated[int, ReadFrom("hour"), example(12)]
    """The number of payments, escrows and grants of allowances in the last hour."""
    held: Usdc
    """The amount in open allowances. It counts towards the daily and the monthly limit until the allowance is settled.
    """


class BudgetHeadroom(ResponseBody):
    """The headroom of each limit: the amount or number that the wallets have left. Null if the limit is not set."""

    day: Usdc | None
    """The amount left below the limit for 24 hours. Null if the limit is not set."""
    month: Usdc | None
    """The amount left below the limit for the UTC month. Null if the limit is not set."""
    payments_in_hour: Annotated[int | None, example(88)]
    """The number of payments left below the limit for one hour. Null if the limit is not set."""


class Budget(ResponseBody):
    """A budget. `version` increases with every change of the limits.

    Two budgets of an organisation never share a version.
    """

    budget_id: BudgetId
    """The budget's id, under both names. It begins with `bud_`."""
    id: Annotated[BudgetId, ReadFrom("budget_id")]
    """The budget's id, under both names. It begins with `bud_`."""
    name: Annotated[str, example("Shopping")]
    """The display name for people."""
    max_per_day: Annotated[Usdc | None, ReadFrom("limits.max_per_day")]
    """The highest sum that all its wallets together may spend in any 24 hours. Null means no limit; zero refuses every
    payment.
    """
    max_per_month: Annotated[Usdc | None, ReadFrom("limits.max_per_month")]
    """The highest sum that all its wallets together may spend in a UTC calendar month. Null means no limit."""
    velocity_cap: Annotated[int | None, ReadFrom("limits.velocity_cap"), example(20)]
    """The highest number of payments that all its wallets together may make in any hour. A refund does not lower the
    count.
    """
    consumption: BudgetConsumption | None
    """The spending of its wallets. Null once the budget is deleted."""
    headroom: BudgetHeadroom | None
    """The amounts and the number of payments that the limits still allow. Null once the budget is deleted."""
    wallet_count: Annotated[int, example(2)]
    """The number of wallets in the budget; zero at first."""
    warnings: Warnings
    """A warning if a single wallet could use up the budget alone, with the number of these wallets."""
    version: Annotated[int, example(3)]
    """The version. It increases with every change of a limit and is never used again, not even by another budget."""
    created_at: Time
    """The time of the creation request."""


class BudgetList(WholeList[Budget]):
    """All budgets of the organisation, oldest first."""
