"""`/mcp`: the tools over HTTP. Each request carries the caller's credentials for the API. No session is kept."""

import json
from collections.abc import Mapping
from functools import partial

import httpx
from mcp.server.lowlevel.server import Server
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from mcp.server.transport_security import TransportSecuritySettings
from mcp.types import Tool
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from app.access.auth import admit, count
from app.access.keyring import KeyRing
from app.api._parsing import read_json
from app.core.asgi import call, channel
from app.core.errors import RequestError
from app.docs.render import guide_text
from app.mcp.messages import error_response, fault_of_id
from app.mcp.operations import REQUEST_HEADERS, Api, Json, Operation, Operations
from app.mcp.operations import Send as Sender
from app.mcp.server import Context, vault_server
from app.mcp.tools import TOOLS

#: Headers of the caller that are passed on to the operations called for it. No other header is passed on.
_PASSED_ON = (b"authorization", b"session-token", b"host")
_OURS = [(name.encode(), value.encode()) for name, value in REQUEST_HEADERS.items()]
#: JSON-RPC error code of a request above the rate limit, from JSON-RPC's range for errors of the server.
_RATE_LIMITED = -32029


class McpEndpoint:
    """The Model Context Protocol endpoint: the vault as tools for agents. Callers authenticate as for the API."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        request = Request(scope, receive)
        state = request.app.state
        settings = state.service.settings
        try:
            await count(request, await admit(request, state.service.part(KeyRing)))
        except RequestError as error:
            if not hasattr(request.state, "principal"):
                raise
            # Clients treat the HTTP status 429 as a failed connection, so a refusal has the status 200, or 202 for a
            # notification.
            request.state.refusal, request.state.error_code, request.state.headers = error, error.code, error.headers
        # The SDK would accept a JSON object with a repeated name, although a proxy may have checked the other value.
        asked = await read_json(request, empty=False, limit=settings.max_body_bytes, seconds=settings.request_timeout)
        if (fault := fault_of_id(asked)) is not None:
            await JSONResponse(fault, 400)(scope, receive, send)
            return
        if hasattr(request.state, "refusal") and asked.get("method") != "tools/call":
            await _rate_limited(asked, request.state.refusal)(scope, receive, send)
            return
        manager = StreamableHTTPSessionManager(
            state.mcp,
            json_response=True,
            stateless=True,
            # The application has already checked Host and Origin, against the same names for all of its paths.
            security_settings=TransportSecuritySettings(enable_dns_rebinding_protection=False),
            # Escaped characters make the body longer than the received one.
            max_request_body_size=6 * settings.max_body_bytes,
        )
        async with manager.run():
            await manager.handle_request(scope, channel(json.dumps(asked).encode()), send)


def _rate_limited(asked: Json, error: RequestError) -> Response:
    if "id" not in asked:
        return Response(status_code=202)
    message = f"{error.message} Wait {error.headers['Retry-After']} seconds first."
    return JSONResponse(error_response(_RATE_LIMITED, message, asked["id"]))


def mcp_server(operations: Mapping[str, tuple[Route, ASGIApp]], openapi: Json) -> Server[Json]:
    """Return the MCP server. ``operations`` maps the id of each operation to its route and its application.

    A call has the credentials and the address of the caller. It is authenticated, counted, logged and audited like the
    same request over HTTP.
    """
    described = Operations(openapi)

    async def api_of(ctx: Context) -> Api:
        request = ctx.request
        assert isinstance(request, Request)
        return Api(_sender(operations, request), described)

    listed = [tool.described(described) for tool in TOOLS]

    async def tools() -> list[Tool]:
        return listed

    return vault_server(tools, api_of, guide=partial(guide_text, "mcp"))


def _sender(served: Mapping[str, tuple[Route, ASGIApp]], caller: Request) -> Sender:
    """Return a function that calls operations as the caller, without a connection."""
    passed_on = [*(one for one in caller.headers.raw if one[0] in _PASSED_ON), *_OURS]

    async def send(operation: Operation, path_params: dict[str, str], query: str, content: bytes) -> httpx.Response:
        route, serve = served[operation.id]
        path = operation.path.format_map(path_params)
        asked: Scope = {"path": path, "raw_path": path.encode(), "path_params": path_params, "route": route}
        asked.update(method=operation.method, query_string=query.encode(), headers=passed_on)
        state = {"refusal": getattr(caller.state, "refusal", None), "principal": caller.state.principal}
        status, headers, body = await call(serve, {**caller.scope, **asked, "state": state}, content)
        return httpx.Response(status, headers=headers, content=body)

    return send


routes = [Route(path, McpEndpoint(), methods=["POST"]) for path in ("/mcp", "/mcp/")]
