"""The documentation, as an OpenAPI 3.1 document and as pages. No key is needed."""

import asyncio
import json

from pydantic_core import to_json
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.routing import Route

from app.access.auth import client_address
from app.core.errors import RequestError
from app.docs.assets import ASSETS, PAGES_POLICY, PICTURE_POLICY, content, media_type
from app.docs.site import MAX_QUERY, DocumentSite

#: The addresses of scripts, icons and diagrams depend on their content, so browsers may cache them.
_KEPT = {"Cache-Control": "public, max-age=86400"}


def _site(request: Request) -> DocumentSite:
    state = request.app.state
    if not hasattr(state, "site"):
        others = [route for route in request.app.routes if route.path not in state.openapi["paths"]]
        state.site = DocumentSite(state.openapi, others, state.base_url)
    site: DocumentSite = state.site
    return site


def _shown(html: str, status: int = 200) -> Response:
    return HTMLResponse(html, status, headers={"Content-Security-Policy": PAGES_POLICY})


def _text(text: str | bytes, media_type: str) -> Response:
    return Response(text, media_type=media_type, headers={"Content-Security-Policy": PAGES_POLICY})


async def openapi(request: Request) -> Response:
    """Serve the OpenAPI document."""
    return _text(to_json(request.app.state.openapi), "application/json")


async def page(request: Request) -> Response:
    """Show a page of the documentation, or its Markdown if the path ends in `.md`.

    For a wrong path, the response 404 names the page that was probably meant.
    """
    path = request.url.path
    # Pages are made in a thread, because a freeze must not wait for them.
    found = await asyncio.to_thread(_site(request).page, path.removesuffix(".md"))
    if found is not None and path.endswith(".md"):
        return _text(f"{found.text}\n{found.samples}".strip() + "\n", "text/markdown")
    if found is not None:
        return _shown(await asyncio.to_thread(_site(request).shown, found))
    request.app.state.rate_limits.searched(client_address(request))
    likely = await asyncio.to_thread(_site(request).likely, path)
    if "text/html" in request.headers.get("accept", ""):
        request.state.error_code = "not_found"
        return _shown(_site(request).missing(likely), 404)
    raise RequestError("not_found", f"The documentation has no page at this path. Try {likely or '/docs'}.")


async def search(request: Request) -> Response:
    """Show the sections of the documentation that match the words of `q`, best match first."""
    request.app.state.rate_limits.searched(client_address(request))
    query = request.query_params.get("q", "")[:MAX_QUERY]
    return _shown(await asyncio.to_thread(_site(request).results, query))


async def explorer(_request: Request) -> Response:
    """Redirect the address of the former explorer to the API reference."""
    return RedirectResponse("/docs/api", 308)


async def list_for_models(request: Request) -> Response:
    """List the pages of the documentation in Markdown, for language models."""
    return _text(await asyncio.to_thread(_site(request).list_for_models), "text/plain")


async def registration(request: Request) -> Response:
    """Describe `/mcp` in the format of the MCP registry."""
    return _text(json.dumps(_site(request).registration(), indent=2), "application/json")


async def asset(request: Request) -> Response:
    """Serve the script or the icon of the documentation."""
    name = request.path_params["name"]
    if name not in ASSETS:
        raise RequestError("not_found")
    return Response(content(name), media_type=media_type(name), headers=_KEPT)


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
    Route("/llms.txt", list_for_models),
    Route("/server.json", registration),
    Route("/docs", page),
    Route("/docs.md", page),
    Route("/docs/search", search),
    Route("/docs/explorer", explorer),
    Route("/docs/assets/{name}", asset),
    Route("/docs/diagrams/{name}.svg", diagram),
    Route("/docs/{path:path}", page),
]
