"""Insights in requests and responses."""

from datetime import date
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, WithJsonSchema

from app.api._checks import utc_date
from app.api.fields import Query, ResponseBody, Usdc, example

SpendingGroup = Literal["day", "month", "wallet", "tag", "budget", "recipient", "category", "rule"]
Comparison = Literal["previous_month", "previous_year"]
_DATE = {"type": "string", "format": "date", "examples": ["2026-05-01"]}
#: A UTC date from its ISO 8601 text.
UtcDate = Annotated[date, BeforeValidator(utc_date), WithJsonSchema(_DATE)]
#: A UTC date as text.
DateShown = Annotated[str, WithJsonSchema(_DATE)]


class GetSpending(Query):
    """Query of spending. The period has at most 366 days; by default, it is this month up to today."""

    group_by: SpendingGroup = "day"
    """The groups. `rule` has only refusals."""
    from_: Annotated[UtcDate | None, Field(alias="from")] = None
    """The first UTC day. The default is the first day of the last day's month."""
    to: UtcDate | None = None
    """The UTC day after the last. The default is tomorrow."""
    compare_to: Comparison | None = None
    """The earlier period to compare with: the same days of the month or year before. A missing day is the month's
    last.
    """


class SpendingSums(ResponseBody):
    """Sums of payments and escrows when they were made. Refunds are not deducted."""

    spent: Usdc
    """The sum of confirmed payments, grants of allowances and escrows."""
    payments: Annotated[int, example(12)]
    """The number of these."""
    refused: Annotated[int, example(2)]
    """The number of payments, escrows and allowances that a policy refused."""


class SpendingRow(SpendingSums):
    """The sums of a group."""

    key: Annotated[str | None, example("wal_VDycjSYafbJkJfSRKajygt")]
    """The day, month, wallet's id, tag, budget's id, recipient's address, category or rule. Null for payments without
    a budget.
    """
    label: Annotated[str, example("Shopping")]
    """The key's name, such as a wallet's label; otherwise the key itself."""


class ComparedSpending(ResponseBody):
    """The spending of a period. Days and months are in their order, other groups have the most spending first."""

    from_date: DateShown
    """The first UTC day."""
    to_date: DateShown
    """The UTC day after the last."""
    data: list[SpendingRow]
    """The groups with payments or refusals, at most 100 other than days."""
    total: SpendingSums
    """The sums of the whole period. A payment counts once, even with several tags."""


class Spending(ComparedSpending):
    """The spending of a period and, on request, of an earlier one."""

    complete: bool
    """False after an upgrade while the service still counts earlier payments. The sums may be too small until then."""
    compared: ComparedSpending | None
    """The earlier period, with its own days and months, or with the groups of `data`. Null without `compareTo`."""
