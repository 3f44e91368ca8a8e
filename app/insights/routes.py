"""Insights: spending, payments and refusals of a period, by groups."""

from app.access.auth import READERS
from app.api.operation import Call, operation
from app.insights import service as insights
from app.insights.models import GetSpending, Spending


@operation("GET /v1/insights/spending", roles=READERS, weight=5)
async def get_spending(call: Call, query: GetSpending) -> Spending:
    """Get spending by groups.

    Counts the organisation's payments, escrows and grants of allowances on UTC days, and its refusals. A payment keeps
    the budget, category and tags that it had when it was made. It counts under each of its tags.
    """
    return await insights.spending(call.service, call.principal, query)
