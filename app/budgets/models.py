"""Request and response bodies of budgets."""

from typing import Annotated, Any, Literal, Self

from pydantic import ConfigDict, Field, model_validator
from pydantic_core import PydanticCustomError

from app.api.fields import (
    BudgetId,
    BudgetRef,
    ChainTime,
    Limit,
    Name,
    ReadFrom,
    ResponseBody,
    Time,
    Timestamp,
    Usdc,
    Warnings,
    example,
    without_defaults,
)
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
    max_total: Limit | None = None
    """The highest sum that all wallets of the budget together may ever spend."""
    expires_at: Timestamp | None = None
    """The end of the budget. Afterwards, the budget refuses every payment."""


class CreateBudget(LimitFields):
    """Body of a budget's creation. An omitted limit is not set."""

    name: Name
    """A display name for people."""
    parent_id: BudgetRef | None = None
    """The parent: the budget that the new one is part of. The parent must not be part of another budget, and can never
    be changed."""


def _status_alone(schema: dict[str, Any]) -> None:
    """Forbid other changes together with a change of the status."""
    without_defaults(schema)
    schema["if"] = {"required": ["status"]}
    schema["then"] = {"propertyNames": {"enum": ["status", "idempotencyKey"]}}


class UpdateBudget(LimitFields):
    """Body of a budget's update. An omitted field keeps its value; `null` clears a limit."""

    model_config = ConfigDict(json_schema_extra=_status_alone)

    name: Name = Field(default="")
    """The new name."""
    status: Literal["frozen", "active"] = Field(default="active")
    """The new status, without any other change in the same request."""

    @property
    def brakes(self) -> bool:
        """True if the update freezes the budget."""
        return self.status == "frozen"

    @model_validator(mode="after")
    def _changes_the_status_alone(self) -> Self:
        if "status" in self.model_fields_set and self.model_fields_set - {"status", "idempotency_key"}:
            raise PydanticCustomError("status_alone", "must be the only change. Send other changes in another request.")
        return self


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
    total: Usdc
    """The amount ever spent, less refunds."""
    held: Usdc
    """The money of outstanding allowances. The money of an allowance counts towards all limits of money until the
    allowance is settled."""


class BudgetHeadroom(ResponseBody):
    """The headroom of each limit: the amount or number that the wallets have left. Null if the limit is not set."""

    day: Usdc | None
    """The amount left below the limit for 24 hours. Null if the limit is not set."""
    month: Usdc | None
    """The amount left below the limit for the UTC month. Null if the limit is not set."""
    total: Usdc | None
    """The amount left below the limit in total. Null if the limit is not set."""
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
    parent_id: BudgetId | None
    """The budget that this one is part of. Each payment counts in both. Null if there is none."""
    status: Literal["active", "frozen"]
    """The status. A frozen budget refuses the payments of its wallets, and of the budgets that are part of it."""
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
    max_total: Annotated[Usdc | None, ReadFrom("limits.max_total")]
    """The highest sum that all its wallets together may ever spend. Null means no limit; zero refuses every payment."""
    expires_at: Annotated[ChainTime | None, ReadFrom("limits.expires_at")]
    """The end of the budget. Afterwards, the budget refuses every payment. Null means no end."""
    consumption: BudgetConsumption | None
    """The spending of the budget's wallets, and of the budgets that are part of it. Null once the budget is deleted."""
    headroom: BudgetHeadroom | None
    """The amounts and the number of payments that the limits still allow. Null once the budget is deleted."""
    parent_headroom: BudgetHeadroom | None
    """The amounts and the number of payments that the parent's limits still allow. Null without a parent, and once the
    budget is deleted."""
    wallet_count: Annotated[int, example(2)]
    """The number of wallets in the budget itself; zero at first."""
    budget_count: Annotated[int, example(0)]
    """The number of budgets that are part of this one; zero at first."""
    warnings: Warnings
    """A warning if a single wallet could use up the budget alone, with the number of these wallets."""
    version: Annotated[int, example(3)]
    """The version. It increases with every change of a limit and is never used again, not even by another budget."""
    created_at: Time
    """The time of the creation request."""


class BudgetList(WholeList[Budget]):
    """All budgets of the organisation, oldest first."""
