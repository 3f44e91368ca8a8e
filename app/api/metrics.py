"""Metrics for Prometheus, declared in one place. The values of each label are declared with it.

Requests, errors, nodes and organisations never add a series, so the size of the metrics does not depend on traffic.
"""

import math
import time
from collections.abc import Iterable, Mapping
from typing import Literal, TypeVar, get_args

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, disable_created_metrics, generate_latest
from starlette.routing import Route
from starlette.types import Scope

from app.core.errors import ApiError
from app.core.settings import ROLES
from app.core.transaction_types import TransactionStatus
from app.submission.locks import LockScope

ReconciliationResult = Literal["clean", "differences", "incomplete"]
KeeperError = Literal["refused", "failed", "chain_unavailable"]
_Kind = TypeVar("_Kind", Counter, Gauge)

_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)
_STATUSES = ("2xx", "3xx", "4xx", "5xx")
_GROUPS = {
    "escrows": ("/v1/payments/a2a",),
    "payments": ("/v1/payments", "/v1/wallets/{wallet_id}/pay"),
    "x402": ("/v1/paid-requests", "/v1/x402"),
    "wallets": ("/v1/wallets", "/v1/organization"),
    "policies": ("/v1/policies", "/v1/budgets", "/v1/recipients", "/v1/approvals"),
    "history": ("/v1/transactions", "/v1/events", "/v1/audit-log", "/v1/request-log"),
    "settings": ("/v1/",),
    "mcp": ("/mcp",),
    "streams": ("/dashboard/stream",),
    "dashboard": ("/dashboard",),
    "other": ("",),
}
"""Groups of routes by path prefix. A route belongs to the first group with a matching prefix."""
_OUTCOMES = {"policy_violation": "blocked", "transaction_failed": "failed", "chain_unavailable": "unknown"}
"""Outcomes of payments by error code. All other errors count as `refused`."""
_RESERVE = """# HELP agent_vault_reserve_micro_usdc Micro-USDC in the reserve.
# TYPE agent_vault_reserve_micro_usdc gauge
agent_vault_reserve_micro_usdc{} {}
"""

# The metrics with the suffix `_created` would add a series to each counter and histogram.
disable_created_metrics()  # type: ignore[no-untyped-call] # the package declares no types here


