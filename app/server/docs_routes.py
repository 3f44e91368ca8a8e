"""The interface described: as OpenAPI 3.1 and as pages to read. No key is needed."""

from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.routing import Route

from app.core.errors import CATALOGUE, RequestError
from app.docs.render import GUIDES, error_page, events_page, guide_page, interface_page, reference_page, settings_page

_HEADERS = {"Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'"}


async def openapi(request: Request) -> Response:
    """OpenAPI document."""
    return JSONResponse(request.app.state.openapi)


async def interface(request: Request) -> Response:
    """All operations on a page."""
    others = [route for route in request.app.routes if route.path not in request.app.state.openapi["paths"]]
    return HTMLResponse(interface_page(request.app.state.openapi, others), headers=_HEADERS)


async def guide(request: Request) -> Response:
    """One guide."""
    name = request.path_params["name"]
    if name not in GUIDES:
        raise RequestError("not_found")
    return HTMLResponse(guide_page(name), headers=_HEADERS)


async def error(request: Request) -> Response:
    """One error code on a page."""
    kind = CATALOGUE.get(request.path_params["code"])
    if kind is None:
        raise RequestError("not_found")
    return HTMLResponse(error_page(kind, request.app.state.base_url), headers=_HEADERS)


async def events(_request: Request) -> Response:
    """All events on a page."""
    return HTMLResponse(events_page(), headers=_HEADERS)


async def settings(_request: Request) -> Response:
    """All settings on a page."""
    return HTMLResponse(settings_page(), headers=_HEADERS)


async def reference(_request: Request) -> Response:
    """Everything that a client can rely on, with the tests that show it, on a page."""
    return HTMLResponse(reference_page(), headers=_HEADERS)


routes = [
    Route("/openapi.json", openapi),
    Route("/docs", interface),
    Route("/docs/guides/{name}", guide),
    Route("/docs/errors/{code}", error),
    Route("/docs/events", events),
    Route("/docs/settings", settings),
    Route("/docs/reference", reference),
]
