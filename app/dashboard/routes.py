"""All routes of the dashboard."""

from starlette.routing import Route

from app.dashboard import fleet, people, sign_in
from app.dashboard.site import static

routes: list[Route] = [
    *fleet.routes,
    *sign_in.routes,
    *people.routes,
    Route("/dashboard/static/{path:path}", static, methods=["GET"]),
]
