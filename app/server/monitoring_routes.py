"""For those who run the service: whether it lives, whether it is ready, and its figures."""

import ipaddress

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from app.access.auth import READERS, admit, authorise
from app.access.keyring import KeyRing
from app.api.metrics import Metrics
from app.core.errors import UnavailableError
from app.server.health import Health
from app.store.attempts import count_pending
from app.submission.context import Service


async def live(_request: Request) -> Response:
    """Tell that the process answers. Needs no key."""
    return JSONResponse({"status": "ok"})


async def ready(request: Request) -> Response:
    """Tell whether the chain answers, the database can be written and the indexer keeps up.

    Needs no key. Answers 503 `not_ready` with `reasons` otherwise.
    """
    report = await _health(request).report()
    if report.failing:
        raise UnavailableError("not_ready", fields={"reasons": list(report.failing)}, headers={"Retry-After": "1"})
    return JSONResponse({"status": "ready", "indexer_lag_slots": report.lag})


async def figures(request: Request) -> Response:
    """Give figures for Prometheus: requests by route and status, payments by outcome, lag, pending transactions.

    They are of all organisations together. From the machine itself they need no key, from elsewhere one with the role
    viewer, operator or admin. A proxy on the same machine must send `X-Forwarded-For`.
    """
    service: Service = request.app.state.service
    if not _local(request):
        authorise(await admit(request, service.part(KeyRing), request.app.state.rate_limits), READERS)
    metrics: Metrics = request.app.state.metrics
    report = await _health(request).report()
    metrics.ready.set(not report.failing)
    metrics.lag.set(report.lag)
    metrics.pending.set(await service.db.read(count_pending))
    return Response(metrics.text(), media_type="text/plain; version=0.0.4; charset=utf-8")


def _health(request: Request) -> Health:
    state = request.app.state
    # Made here: the service is not there yet when the application is.
    if not hasattr(state, "health"):
        state.health = Health(state.service)
    health: Health = state.health
    return health


def _local(request: Request) -> bool:
    try:
        return request.client is not None and ipaddress.ip_address(request.client.host).is_loopback
    except ValueError:
        return False


routes = [
    Route("/healthz", live),
    Route("/readyz", ready),
    Route("/metrics", figures),
]
