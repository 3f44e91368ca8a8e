"""Reports alerts when they begin, and queues e-mails and Slack messages about events."""

from collections.abc import Callable, Collection, Sequence

import structlog
from sqlalchemy import Connection

from app.access.keyring import system
from app.alerts._events import append_lasting, append_triggered
from app.alerts._rules import effective
from app.alerts.messages import compose
from app.alerts.spending import report_spending
from app.chain.errors import ChainUnavailable, RpcError
from app.core.actors import Actor
from app.core.background import Periodic
from app.core.errors import UnavailableError
from app.core.identifiers import EVENT_PREFIX, random_id
from app.core.settings import Settings
from app.core.timestamps import MINUTE, now_ms
from app.database.interface import Database
from app.projection.projector import Projector
from app.store.alert_kinds import SLACK_EVENTS, TRIGGERS, TYPE_OF, AlertType
from app.store.alert_mails import begin, queue, read_feed, unread
from app.store.alerts import (
    AlertTransition,
    busy_wallets,
    changed_alerts,
    exceeds_velocity,
    mark,
    rules_of,
    unmark,
    watches,
)
from app.store.brakes import BrakeRow, put_brake
from app.store.deliveries import is_recent
from app.submission.context import Service

_log = structlog.get_logger(__name__)

_BATCH = 200


