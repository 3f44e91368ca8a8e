"""All routes of the dashboard."""

from starlette.routing import Route

from app.api.operation import routes_of
from app.dashboard import (
    alerts,
    approvals,
    audit,
    budgets,
    company,
    developers,
    disputes,
    exports,
    feed,
    fleet,
    funding,
    live,
    new_vault,
    overview,
    people,
    policies,
    recipients,
    sign_in,
    signatures,
    slack,
    transactions,
    vault,
    verdicts,
    webhooks,
)
from app.dashboard.site import static

#: In the order of matching: `/vaults/new` is not the page of a vault.
_MODULES = (
    *(
        overview,
        fleet,
        new_vault,
        vault,
        transactions,
        verdicts,
        feed,
        live,
        approvals,
        policies,
        budgets,
        funding,
        recipients,
        disputes,
        alerts,
        slack,
    ),
    *(developers, webhooks, exports, signatures, sign_in, company, people, audit),
)

routes: list[Route] = [
    *routes_of(*_MODULES),
    Route("/dashboard/static/{path:path}", static, methods=["GET"]),
]
