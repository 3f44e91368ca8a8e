"""Reports alerts when they begin, and queues e-mails about events."""

import asyncio
from collections.abc import Callable, Collection, Sequence

import structlog
from sqlalchemy import Connection

from app.access.keyring import system
from app.alerts._events import append_large, append_lasting
from app.alerts._rules import effective
from app.alerts.messages import compose
from app.core.actors import Actor
from app.core.background import Periodic
from app.core.errors import ApiError, UnavailableError
from app.core.identifiers import EVENT_PREFIX, random_id
from app.core.money import parse_usdc
from app.core.settings import Settings
from app.core.timestamps import now_ms
from app.database.interface import Database
from app.projection.projector import Projector
from app.store.alert_kinds import BALANCE_LOW, EVENT_OF, INACTIVITY, LARGE_TRANSACTION, VELOCITY_SPIKE, AlertType
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
from app.submission.claim import Claim
from app.submission.context import Service
from app.wallets import freezing

_log = structlog.get_logger(__name__)

_FREEZER = Actor("system", "alert_rule_large_transaction")
_BATCH = 200
_MINUTE = 60 * 1000
_SPENDING = ("transaction.completed", "escrow.created")
"""Events of payments and escrows. Each of them may be a large transaction. Grants of allowances do not count."""


class Watcher(Periodic):
    """Checks for alerts at the start, whenever rules change and every `interval` seconds.

    The read models decide if a lasting alert applies: a low balance, inactivity or a velocity spike. A mark records
    that the alert was reported. The mark is stored in the same transaction as the event, so that a restart neither
    loses nor repeats the alert. Balances are checked after each change. The velocity of a changed wallet is checked at
    the next tick. All wallets are checked every minute, or every `interval` if that is longer. Large transactions, and
    the e-mails of all alerts, come from the feed: one transaction stores them and moves the watcher's position in it.
    """

    name = "alerts"

    def __init__(
        self,
        db: Database,
        projector: Projector,
        settings: Settings,
        *,
        chain_clock: Callable[[], int],
        clock: Callable[[], int] = now_ms,
    ) -> None:
        """Queue e-mails if `settings` has a mail server.

        Both clocks give Unix milliseconds: `chain_clock` for transactions and alerts, `clock` for rounds and e-mails.
        """
        super().__init__(settings.alert_interval)
        self._db = db
        self._projector = projector
        self._mails = bool(settings.smtp_host)
        self._hourly_mails = settings.alert_emails_per_hour
        self._chain_clock = chain_clock
        self._clock = clock
        self._moved: set[str] = set()
        """Vaults that changed since the last check of the velocity."""
        self._watches_balances: bool | None = None
        self._check_all_at = 0
        self.service: Service | None = None
        """The service that freezes wallets, set before the start."""

    async def start(self) -> None:
        """Start. The watcher continues where an earlier process ended; without one, at the end of the feed."""
        await self._db.write(begin)
        self._projector.subscribe(self._changed)
        await super().start()

    async def stop(self) -> None:
        """Stop."""
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
            # Set before the check, because rules that change during the check request another one.
            self._check_all_at = now + _MINUTE
            try:
                await self._check_all()
            except BaseException:
                self._check_all_at = 0
                raise
        elif self._moved:
            async with self._projector.paused():
                moved, self._moved = self._moved, set()
                await self._check(VELOCITY_SPIKE, moved)
        while await self._db.look_up(unread):
            await asyncio.gather(*(self._freeze(*one) for one in set(await self._db.write(self._read_feed))))

    async def _check_all(self) -> None:
        async with self._projector.paused():
            self._moved.clear()
            self._watches_balances = None
            for kind in (BALANCE_LOW, INACTIVITY, VELOCITY_SPIKE):
                await self._check(kind)

    async def _changed(self, vaults: set[str]) -> None:
        self._moved |= vaults
        try:
            if self._watches_balances is None:
                self._watches_balances = await self._db.read(lambda conn: watches(conn, [BALANCE_LOW]))
            if self._watches_balances:
                await self._check(BALANCE_LOW, vaults)
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
            if kind != VELOCITY_SPIKE:
                return changed_alerts(conn, kind, now, vaults=vaults, limit=_BATCH)
            if vaults is not None and not watches(conn, [VELOCITY_SPIKE]):
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

        in_thread = vaults is None or kind == VELOCITY_SPIKE
        while found := await self._db.read(find, in_thread=in_thread):
            for first in range(0, len(found), _BATCH):
                await self._db.write(lambda conn: store(conn, found[first : first + _BATCH]))  # noqa: B023 - awaited immediately

    async def _freeze(self, org: str, wallet_id: str) -> None:
        """Freeze a wallet like an operator. The service continues on its own if the outcome is unknown."""
        assert self.service is not None
        try:
            await freezing.freeze(self.service, system(org, _FREEZER.id), Claim(self._db), wallet_id)
        except ApiError as error:
            _log.warning("alert_freeze_unfinished", wallet_id=wallet_id, error=error.code)

    def _read_feed(self, conn: Connection) -> list[tuple[str, str]]:
        """Read the next events of the feed, report large transactions among them, and queue e-mails.

        Return the wallets to freeze, with their organisations. The stored brakes freeze them even after a crash.
        """
        now, frozen = self._clock(), list[tuple[str, str]]()
        types = set(_SPENDING if watches(conn, [LARGE_TRANSACTION]) else ())
        if self._mails:
            types |= set(EVENT_OF.values())
        # A rebuild of the read models also adds old events that the feed had already deleted.
        events = [one for one in read_feed(conn, types, _BATCH) if is_recent(one, self._chain_clock())]
        rules = rules_of(conn, {scope for one in events for scope in (one.org, one.wallet_id) if scope is not None})
        for one in events:
            if one.type in _SPENDING:
                rule, _ = effective(rules, LARGE_TRANSACTION, one.org, one.wallet_id)
                limit = None if rule is None else rule.threshold
                if rule is not None and limit is not None and parse_usdc(one.payload["amount"]) > limit:
                    append_large(conn, one, limit, freeze=rule.freezes)
                    if rule.freezes and one.wallet_id is not None:
                        put_brake(conn, BrakeRow(one.wallet_id, "freeze", one.org, _FREEZER, now, self._db.node))
                        frozen.append((one.org, one.wallet_id))
        if self._mails:
            reported = [one for one in events if one.type not in _SPENDING]
            queue(conn, compose(conn, reported, rules, now, hourly=self._hourly_mails))
        return frozen


def _spikes(conn: Connection, wallet: AlertTransition, now: int) -> bool:
    return wallet.threshold > 0 and exceeds_velocity(conn, wallet.wallet_id, wallet.threshold, now)