class Watcher(Periodic):
    """Checks for alerts at the start, whenever rules change and every `interval` seconds.

    The read models decide if a lasting alert applies: a low balance, inactivity or a velocity spike. A mark records
    that the alert was reported. The mark is stored in the same transaction as the event, so that a restart neither
    loses nor repeats the alert. Balances are checked after each change. The velocity of a changed wallet is checked at
    the next tick, and its limits within a minute. All wallets are checked every minute, or every `interval` if that is
    longer. From the feed, the watcher derives the alerts of rules that may freeze a wallet, and the e-mails of all
    alerts. One transaction stores these alerts and e-mails and moves the watcher's position in the feed.
    """

    name = "alerts"
    outages = (ChainUnavailable, RpcError)

    def __init__(
        self,
        db: Database,
        projector: Projector,
        settings: Settings,
        *,
        chain_clock: Callable[[], int],
        clock: Callable[[], int] = now_ms,
    ) -> None:
        """Queue e-mails if `settings` has a mail server. Messages for Slack channels are queued in any case.

        Both clocks give Unix milliseconds: `chain_clock` for transactions and alerts, `clock` for rounds and e-mails.
        """
        super().__init__(settings.alert_interval)
        self._db = db
        self._projector = projector
        self._mails = bool(settings.smtp_host)
        self._hourly_mails = settings.alert_emails_per_hour
        self._dashboard = f"{settings.base_url()}/dashboard"
        self._chain_clock = chain_clock
        self._clock = clock
        self._moved: set[str] = set()
        """Vaults that changed since the last check of the velocity."""
        self._watches_balances: bool | None = None
        self._check_all_at = 0
        self._spent: set[str] = set()
        """Vaults that changed since the last check of limits."""
        self._check_limits_at = 0
        self.service: Service | None = None
        """The service that freezes wallets, set before the start."""

    async def start(self) -> None:
        """Start reading the feed at the position that an earlier process has stored, or else at the end of the feed."""
        await self._db.write(begin)
        self._projector.subscribe(self._changed)
        await super().start()

    async def stop(self) -> None:
        """Stop, and unsubscribe from the projector."""
        if self._task is not None:
            self._projector.unsubscribe(self._changed)
        await super().stop()

    def rules_changed(self) -> None:
        """Check all wallets now, because rules have changed. Call this from the event loop."""
        self._check_all_at = 0
        self._watches_balances = None
        self.wake()

    async def tick(self) -> None:
        """Report all alerts that are due now."""
        now = self._clock()
        if now >= self._check_all_at:
            # Set the time of the next full check before this check: a change of rules during the check resets that
            # time, to request another check.
            self._check_all_at = now + MINUTE
            try:
                await self._check_all()
            except BaseException:
                self._check_all_at = 0
                raise
        elif self._moved:
            async with self._projector.paused():
                moved, self._moved = self._moved, set()
                await self._check("velocity_spike", moved)
        while await self._db.look_up(unread):
            for row in await self._db.write(self._read_feed):
                self._freeze(row)
        if self.service is not None and self._spent and now >= self._check_limits_at:
            self._check_limits_at = now + MINUTE
            spent, self._spent = self._spent, set()
            try:
                await report_spending(self.service, spent)
            except BaseException:
                self._spent |= spent
                raise

    async def _check_all(self) -> None:
        async with self._projector.paused():
            self._moved.clear()
            self._watches_balances = None
            for kind in ("balance_low", "inactivity", "velocity_spike"):
                await self._check(kind)

    async def _changed(self, vaults: set[str]) -> None:
        self._moved |= vaults
        self._spent |= vaults
        try:
            if self._watches_balances is None:
                self._watches_balances = await self._db.read(lambda conn: watches(conn, ["balance_low"]))
            if self._watches_balances:
                await self._check("balance_low", vaults)
        except UnavailableError as error:
            _log.warning("alerts_wait_for_storage", error=error.message)
        except Exception:  # noqa: BLE001 - the projection must continue; the next full check reports the alert
            _log.exception("alerts_failed")

    async def _check(self, kind: AlertType, vaults: Collection[str] | None = None) -> None:
        """Report the lasting alerts of a type that have begun, and remove the marks of ended alerts.

        Checks the wallets of ``vaults``, or all wallets if it is None.
        """
        now = self._chain_clock()

        def find(conn: Connection) -> Sequence[AlertTransition]:
            if kind != "velocity_spike":
                return changed_alerts(conn, kind, now, vaults=vaults, limit=_BATCH)
            if vaults is not None and not watches(conn, ["velocity_spike"]):
                return ()
            return [one for one in busy_wallets(conn, now, vaults=vaults) if _spikes(conn, one, now) != one.marked]

        def store(conn: Connection, batch: Sequence[AlertTransition]) -> None:
            for one in batch:
                if one.marked:
                    unmark(conn, one.wallet_id, kind)
                else:
                    event_id = random_id(EVENT_PREFIX)
                    mark(conn, one.wallet_id, kind, event_id, now)
                    append_lasting(conn, kind, one, event_id, now)

        in_thread = vaults is None or kind == "velocity_spike"
        while found := await self._db.read(find, in_thread=in_thread):
            for first in range(0, len(found), _BATCH):
                await self._db.write(lambda conn: store(conn, found[first : first + _BATCH]))  # noqa: B023 - awaited immediately

    def _freeze(self, row: BrakeRow) -> None:
        """Stop a wallet's payments now, and let the service freeze the wallet on the chain in the background."""
        assert self.service is not None
        brake = self.service.brake
        brake.leave(brake.engage(system(row.org, row.actor.id), row.scope, "freeze"))

    def _read_feed(self, conn: Connection) -> Collection[BrakeRow]:
        """Read the next events of the feed, report the alerts that they raise, and queue messages.

        Return the brakes of the wallets to freeze. The brakes are stored in the same transaction as the alerts, so that
        the wallets are frozen even after a crash.
        """
        now, brakes = self._clock(), dict[str, BrakeRow]()
        kinds = [kind for kind in TRIGGERS if watches(conn, [kind])]
        types = {event for kind in kinds for event in TRIGGERS[kind]} | set(TYPE_OF if self._mails else SLACK_EVENTS)
        # Old events are skipped: a rebuild of the read models also adds events that the feed had already deleted.
        events = [one for one in read_feed(conn, types, _BATCH) if is_recent(one, self._chain_clock())]
        rules = rules_of(conn, {scope for one in events for scope in (one.org, one.wallet_id) if scope is not None})
        for one, kind in ((one, kind) for one in events for kind in kinds if one.type in TRIGGERS[kind]):
            rule, _ = effective(rules, kind, one.org, one.wallet_id)
            if rule is not None and append_triggered(conn, kind, one, rule) and rule.freezes:
                assert one.wallet_id is not None
                actor = Actor("system", f"alert_rule_{kind}")
                brakes[one.wallet_id] = BrakeRow(
                    scope=one.wallet_id, kind="freeze", org=one.org, actor=actor, since=now, node=self._db.node
                )
        for row in brakes.values():
            put_brake(conn, row)
        reported = [one for one in events if one.type in TYPE_OF]
        addressed = rules if self._mails else {}
        queue(conn, compose(conn, reported, addressed, now, hourly=self._hourly_mails, dashboard=self._dashboard))
        return brakes.values()


def _spikes(conn: Connection, wallet: AlertTransition, now: int) -> bool:
    return wallet.threshold > 0 and exceeds_velocity(conn, wallet.wallet_id, wallet.threshold, now)
