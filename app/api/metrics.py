"""Metrics for Prometheus. No label holds an id, a key or anything else that a client chose."""

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from starlette.types import Scope

from app.core.errors import ApiError

_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)
_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE"})
#: Outcomes of payments by the code of their error; all other errors are `refused`.
_OUTCOMES = {"policy_violation": "blocked", "transaction_failed": "failed", "chain_unavailable": "unknown"}


class Metrics:
    """Counters since the start of the process, and gauges as of the last request for them."""

    def __init__(self) -> None:
        registry = self._registry = CollectorRegistry()
        self._seconds = Histogram(
            "agent_vault_http_request_seconds",
            "Time from a request's headers to the end of its response.",
            ("method", "route", "status"),
            buckets=_SECONDS,
            registry=registry,
        )
        self._payments = Counter(
            "agent_vault_payments",
            "Payment requests by outcome; repetitions under an idempotency key do not count.",
            ("outcome",),
            registry=registry,
        )
        self.ready = Gauge("agent_vault_ready", "1 while the service is ready.", registry=registry)
        self.lag = Gauge(
            "agent_vault_indexer_lag_slots", "Slots by which the indexer is behind the chain.", registry=registry
        )
        self.pending = Gauge(
            "agent_vault_pending_attempts", "Transactions whose outcome is not yet known.", registry=registry
        )

    def answered(self, scope: Scope, status: int, seconds: float) -> None:
        """Count an answered request, under the template of its route."""
        route = scope.get("route")
        method = scope["method"] if scope["method"] in _METHODS else "other"
        self._seconds.labels(method, "unknown" if route is None else route.path, status).observe(seconds)

    def paid(self, status: str) -> None:
        """Count a payment that was answered with this status."""
        self._payments.labels(status).inc()

    def not_paid(self, error: ApiError) -> None:
        """Count a payment that was answered with an error."""
        self._payments.labels(_OUTCOMES.get(error.code, "refused")).inc()

    def text(self) -> bytes:
        """Return all metrics in the text format of Prometheus."""
        return generate_latest(self._registry)
