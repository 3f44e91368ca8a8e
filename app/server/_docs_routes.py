"""The documentation, as OpenAPI 3.1 and as pages. Needs no key."""

from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.routing import Route

from app.core.errors import CATALOGUE, RequestError
from app.docs.render import (
    GUIDES,
    STYLE_HASH,
    error_page,
    events_page,
    guide_page,
    interface_page,
    reference_page,
    settings_page,
)

_POLICY = f"default-src 'none'; style-src '{STYLE_HASH}'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
_HEADERS = {"Content-Security-Policy": _POLICY}


async def openapi(request: Request) -> Response:
    """Serve the OpenAPI document."""
    return JSONResponse(request.app.state.openapi, headers=_HEADERS)


async def interface(request: Request) -> Response:
    """Show all operations."""
    others = [route for route in request.app.routes if route.path not in request.app.state.openapi["paths"]]
    return HTMLResponse(interface_page(request.app.state.openapi, others), headers=_HEADERS)


async def guide(request: Request) -> Response:
    """Show a guide."""
    name = request.path_params["name"]
    if name not in GUIDES:
        raise RequestError("not_found")
    return HTMLResponse(guide_page(name), headers=_HEADERS)


async def error(request: Request) -> Response:
    """Show an error code."""
    kind = CATALOGUE.get(request.path_params["code"])
    if kind is None:
        raise RequestError("not_found")
    return HTMLResponse(error_page(kind, request.app.state.base_url), headers=_HEADERS)


async def events(_request: Request) -> Response:
    """Show all events."""
    return HTMLResponse(events_page(), headers=_HEADERS)


async def settings(_request: Request) -> Response:
    """Show all settings."""
    return HTMLResponse(settings_page(), headers=_HEADERS)


async def reference(_request: Request) -> Response:
    """Show everything that a client can rely on, with the tests that prove it."""
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
