"""All routes of the dashboard."""

from starlette.routing import Route

from app.dashboard import (
    approvals,
    company,
    disputes,
    feed,
    fleet,
    funding,
    live,
    people,
    policies,
    recipients,
    sign_in,
    vault,
)
from app.dashboard.site import static

routes: list[Route] = [
    *fleet.routes,
    *vault.routes,
    *feed.routes,
    *live.routes,
    *approvals.routes,
    *policies.routes,
    *funding.routes,
    *recipients.routes,
    *disputes.routes,
    *sign_in.routes,
    *company.routes,
    *people.routes,
    Route("/dashboard/static/{path:path}", static, methods=["GET"]),
]
