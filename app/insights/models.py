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
    """The kind of groups. Groups by `rule` count only refusals."""
    from_: Annotated[UtcDate | None, Field(alias="from")] = None
    """The first UTC day. By default, the period begins with the month in which it ends."""
    to: UtcDate | None = None
    """The UTC day after the last. The default is tomorrow."""
    compare_to: Comparison | None = None
    """The earlier period to compare with: the same days of the month or year before. If the earlier month lacks a day,
    the month's last day replaces it.
    """


class SpendingSums(ResponseBody):
    """Sums of payments, allowances and escrows, counted on the day when each was made. Refunds are not deducted."""

    spent: Usdc
    """The sum of confirmed payments, grants of allowances and escrows."""
    payments: Annotated[int, example(12)]
    """The number of payments, grants of allowances and escrows in `spent`."""
    refused: Annotated[int, example(2)]
    """The number of payments, escrows and allowances that a policy refused."""


class SpendingRow(SpendingSums):
    """The sums of a group."""

    key: Annotated[str | None, example("wal_VDycjSYafbJkJfSRKajygt")]
    """The day, month, wallet's id, tag, budget's id, recipient's address, category or rule. Null for payments without
    a budget.
    """
    label: Annotated[str, example("Shopping")]
    """The name for display, such as a wallet's label. It equals the key if the key has no name."""


class ComparedSpending(ResponseBody):
    """The spending of a period. Days and months are in chronological order, other groups in descending spending."""

    from_date: DateShown
    """The first UTC day."""
    to_date: DateShown
    """The UTC day after the last."""
    data: list[SpendingRow]
    """The groups that have payments or refusals. All such days or months are listed, but at most 100 groups of any
    other kind.
    """
    total: SpendingSums
    """The sums of the whole period. A payment counts once, even with several tags."""


class Spending(ComparedSpending):
    """The spending of a period and, on request, of an earlier one."""

    complete: bool
    """False after an upgrade, while the service still counts earlier payments. The sums may then be too small."""
    compared: ComparedSpending | None
    """The spending of the earlier period. It has its own days or months, and otherwise the same groups as `data`. Null
    without `compareTo`.
    """
