"""Error pages."""

from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response

from app.core.errors import ApiError
from app.core.timestamps import now_ms
from app.dashboard.forms.error_messages import said
from app.dashboard.refusals import record
from app.dashboard.site import HEADERS, Site, template, wants_json
from app.people.sessions import SignedIn, recognise
from app.submission.context import Service


async def error_page(request: Request, error: ApiError, docs: str) -> Response:
    """Show an error with its message, and record a refusal. Scripts get the error as JSON, like API clients."""
    site: Site = request.app.state.dashboard
    signed_in = None if error.status >= 500 else await _visitor(request)
    record(request, error, signed_in)
    headers, request_id = {**HEADERS, **error.headers}, request.state.request_id
    if wants_json(request):
        envelope = error.envelope(docs=docs, request_id=request_id)
        envelope["error"]["message"] = said(error)
        return JSONResponse(envelope, error.status, headers=headers)
    text = template(
        "error.html",
        error=error,
        message=said(error),
        docs=docs,
        request_id=request_id,
        base=site.base,
        root=site.party.prefix,
        me=signed_in,
    )
    return HTMLResponse(text, error.status, headers=headers)


async def _visitor(request: Request) -> SignedIn | None:
    """Return the session of a request without a page, such as an unknown path, or None if nobody is signed in."""
    site: Site = request.app.state.dashboard
    service: Service = request.app.state.service
    token = request.cookies.get(site.cookie)
    return None if token is None else await service.db.read(lambda conn: recognise(conn, token, now_ms()))
