"""The ASGI application for JSON-RPC over HTTP."""

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from app.localnet.context import Node
from app.localnet.dispatch import answer

_MAX_BODY_BYTES = 50 * 1024


class RpcApp:
    """Serves JSON-RPC by POST to `/`, and GET `/health`. WebSocket connections go to `sockets`.

    POST bypasses routing and middleware to save time, because every payment makes several such calls.
    `app.localnet.guard` has already checked the calling web page, so CORS allows every origin.
    """

    def __init__(self, node: Node, sockets: ASGIApp) -> None:
        """Serve the methods of `node`."""
        self._node = node
        self._sockets = sockets
        cors = Middleware(CORSMiddleware, allow_origins=["*"], allow_methods=["POST", "GET"], allow_headers=["*"])
        self._rest: ASGIApp = Starlette(
            routes=[
                Route("/", _not_allowed, methods=["GET", "PUT", "PATCH", "DELETE"]),
                Route("/health", self._health, methods=["GET"]),
            ],
            middleware=[cors],
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        app = self._sockets if scope["type"] == "websocket" else self._rest
        if scope["type"] == "http" and scope["method"] == "POST" and scope["path"] == "/":
            answered = await self._answer(scope, receive)
            if answered is None:
                return
            app = answered
        await app(scope, receive, send)

    async def _answer(self, scope: Scope, receive: Receive) -> ASGIApp | None:
        """Return the response to a call, or None if the client is gone.

        Reads the ASGI messages itself, because Starlette's Request takes more time.
        """
        content_type = dict(scope["headers"]).get(b"content-type", b"")
        if content_type.partition(b";")[0].strip().lower() != b"application/json":
            message = "Supplied content type is not allowed. Content-Type: application/json is required\n"
            return PlainTextResponse(message, 415)
        body, more = b"", True
        while more:
            part = await receive()
            if part["type"] == "http.disconnect":
                return None
            body += part.get("body", b"")
            more = part.get("more_body", False)
            if len(body) > _MAX_BODY_BYTES:
                return PlainTextResponse("request body size exceeds allowed maximum", 413)
        return _Answer((await answer(self._node, body)).encode())

    async def _health(self, _request: Request) -> Response:
        return PlainTextResponse("ok" if self._node.chain.healthy else "behind")


class _Answer:
    """A JSON response that any web page may read.

    It replaces Starlette's Response, which is slower: every payment makes four calls to this node.
    """

    def __init__(self, body: bytes) -> None:
        self._body = body

    async def __call__(self, _scope: Scope, _receive: Receive, send: Send) -> None:
        headers = [
            (b"access-control-allow-origin", b"*"),
            (b"content-length", str(len(self._body)).encode()),
            (b"content-type", b"application/json"),
        ]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": self._body})


async def _not_allowed(_request: Request) -> Response:
    return PlainTextResponse("Used HTTP Method is not allowed. POST or OPTIONS is required\n", 405)
