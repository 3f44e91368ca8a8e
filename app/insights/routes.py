"""Insights: spending, payments and refusals of a period, by groups."""

from app.access.auth import READERS
from app.api.operation import Call, operation
from app.insights import service as insights
from app.insights.models import GetSpending, Spending


@operation("GET /v1/insights/spending", roles=READERS, weight=5)
async def get_spending(call: Call, query: GetSpending) -> Spending:
    """Get spending by groups.

    Counts the organisation's payments, escrows, grants of allowances and refusals by UTC day. A payment keeps the
    budget, category and tags that it had when it was made. A payment with several tags counts under each tag.
    """
    return await insights.spending(call.service, call.principal, query)
