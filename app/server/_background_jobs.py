"""The background jobs of a process, and the jobs that only a single node may run."""

from collections.abc import Callable, Sequence

from app.access.keyring import KeyRing
from app.access.rate_limit import Peers
from app.access.recorder import Recorder
from app.access.request_log import RequestLog
from app.alerts.mailer import Mailer
from app.alerts.watcher import Watcher
from app.audit.publisher import HeadPublisher
from app.core.background import Startable
from app.database.postgres.database import PostgresDatabase
from app.database.signals import EXPORTS, GUARD, KEYS, ROWS, RULES
from app.exports.exporter import Exporter
from app.keeper.enforcer import BrakeEnforcer
from app.keeper.keeper import Keeper
from app.keeper.settler import AllowanceSettler
from app.projection.remote_updates import RemoteUpdates
from app.reconciliation.index_watch import IndexWatch
from app.reconciliation.reconciliation import Reconciliation
from app.server.housekeeping import Housekeeping, KeyUse
from app.server.listener import Listener
from app.server.node import ServingNode
from app.submission.context import Service
from app.submission.database_guard import DatabaseGuard
from app.submission.recovery import Recovery
from app.webhooks.delivery_client import DeliveryClient
from app.webhooks.dispatcher import Dispatcher
from app.webhooks.slack import SlackSender
from app.x402.watch import IssuedPaymentWatch

INDEXER, WORKER = "indexer", "worker"
"""Names of the leases. The roles have the same names."""


def background_jobs(service: Service, *, beside: bool = False) -> Sequence[Startable]:
    """Return the jobs of the process in the order of their start. ``beside`` is True for a process next to a service.

    On SQLite, the lock of the data folder lets only one process serve, so this process runs all jobs. A process next to
    the service runs all jobs that its own settings enable. On PostgreSQL, a node runs a single-node job only while it
    holds the job's lease. A process next to a service never holds a lease. It runs only some of the other jobs and, if
    enabled, the keeper, because several keepers do no harm.
    """
    db, settings = service.db, service.settings
    first: list[Startable] = [service.clock, service.part(Recorder), service.part(RequestLog)]
    # The settler comes before the enforcer, because the settler must already listen when the enforcer sends a freeze.
    last: list[Startable] = [AllowanceSettler(service), BrakeEnforcer(service)]
    last.append(KeyUse(service.part(KeyRing), interval=settings.housekeeping_interval))
    last.append(service.part(DatabaseGuard))
    single = {INDEXER: _following(service), WORKER: _single(service)}
    exporter = [service.part(Exporter)] if settings.exports else []
    if not isinstance(db, PostgresDatabase):
        service.projector.prompt = lambda: service.indexer.hears
        return [*first, *single[INDEXER], *single[WORKER], *last, *exporter, *_claimed(service)]
    arrivals = RemoteUpdates(service.projector, service.catch_up)
    listener = _listener(service, db, arrivals)
    arrivals.hears = lambda: listener.connected
    service.projector.prompt = lambda: service.indexer.hears if service.projector.applies else listener.connected
    first += [arrivals, listener]
    if beside:
        keeper = [Keeper(service, interval=settings.keeper_interval)] if settings.keeper else []
        return [*first, ServingNode(db, {}), *last, *keeper]
    peers = service.part(Peers) if settings.has_role("api") else None
    node = ServingNode(db, {role: works for role, works in single.items() if settings.has_role(role)}, peers=peers)
    claimed = _claimed(service) if settings.has_role(WORKER) else []
    # Every node has the exporter, because it also removes the files of expired exports that the node has served.
    return [*first, node, *last, service.part(Exporter), *claimed]


def _listener(service: Service, db: PostgresDatabase, arrivals: RemoteUpdates) -> Listener:
    settings = service.settings
    handlers: dict[str, Callable[[Sequence[str]], object]] = {
        ROWS: arrivals.hear,
        KEYS: lambda _about: service.part(KeyRing).forget(),
        EXPORTS: lambda _about: service.part(Exporter).wake(),
        GUARD: lambda _about: service.part(DatabaseGuard).wake(),
    }
    if settings.alerts:
        handlers[RULES] = lambda _about: service.part(Watcher).rules_changed()
    address = settings.database_listen_url or settings.database_url
    assert address is not None
    assert db.channel is not None
    return Listener(address.get_secret_value(), db.channel, handlers, place=db.place)


def _following(service: Service) -> list[Startable]:
    """Return the jobs that follow the chain: indexer, projector and the watch over the index's holes and gaps.

    The watcher for alerts and the reconciliation are included if their settings are on.
    """
    found: list[Startable] = [service.indexer, service.projector]
    if service.settings.alerts:
        service.part(Watcher).service = service
        found.append(service.part(Watcher))
    found.append(IndexWatch(service))
    if service.settings.reconciliation:
        found.append(Reconciliation(service, interval=service.settings.reconciliation_interval))
    return found


def _single(service: Service) -> list[Startable]:
    db, settings, clock = service.db, service.settings, service.clock
    found: list[Startable] = [
        HeadPublisher(db, days=settings.audit_retention_days),
        service.part(Recovery),
        IssuedPaymentWatch(service, interval=settings.recovery_interval, patience=2 * settings.x402_timeout),
        Housekeeping(
            db,
            interval=settings.housekeeping_interval,
            days=settings.event_retention_days,
            requests=settings.request_log_size,
            chain_clock=clock.seen_ms,
        ),
    ]
    if settings.keeper:
        found.append(Keeper(service, interval=settings.keeper_interval))
    return found


def _claimed(service: Service) -> list[Startable]:
    """Return the jobs that several nodes run concurrently, each on the rows that it has claimed."""
    db, settings = service.db, service.settings
    found: list[Startable] = []
    if settings.alerts and settings.smtp_host:
        found.append(Mailer(db, settings))
    delivery_client = service.part(DeliveryClient)
    if settings.alerts:
        found.append(SlackSender(db, settings, delivery_client))
    if settings.webhooks:
        found.append(
            Dispatcher(db, delivery_client, interval=settings.webhook_interval, at_once=settings.webhooks_at_once)
        )
    return found
