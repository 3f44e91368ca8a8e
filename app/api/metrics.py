"""Metrics for Prometheus. No label holds a key or anything else that a client chose."""

import math
import time
from collections.abc import Mapping
from typing import Literal, get_args

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from starlette.types import Scope

from app.core.errors import ApiError

ReconciliationResult = Literal["clean", "differences", "incomplete"]
KeeperError = Literal["refused", "failed", "chain_unavailable"]

_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)
_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE"})
#: Outcomes of payments by the code of their error; all other errors are `refused`.
_OUTCOMES = {"policy_violation": "blocked", "transaction_failed": "failed", "chain_unavailable": "unknown"}


class Metrics:
    """Counters since the start of the process, and gauges as they were last set; NaN is unknown."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        self._seconds = Histogram(
            "agent_vault_http_request_seconds",
            "Time from a request's headers to the end of its response.",
            ("method", "route", "status"),
            buckets=_SECONDS,
            registry=self._registry,
        )
        self._payments = Counter(
            "agent_vault_payments",
            "Payment requests by outcome; repetitions under an idempotency key do not count.",
            ("outcome",),
            registry=self._registry,
        )
        self._keeper = Counter(
            "agent_vault_keeper_errors",
            "What the keeper of this process could not do, by reason: repeatedly refused by the program, failed, "
            "or put off because the chain did not answer.",
            ("reason",),
            registry=self._registry,
        )
        for reason in get_args(KeeperError):
            self._keeper.labels(reason)
        self.ready = self._gauge("ready", "1 while the service is ready.")
        self.lag = self._gauge("indexer_lag_slots", "Slots by which the indexer is behind the chain.")
        self.pending = self._gauge("pending_attempts", "Transactions whose outcome is not yet known.")
        self.fee_payer = self._gauge("fee_payer_lamports", "Lamports of the fee payer; a SOL has 1,000,000,000.")
        self.waiting = self._gauge("waiting_requests", "Requests that wait for a lock, by what it guards.", "lock")
        self.backlog = self._gauge(
            "webhook_backlog",
            "Deliveries that are queued, by status of their webhook; counted up to a limit.",
            "status",
        )
        self.unqueued = self._gauge("webhook_unqueued_events", "Events that are not queued for webhooks yet.")
        self.overdue = self._gauge("webhook_overdue_seconds", "Time since the oldest unsent delivery was due.")
        self.differences = self._gauge("reconciliation_differences", "Accounts that differ from the chain.")
        self.updated = self._gauge("gauges_timestamp_seconds", "Unix time at which the gauges were last read.")
        self._undecided = self._gauge(
            "reconciliation_undecided", "Accounts about which the last reconciliation could not decide."
        )
        self._reconciled_at = self._gauge(
            "reconciliation_timestamp_seconds", "Unix time at which the last complete reconciliation ended."
        )
        self._result = self._gauge("reconciliation_result", "1 for the result of the last reconciliation.", "result")
        for result in get_args(ReconciliationResult):
            self._result.labels(result).set(0)
        for gauge in (self.ready, self.lag, self.fee_payer, self._reconciled_at):
            gauge.set(math.nan)
        self.reserves: Mapping[str, tuple[str, int]] = {}
        """Of each organisation, by address: its id, and its reserve in micro-USDC."""

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

    def keeper_failed(self, reason: KeeperError) -> None:
        """Count something that the keeper could not do."""
        self._keeper.labels(reason).inc()

    def reconciled(self, result: ReconciliationResult, undecided: int | None) -> None:
        """Note the end of a reconciliation; of an `incomplete` one only that."""
        for one in get_args(ReconciliationResult):
            self._result.labels(one).set(one == result)
        if undecided is not None:
            self._undecided.set(undecided)
            self._reconciled_at.set(time.time())

    def text(self, org: str | None) -> bytes:
        """Return the metrics in the text format of Prometheus, with the reserve of one organisation or of all."""
        registry = CollectorRegistry()
        reserve = Gauge(
            "agent_vault_reserve_micro_usdc", "Micro-USDC in the reserve.", ("organization",), registry=registry
        )
        for address, (org_id, balance) in self.reserves.items():
            if org in (None, address):
                reserve.labels(org_id).set(balance)
        return generate_latest(self._registry) + generate_latest(registry)

    def _gauge(self, name: str, meaning: str, *labels: str) -> Gauge:
        return Gauge(f"agent_vault_{name}", meaning, labels, registry=self._registry)
