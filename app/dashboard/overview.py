"""The overview: a month's spending by groups, and pending work."""

from datetime import date, timedelta
from typing import Annotated

from pydantic import Field, field_validator
from starlette.responses import Response

from app.access.auth import READERS
from app.api.fields import Query
from app.budgets import service as budgets
from app.chain.errors import ChainUnavailable, RpcError
from app.dashboard.forms.budget import Bar, bars
from app.dashboard.pages import View, page
from app.dashboard.weights import charge
from app.insights import service as insights
from app.insights.models import SpendingGroup, SpendingRow
from app.store.fleet import totals

_NEARLY = 80
"""Percentage of a limit that makes a budget nearly used up."""
_TITLES: dict[SpendingGroup, str] = {
    "wallet": "Vaults",
    "tag": "Tags",
    "budget": "Budgets",
    "recipient": "Recipients",
    "category": "Categories",
    "rule": "Refusals by rule",
}
_FILTERS: dict[SpendingGroup, str] = {"wallet": "wallet_id", "budget": "budget_id"}
"""The filter of the transaction list for a group, if the filter's name differs from the group's."""


class _Query(Query):
    """The month to show."""

    month: Annotated[date | None, Field(ge=date(2000, 1, 1), le=date(9000, 1, 1))] = None

    @field_validator("month", mode="before")
    @classmethod
    def _of_text(cls, text: object) -> object:
        return f"{text}-01" if text else None


@page("/overview", roles=READERS)
async def show(view: View) -> Response:
    """Show the overview of a month. If the query is invalid, show the current month with a message."""
    found = await insights.month(view.service, view.principal, view.understood(_Query).month)
    org, now = view.principal.org, view.service.clock.seen_ms()
    sums = await view.service.db.read(lambda conn: totals(conn, org, now), in_thread=True)
    charge(view.request, view.principal, sums.summed)

    def rows_of(by: SpendingGroup, one: SpendingRow) -> str | None:
        """Return the address of the list of a row's transactions, or None for payments without a budget."""
        period = {"spending": "true", "from": str(found.first), "to": str(found.end)}
        return one.key and view.url("transactions", **{_FILTERS.get(by, by): one.key}, **period)

    return view.render(
        "overview.html",
        month=found,
        sums=sums,
        most=max([one.spent for one in found.days], default=0) or 1,
        titles=_TITLES,
        rows_of=rows_of,
        nearly=await _nearly_used_up(view),
        earlier=str(found.first - timedelta(days=1))[:7],
    )


async def _nearly_used_up(view: View) -> list[tuple[str, str, Bar]] | None:
    """Return the ids and names of budgets that have used 80 % of a limit, or None while the chain does not answer."""
    try:
        found = (await budgets.list_all(view.service, view.principal)).data
    except (ChainUnavailable, RpcError):
        return None
    shown = [(one, max(bars(one), key=lambda bar: bar.share or 0, default=None)) for one in found]
    return [(one.budget_id, one.name, bar) for one, bar in shown if bar is not None and (bar.share or 0) >= _NEARLY]
