"""The HTTP application."""

import sqlite3
import time
from collections.abc import Coroutine, Iterable, Mapping
from functools import cache, partial
from typing import Any, cast

import structlog
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, RedirectResponse, Response
from starlette.routing import Match, Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.middleware.proxy_headers import ProxyHeadersMiddleware

from app.access.rate_limit import Peers, RateLimits, network_of
from app.access.recorder import Recorder
from app.access.request_log import RequestLog
from app.alerts import routes as alerts
from app.allowances import routes as allowances
from app.api.metrics import Metrics
from app.api.openapi import document
from app.api.operation import routes_of
from app.api_keys import routes as keys
from app.approvals import routes as approvals
from app.audit import routes as audit
from app.budgets import routes as budgets
from app.chain.errors import ChainUnavailable, RpcError
from app.core.errors import ApiError, RequestError, StorageUnavailableError, UnavailableError, is_storage_error
from app.core.hosts import AllowedHosts
from app.core.identifiers import random_id
from app.core.settings import Settings
from app.core.timestamps import iso_ms, now_ms
from app.core.turns import Lane, Turns
from app.dashboard.errors import error_page
from app.dashboard.routes import routes as dashboard
from app.dashboard.site import Site, on_dashboard
from app.database.interface import REQUEST_PATIENCE, patience
from app.database.paging import InvalidCursorError
from app.escrows import routes as escrows
from app.events import routes as events
from app.exports import routes as exports
from app.insights import routes as insights
from app.organisations import routes as organisations
from app.payments import routes as payments
from app.people import routes as people
from app.policies import routes as policies
from app.recipients import routes as recipients
from app.server import _docs_routes as documentation
from app.server import _mcp_routes as mcp
from app.server import _monitoring_routes as monitoring
from app.server.health import Health
from app.signatures import routes as signatures
from app.submission.context import Service
from app.test_clock import routes as test_clock
from app.topups import routes as topups
from app.transactions import routes as transactions
from app.wallets import routes as wallets
from app.webhooks import routes as webhooks
from app.x402 import routes as x402

_log = structlog.get_logger(__name__)

# The capabilities with routes, in the order of matching. Escrows precede payments, so that `a2a` in `/v1/payments/a2a`
# does not match as a payment's id. Exports precede transactions for the same reason.
_CAPABILITIES = (
    *(escrows, allowances, payments, x402, approvals, wallets, topups, budgets, policies, exports, transactions),
    *(events, audit, alerts, recipients, webhooks, keys, people, organisations, signatures, insights, test_clock),
)
operations = routes_of(*_CAPABILITIES)


async def entrance(request: Request) -> Response:
    """Redirect browsers to the dashboard. Return the addresses of the API and its documentation to other clients."""
    site: Site = request.app.state.dashboard
    if "text/html" in request.headers.get("accept", ""):
        return RedirectResponse(site.base, 303)
    base: str = request.app.state.base_url
    return JSONResponse(
        {"name": "Agent Vault", "api": f"{base}/v1", "documentation": f"{base}/docs", "openapi": f"{base}/openapi.json"}
    )


routes: list[Route] = [
    *operations,
    *exports.downloads,
    *mcp.routes,
    *documentation.routes,
    *monitoring.routes,
    *dashboard,
    Route("/", entrance, methods=["GET"]),
]

#: JSON-RPC error codes for a request that is itself invalid.
_OUR_FAULT = frozenset({-32600, -32601, -32602})


#: Beginnings of the paths on which a request must authenticate first.
_AUTHENTICATED = ("/v1/", "/mcp", "/metrics", "/dashboard")


