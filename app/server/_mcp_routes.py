"""`/mcp`: the tools over HTTP. Each request carries the caller's credentials for the API. No session is kept."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial

import httpx
from mcp.server.lowlevel.server import Server
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from mcp.server.transport_security import TransportSecuritySettings
from mcp.types import Tool
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from app.access.auth import admit
from app.access.keyring import KeyRing
from app.docs.render import guide_text
from app.mcp.operations import Api, Json, Operations
from app.mcp.server import Context, vault_server
from app.mcp.tools import TOOLS

#: Headers of the caller that are passed on to the API requests made for it. No other header is passed on.
_PASSED_ON = ("authorization", "session-token", "host")


class McpEndpoint:
    """The Model Context Protocol endpoint: the vault as tools for agents. Callers authenticate as for the API."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        request = Request(scope, receive)
        state = request.app.state
        await admit(request, state.service.part(KeyRing), state.rate_limits)
        manager = StreamableHTTPSessionManager(
            state.mcp,
            json_response=True,
            stateless=True,
            # The application has already checked Host and Origin, against the same names for all of its paths.
            security_settings=TransportSecuritySettings(enable_dns_rebinding_protection=False),
            max_request_body_size=state.service.settings.max_body_bytes,
        )
        async with manager.run():
            await manager.handle_request(scope, receive, send)


def mcp_server(app: Starlette, openapi: Json) -> Server[Json]:
    """Return the MCP server. Its tools send requests to ``app`` with the credentials of the caller."""
    operations = Operations(openapi)

    @asynccontextmanager
    async def credentials(ctx: Context) -> AsyncIterator[Api]:
        request = ctx.request
        assert isinstance(request, Request)
        client = (request.client.host, request.client.port) if request.client else ("", 0)
        transport = httpx.ASGITransport(app, raise_app_exceptions=False, client=client)
        headers = {name: request.headers[name] for name in _PASSED_ON if name in request.headers}
        # Without a socket, nothing here needs a timeout: the operations have timeouts of their own.
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost", headers=headers) as own:
            yield Api(own, operations)

    listed = [tool.described(operations) for tool in TOOLS]

    async def tools() -> list[Tool]:
        return listed

    return vault_server(tools, credentials, guide=partial(guide_text, "mcp"))


routes = [Route("/mcp", McpEndpoint(), methods=["POST"])]
