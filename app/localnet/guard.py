"""Refuses requests to the embedded chain from other sites' web pages, because the chain's faucet needs no password."""

from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from app.core.hosts import AllowedHosts

_REMEDY = "; allow more hosts with AGENT_VAULT_LOCALNET_HOSTS\n"


class Guard:
    """Passes requests with an allowed Host and Origin, over HTTP and WebSocket. All others get status 403.

    A request that the HTTP server could not parse gets status 400.
    """

    def __init__(self, app: ASGIApp, hosts: AllowedHosts) -> None:
        self._app = app
        self._hosts = hosts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one connection."""
        # The HTTP server marks a request that it could not parse.
        if scope.get("state", {}).get("refusal") is not None:
            await PlainTextResponse("Invalid HTTP request\n", 400)(scope, receive, send)
            return
        fault = self._hosts.fault(scope["headers"])
        if fault is None:
            await self._app(scope, receive, send)
        else:
            # Over WebSocket, this needs uvicorn's extension for HTTP responses to a handshake.
            await PlainTextResponse(fault + _REMEDY, 403)(scope, receive, send)
