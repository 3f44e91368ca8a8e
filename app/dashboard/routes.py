"""All routes of the dashboard."""

from starlette.routing import Route

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
    people,
    policies,
    recipients,
    sign_in,
    signatures,
    vault,
    webhooks,
)
from app.dashboard.site import static

routes: list[Route] = [
    *fleet.routes,
    *new_vault.routes,
    *vault.routes,
    *feed.routes,
    *live.routes,
    *approvals.routes,
    *policies.routes,
    *budgets.routes,
    *funding.routes,
    *recipients.routes,
    *disputes.routes,
    *alerts.routes,
    *developers.routes,
    *webhooks.routes,
    *exports.routes,
    *signatures.routes,
    *sign_in.routes,
    *company.routes,
    *people.routes,
    *audit.routes,
    Route("/dashboard/static/{path:path}", static, methods=["GET"]),
]