class Metrics:
    """Counters since the start of the process, and gauges with their last values. NaN means unknown."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        self._seconds = Histogram(
            "agent_vault_http_request_seconds",
            "Time from a request's headers to the end of its response, by group of routes.",
            ("group", "status"),
            buckets=_SECONDS,
            registry=self._registry,
        )
        self._requests = Counter(
            "agent_vault_http_requests", "Requests by route.", ("route", "status"), registry=self._registry
        )
        self._answered: dict[str, list[tuple[Counter, Histogram]]] = {}
        """The series of each route, by class of status."""
        outcomes = (*get_args(TransactionStatus), "refused", "unknown")
        self._payments = self._by(Counter, "payments", "Payment requests, without replays.", outcome=outcomes)
        self._keeper = self._by(
            Counter, "keeper_errors", "Failures of the keeper in this process.", reason=get_args(KeeperError)
        )
        self.ready = self._gauge("ready", "1 while the service is ready.")
        self.lag = self._gauge("indexer_lag_slots", "Slots that the indexer is behind the chain.")
        self.holes = self._gauge(
            "index_holes", "Unread parts of the program's history, and unreadable transactions (up to 1,000)."
        )
        self.gaps = self._gauge(
            "index_gaps", "Number of vaults and organisations with at least one event lastingly missing from the index."
        )
        self.pending = self._gauge("pending_attempts", "Transactions without a known outcome.")
        self.guard = self._gauge(
            "payment_guard", "1 while the database guard blocks unchecked payments; see `guard` in `/readyz`."
        )
        self.free = self._gauge("disk_free_bytes", "Free bytes on the disk of the data folder.")
        self.backed_up = self._gauge("backup_timestamp_seconds", "Unix time of the last backup of a data folder.")
        self.missing_roles = {
            role: self._gauge(f"missing_{role}", f"1 while no node runs the jobs of the role {role}.")
            for role in ROLES[1:]
        }
        self.fee_payer = self._gauge("fee_payer_lamports", "The fee payer's lamports; 1,000,000,000 are one SOL.")
        scopes = [scope.name.lower() for scope in LockScope]
        self.waiting = self._by(Gauge, "waiting_requests", "Requests that wait for a lock.", lock=scopes)
        self.backlog = self._by(
            Gauge,
            "webhook_backlog",
            "Queued deliveries to webhooks of this status, counted up to a limit.",
            status=("enabled", "degraded"),
        )
        self.unqueued = self._gauge("webhook_unqueued_events", "Events that are not queued for webhooks yet.")
        self.overdue = self._gauge(
            "webhook_overdue_seconds", "Time since the oldest pending delivery to an enabled webhook was due."
        )
        self.differences = self._gauge("reconciliation_differences", "Accounts that differ from the chain.")
        self.updated = self._gauge("gauges_timestamp_seconds", "Unix time of the last reading of the gauges.")
        self._undecided = self._gauge(
            "reconciliation_undecided", "Accounts that the last reconciliation left undecided."
        )
        self._reconciled_at = self._gauge(
            "reconciliation_timestamp_seconds", "Unix time of the last complete reconciliation."
        )
        self._result = self._by(
            Gauge,
            "reconciliation_result",
            "1 for the result of the last reconciliation, 0 for the others.",
            result=get_args(ReconciliationResult),
        )
        for gauge in (self.ready, self.lag, self.fee_payer, self._reconciled_at):
            gauge.set(math.nan)
        self.reserves: Mapping[str | None, tuple[str, int]] = {}
        """Label text and reserve in micro-USDC by the organisation's address.

        The key None has the sum of all reserves.
        """
        self.remember = 1.0
        """Seconds for which a rendering of the metrics is reused."""
        self._text, self._rendered = b"", -math.inf

    def serve(self, routes: Iterable[Route]) -> None:
        """Declare a series for each route and class of status."""
        for path in ("unknown", *(route.path for route in routes)):
            group = next(name for name, beginnings in _GROUPS.items() if path.startswith(beginnings))
            self._answered[path] = [
                (self._requests.labels(path, status), self._seconds.labels(group, status)) for status in _STATUSES
            ]

    def answered(self, scope: Scope, status: int, seconds: float) -> None:
        """Count an answered request under the path template of its route."""
        route = scope.get("route")
        # A request without a response has the status 0 and counts as a server error.
        counter, histogram = self._answered["unknown" if route is None else route.path][(status or 500) // 100 - 2]
        counter.inc()
        histogram.observe(seconds)

    def paid(self, status: TransactionStatus) -> None:
        """Count a payment that was answered with this status."""
        self._payments[status].inc()

    def not_paid(self, error: ApiError) -> None:
        """Count a payment that was answered with an error."""
        self._payments[_OUTCOMES.get(error.code, "refused")].inc()

    def keeper_failed(self, reason: KeeperError) -> None:
        """Count a failure of the keeper."""
        self._keeper[reason].inc()

    def reconciled(self, result: ReconciliationResult, undecided: int | None) -> None:
        """Record the end of a reconciliation. Of an `incomplete` one, only the result is recorded."""
        for one, gauge in self._result.items():
            gauge.set(one == result)
        if undecided is not None:
            self._undecided.set(undecided)
            self._reconciled_at.set(time.time())

    def text(self, org: str | None) -> bytes:
        """Return the metrics in the Prometheus text format, with the reserve of one organisation or the sum of all.

        Readers share one rendering, which is at most `remember` seconds old. Only the reserve differs between readers.
        """
        if time.monotonic() >= self._rendered + self.remember:
            # Nothing is awaited here, so two renderings never run at the same time.
            self._text = generate_latest(self._registry)
            self._rendered = time.monotonic()
        return self._text + _RESERVE.format(*self.reserves.get(org, ("", "NaN"))).encode()

    def _gauge(self, name: str, meaning: str) -> Gauge:
        return Gauge(f"agent_vault_{name}", meaning, registry=self._registry)

    def _by(self, kind: type[_Kind], name: str, meaning: str, **label: Iterable[str]) -> dict[str, _Kind]:
        """Declare a metric with one label, and return its series by the label's values."""
        [(key, values)] = label.items()
        metric = kind(f"agent_vault_{name}", meaning, (key,), registry=self._registry)
        return {value: metric.labels(value) for value in values}