class RequestIds:
    """Gives every request an id, returned in `Request-Id`, and answers unexpected exceptions with `internal_error`.

    Also adds the service's time and the headers in the request's state to the response, counts the request and logs it.
    If the server could not read a request, its state holds the error to respond with as `refusal`. Requests for another
    host are refused, except requests of the probes `/healthz` and `/readyz`.
    """

    def __init__(self, app: ASGIApp, hosts: AllowedHosts) -> None:
        self._app = app
        self._hosts = hosts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request_id = random_id("req_")
        scope.setdefault("state", {})["request_id"] = request_id
        status, began = 0, time.monotonic()

        async def send_with_id(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                always = {"request-id": request_id, "service-time": iso_ms(now_ms())}
                added = {**always, **scope["state"].get("headers", {})}
                encoded = [(name.lower().encode(), value.encode()) for name, value in added.items()]
                encoded += _guards(scope["path"], message["headers"])
                message = {**message, "headers": [*message["headers"], *encoded]}
            await send(message)

        with structlog.contextvars.bound_contextvars(request_id=request_id):
            token = patience.set(REQUEST_PATIENCE)
            try:
                refusal = scope["state"].get("refusal") or self._wrong_host(scope)
                responder = self._app if refusal is None else await _error_response(Request(scope), refusal)
                await self._in_turn(scope, cast(Any, responder(scope, receive, send_with_id)))
            except Exception:
                _log.exception("internal_error", method=scope["method"], path=scope["path"])
                if status:
                    raise
                response = await _error_response(Request(scope), ApiError("internal_error"))
                await response(scope, receive, send_with_id)
            finally:
                patience.reset(token)
            seconds = time.monotonic() - began
            scope["app"].state.metrics.answered(scope, status, seconds)
            scope["app"].state.requests.answered(scope, status, seconds)
            _log.info(
                "request",
                method=scope["method"],
                path=scope["path"],
                status=status,
                code=scope["state"].get("error_code"),
                wallet_id=scope["state"].get("wallet_id") or scope.get("path_params", {}).get("wallet_id"),
                seconds=round(seconds, 6),
            )

    async def _in_turn(self, scope: Scope, work: Coroutine[Any, Any, None]) -> None:
        """Serve a request in turn with others.

        Probes wait only for brakes. A request that must authenticate also waits only for brakes, until its caller is
        known. All other requests take turns with those from the same address.
        """
        path, client = scope["path"], scope["client"]
        unknown = path.startswith(_AUTHENTICATED) or path in monitoring.PROBES
        may_brake = unknown and scope["method"] not in ("GET", "HEAD", "OPTIONS")
        arrived = Lane("", network_of(client and client[0]), unknown=unknown, may_brake=may_brake)
        await scope["app"].state.turns.run(work, partial(scope["state"].get, "lane", arrived))

    def _wrong_host(self, scope: Scope) -> RequestError | None:
        fault = None if scope["path"] in monitoring.PROBES else self._hosts.fault(scope["headers"])
        if fault is None:
            return None
        remedy = "use the service's own address, which its operator sets in AGENT_VAULT_PUBLIC_URL"
        return RequestError("host_not_allowed", f"{fault}; {remedy}.")


def _guards(path: str, headers: Iterable[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
    """Return the protective headers that a response lacks. They prevent guessed content types and cached API responses.

    Every response under `/v1` is for one caller, and some contain a secret: a key, a token, or a link that grants
    access.
    """
    sent = {name.lower() for name, _ in headers}
    guards = [(b"x-content-type-options", b"nosniff")]
    if path.startswith("/v1/"):
        guards.append((b"cache-control", b"no-store"))
    return [(name, value) for name, value in guards if name not in sent]


async def _error_response(request: Request, error: ApiError) -> Response:
    base: str = request.app.state.base_url
    request.state.error_code = error.code
    docs = f"{base}/docs/errors/{error.code}"
    if on_dashboard(request.scope["path"]):
        return await error_page(request, error, docs)
    body = error.envelope(docs=docs, request_id=request.state.request_id)
    return JSONResponse(body, error.status, headers=error.headers)


async def _api_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, ApiError)
    principal = getattr(request.state, "principal", None)
    if error.code == "insufficient_permissions" and principal is not None:
        recorder: Recorder = request.app.state.recorder
        recorder.refused(principal, f"{request.method} {request.scope['route'].path}")
    return await _error_response(request, error)


async def _http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    if error.status_code == 405:
        # Of several matching paths, the one with the fewest parameters counts: `a2a` in `/v1/payments/a2a` is no id.
        scope = {**request.scope, "method": request.method}
        matching = [route for route in routes if route.matches(scope)[0] is not Match.NONE]
        meant = min(matching, key=lambda route: len(route.param_convertors)).path
        allowed = {method for route in routes if route.path == meant for method in route.methods or ()}
        return await _error_response(
            request, RequestError("method_not_allowed", headers={"Allow": ", ".join(sorted(allowed))})
        )
    return await _error_response(request, RequestError("not_found" if error.status_code == 404 else "invalid_request"))


async def _chain_error(request: Request, error: Exception) -> Response:
    # A node that rejects a valid request is as unusable as a silent one, but it deserves an error in the log.
    refused = isinstance(error, RpcError) and error.code in _OUR_FAULT
    (_log.error if refused else _log.warning)("chain_unavailable", error=str(error))
    return await _error_response(request, UnavailableError("chain_unavailable"))


async def _storage_error(request: Request, error: Exception) -> Response:
    if not is_storage_error(error):
        raise error
    _log.warning("storage_unavailable", error=str(error))
    return await _error_response(request, StorageUnavailableError())


async def _cursor_error(request: Request, _error: Exception) -> Response:
    return await _error_response(
        request,
        RequestError(
            "invalid_request", "cursor: was not issued by this list with these filters. Omit it to start over."
        ),
    )


#: Handlers that turn exceptions raised anywhere below a route into responses.
ERROR_HANDLERS: Mapping[Any, Any] = {
    ApiError: _api_error,
    HTTPException: _http_error,
    ChainUnavailable: _chain_error,
    RpcError: _chain_error,
    sqlite3.Error: _storage_error,
    OSError: _storage_error,
    InvalidCursorError: _cursor_error,
}


@cache
def openapi(base_url: str) -> dict[str, Any]:
    """Return the OpenAPI document of a service at this address."""
    return document(operations, base_url)


def create_app(settings: Settings, service: Service) -> Starlette:
    """Return the application of a running service. Without the role `api`, it has only the monitoring routes."""
    proxies = [one for one in map(str.strip, settings.trusted_proxies.split(",")) if one]
    middleware = [Middleware(RequestIds, hosts=settings.api_hosts())]
    if proxies:
        middleware.append(Middleware(cast(Any, ProxyHeadersMiddleware), trusted_hosts=proxies))
    served = routes if settings.has_role("api") else monitoring.routes
    app = Starlette(routes=served, middleware=middleware, exception_handlers=dict(ERROR_HANDLERS))
    # A redirection would lead to whatever host the request names.
    app.router.redirect_slashes = False
    app.state.service = service
    app.state.health = Health(service)
    app.state.base_url = settings.base_url()
    app.state.dashboard = Site.of(settings)
    app.state.metrics = service.part(Metrics)
    app.state.metrics.serve(served)
    app.state.turns = Turns()
    app.state.rate_limits = RateLimits(settings, service.part(Peers))
    app.state.recorder = service.part(Recorder)
    app.state.requests = service.part(RequestLog)
    app.state.openapi = openapi(settings.base_url())
    served_by = {one.endpoint.__name__: (one, RequestIds(one.app, settings.api_hosts())) for one in operations}
    app.state.mcp = mcp.mcp_server(served_by, app.state.openapi)
    return app
