"""For operators of the service: liveness, readiness and metrics."""

import ipaddress
import time
from dataclasses import asdict

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from app.access.auth import READERS, admit, authorise, count
from app.access.keyring import KeyRing
from app.api.metrics import Metrics
from app.core.errors import UnavailableError
from app.core.timestamps import iso_ms
from app.server.health import HealthReport
from app.submission.context import Service

#: Paths that are answered under any host name, because probes call by address.
PROBES = frozenset({"/healthz", "/readyz"})

#: Maximum number of unreadable transactions that a response lists.
_LISTED = 10
#: Age in seconds from which a response shows the last backup.
_BACKUP_AGE = 86_400

#: Cost of `/metrics` for the rate limit.
_WEIGHT = 12

#: Headers that proxies add to forwarded requests. A direct request from the machine itself has none.
_FORWARDED = ("forwarded", "via", "x-forwarded-for", "x-forwarded-host", "x-forwarded-proto", "x-real-ip")


async def live(_request: Request) -> Response:
    """Show that the process answers. No key is needed."""
    return JSONResponse({"status": "ok"})


async def ready(request: Request) -> Response:
    """Show if this node can pay: the chain answers, the database and the disk have room, and its indexer keeps up.

    `missing_history` lists pairs of slots: no node has served the program's transactions between them.
    `unreadable_transactions` shows the number of unreadable transactions, counted up to 1,000, and the newest ones.
    `missing_events` shows the vaults and organisations with gaps. `guard` is `catching_up` or `unacknowledged` while
    the service may have forgotten payments in a restore or a failover. `lost_roles` lists the roles that the chain
    gave to a different key than the service's; start the service with that key. `missing_roles` lists the kinds of
    background jobs that no node runs. `last_backup` is the time of the last `agent-vault backup` or, without one, of
    the first start, if it is more than a day old. If a check fails, the response is 503 `not_ready` with `reasons`.
    No key is needed.
    """
    report: HealthReport = await request.app.state.health.report()
    if report.failing:
        raise UnavailableError("not_ready", fields={"reasons": list(report.failing)})
    unreadable, newest = report.unreadable, [asdict(one) for one in report.unreadable[:_LISTED]]
    old = time.time() > report.backed_up + _BACKUP_AGE
    details = {
        "missing_history": [{"after_slot": after, "before_slot": before} for after, before in report.holes],
        "unreadable_transactions": {"count": len(unreadable), "newest": newest} if unreadable else None,
        "missing_events": report.gaps,
        "missing_roles": report.missing_roles,
        "last_backup": iso_ms(int(report.backed_up * 1000)) if old else None,
        "guard": report.guard,
        "lost_roles": [
            {"organization_address": one.org.org, "role": one.role, "holder": str(one.holder), "key": str(one.key)}
            for one in report.lost
        ],
    }
    found = {name: value for name, value in details.items() if value}
    return JSONResponse({"status": "ready", "indexer_lag_slots": report.lag, **found})


async def figures(request: Request) -> Response:
    """Show metrics for Prometheus: requests, payments, reserves, backlogs, lags, and differences from the chain.

    The metrics cover all organisations. The figures of the chain and the database are read every
    `AGENT_VAULT_METRICS_INTERVAL` seconds. A request with a key sees the reserve of the key's organisation. A request
    from the machine itself needs no key. Without a key, it sees the sum of all reserves. Other requests need a key with
    the role viewer, operator or admin. A request that a proxy has forwarded counts as coming from another machine. The
    guide "Operations" explains the metrics.
    """
    service: Service = request.app.state.service
    org = None
    if not _local(request) or "authorization" in request.headers:
        principal = await admit(request, service.part(KeyRing))
        await count(request, principal, _WEIGHT)
        authorise(principal, READERS)
        org = principal.org
    metrics: Metrics = request.app.state.metrics
    for scope, waiting in service.locks.waiting().items():
        metrics.waiting[scope.name.lower()].set(waiting)
    return Response(metrics.text(org), media_type="text/plain; version=0.0.4; charset=utf-8")


def _local(request: Request) -> bool:
    if any(name in request.headers for name in _FORWARDED):
        # A proxy forwarded the request, even if the settings do not name that proxy.
        return False
    try:
        return request.client is not None and ipaddress.ip_address(request.client.host).is_loopback
    except ValueError:
        return False


routes = [
    Route("/healthz", live),
    Route("/readyz", ready),
    Route("/metrics", figures),
]
