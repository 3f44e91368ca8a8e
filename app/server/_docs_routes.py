"""The documentation, as an OpenAPI 3.1 document and as pages. No key is needed."""

from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.routing import Route

from app.core.errors import RequestError
from app.docs.assets import ASSETS, EXPLORER_POLICY, PAGES_POLICY, PICTURE_POLICY, content, media_type
from app.docs.layout import framed
from app.docs.site import EXPLORER, MAX_QUERY, DocumentSite

#: Scripts and styles are addressed by their content, so browsers may cache them.
_KEPT = {"Cache-Control": "public, max-age=86400"}


def _site(request: Request) -> DocumentSite:
    state = request.app.state
    if not hasattr(state, "site"):
        others = [route for route in request.app.routes if route.path not in state.openapi["paths"]]
        state.site = DocumentSite(state.openapi, others, state.base_url)
    site: DocumentSite = state.site
    return site


def _shown(html: str, policy: str = PAGES_POLICY) -> Response:
    return HTMLResponse(html, headers={"Content-Security-Policy": policy})


async def openapi(request: Request) -> Response:
    """Serve the OpenAPI document."""
    return JSONResponse(request.app.state.openapi, headers={"Content-Security-Policy": PAGES_POLICY})


async def page(request: Request) -> Response:
    """Show a page of the documentation."""
    found = _site(request).page(request.url.path)
    if found is None:
        raise RequestError("not_found")
    return _shown(framed(found))


async def search(request: Request) -> Response:
    """Show the sections of the documentation that contain all words of `q`."""
    query = request.query_params.get("q", "")[:MAX_QUERY]
    return _shown(framed(_site(request).results(query), query))


async def explorer(_request: Request) -> Response:
    """Show the API in Swagger UI. Its operations can be called there."""
    return _shown(EXPLORER, EXPLORER_POLICY)


async def asset(request: Request) -> Response:
    """Serve a script or a style of the documentation."""
    name = request.path_params["name"]
    if name not in ASSETS:
        raise RequestError("not_found")
    return Response(content(ASSETS[name]), media_type=media_type(name), headers=_KEPT)


async def diagram(request: Request) -> Response:
    """Serve a diagram of the guides as a picture."""
    name = request.path_params["name"]
    try:
        picture = content(f"diagrams/{name if name.isalnum() else ''}.svg")
    except FileNotFoundError:
        raise RequestError("not_found") from None
    headers = {**_KEPT, "Content-Security-Policy": PICTURE_POLICY}
    return Response(picture, media_type=media_type("a.svg"), headers=headers)


routes = [
    Route("/openapi.json", openapi),
    Route("/docs", page),
    Route("/docs/guides/{name}", page),
    Route("/docs/api", page),
    Route("/docs/errors", page),
    Route("/docs/errors/{code}", page),
    Route("/docs/events", page),
    Route("/docs/settings", page),
    Route("/docs/reference", page),
    Route("/docs/search", search),
    Route("/docs/explorer", explorer),
    Route("/docs/assets/{name}", asset),
    Route("/docs/diagrams/{name}.svg", diagram),
]
