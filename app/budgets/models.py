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
    """The consumption of a budget: amounts in the last 24 hours and this UTC month, and the number in the last hour.

    Payments, escrows and allowances of the budget's wallets count.

    The windows move in steps of 15 minutes (24 hours) and one minute (hour), as in the program.
    """

    day: Usdc
    """The amount spent in the last 24 hours, less refunds."""
    month: Usdc
    """The amount spent in this UTC calendar month, less refunds."""
    payments_in_hour: Annotated[int, ReadFrom("hour"), example(12)]
    """The number of payments, escrows and grants of allowances in the last hour."""
    held: Usdc
    """The money of outstanding allowances. It counts towards both limits until each is settled."""


class BudgetHeadroom(ResponseBody):
    """The headroom of each limit: the amount or number that the wallets have left. Null if the limit is not set."""

    day: Usdc | None
    """The amount left for the last 24 hours. Null if the limit is not set."""
    month: Usdc | None
    """The amount left for the UTC month. Null if the limit is not set."""
    payments_in_hour: Annotated[int | None, example(88)]
    """The number of payments left for the last hour. Null if the limit is not set."""


class Budget(ResponseBody):
    """A budget. `version` increases with every change of its limits, and no two of an organisation share one."""

    budget_id: BudgetId
    """The budget's id, under both names. It begins with `bud_`."""
    id: Annotated[BudgetId, ReadFrom("budget_id")]
    """The budget's id, under both names. It begins with `bud_`."""
    name: Annotated[str, example("Shopping")]
    """The name as last set."""
    max_per_day: Annotated[Usdc | None, ReadFrom("limits.max_per_day")]
    """The maximum of its wallets together in any 24 hours. Null means no limit; zero is a limit."""
    max_per_month: Annotated[Usdc | None, ReadFrom("limits.max_per_month")]
    """The maximum of its wallets together in a UTC calendar month."""
    velocity_cap: Annotated[int | None, ReadFrom("limits.velocity_cap"), example(20)]
    """The maximum number of payments by its wallets in any hour. Refunds do not reduce the number."""
    consumption: BudgetConsumption | None
    """The spending of its wallets. Null once the budget is deleted."""
    headroom: BudgetHeadroom | None
    """The amounts and payments that its limits still allow. Null once the budget is deleted."""
    wallet_count: Annotated[int, example(2)]
    """The number of wallets in the budget; zero at first."""
    warnings: Warnings
    """A warning with the number of wallets that might use up the budget alone."""
    version: Annotated[int, example(3)]
    """The version. It increases with every change of a limit and is never used again, not even by another budget."""
    created_at: Time
    """The time of the creation request."""


class BudgetList(WholeList[Budget]):
    """All budgets of the organisation, oldest first."""
