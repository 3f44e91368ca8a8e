"""The ASGI applications: JSON-RPC over HTTP and subscriptions over WebSocket."""

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route, WebSocketRoute
from starlette.types import ASGIApp, Receive, Scope, Send
from starlette.websockets import WebSocket

from app.localnet.context import Node
from app.localnet.dispatch import answer
from app.localnet.subscriptions import Subscriptions

_MAX_BODY_BYTES = 50 * 1024
_JSON = b"application/json"


class RpcApp:
    """HTTP: JSON-RPC by POST to `/`, and GET `/health`.

    POST is served without the layers of a framework, because every payment makes several such calls. Wallets in a
    browser may call from any origin; the node holds nothing of value.
    """

    def __init__(self, node: Node) -> None:
        """Answer for `node`."""
        self._node = node
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
        if scope["type"] != "http" or scope["method"] != "POST" or scope["path"] != "/":
            await self._rest(scope, receive, send)
            return
        headers = dict(scope["headers"])
        if headers.get(b"content-type", b"").partition(b";")[0].strip().lower() != _JSON:
            message = "Supplied content type is not allowed. Content-Type: application/json is required\n"
            await PlainTextResponse(message, 415)(scope, receive, send)
            return
        body, more = b"", True
        while more:
            part = await receive()
            if part["type"] == "http.disconnect":
                return
            body += part.get("body", b"")
            more = part.get("more_body", False)
            if len(body) > _MAX_BODY_BYTES:
                await PlainTextResponse("request body size exceeds allowed maximum", 413)(scope, receive, send)
                return
        text = (await answer(self._node, body)).encode()
        await send(
            {
                "type": "http.response.start",
                "status": 200,
                "headers": [
                    (b"content-type", _JSON),
                    (b"content-length", str(len(text)).encode()),
                    (b"access-control-allow-origin", b"*"),
                ],
            }
        )
        await send({"type": "http.response.body", "body": text})

    async def _health(self, _request: Request) -> Response:
        return PlainTextResponse("ok" if self._node.chain.healthy else "behind")


async def _not_allowed(_request: Request) -> Response:
    return PlainTextResponse("Used HTTP Method is not allowed. POST or OPTIONS is required\n", 405)


def ws_app(subscriptions: Subscriptions) -> Starlette:
    """Return the application for WebSocket: subscriptions at `/`."""

    async def endpoint(websocket: WebSocket) -> None:
        await subscriptions.serve(websocket)

    return Starlette(routes=[WebSocketRoute("/", endpoint)])
