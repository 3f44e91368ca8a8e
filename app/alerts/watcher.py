"""Notices when an alert begins to hold, and adds its event to the feed."""

from collections.abc import Callable, Collection

import structlog
from sqlalchemy import Connection

from app.alerts.messages import Compose
from app.core.background import Periodic
from app.core.identifiers import EVENT_PREFIX, derived_id, random_id
from app.core.money import format_usdc, parse_usdc
from app.core.timestamps import iso_ms, now_ms
from app.projection.projector import Projector
from app.store.alert_kinds import BALANCE_LOW, EVENT_OF, INACTIVITY, LARGE_TRANSACTION, VELOCITY_SPIKE, AlertType
from app.store.alert_mails import begin, queue, read_feed, unread
from app.store.alerts import (
    AlertRule,
    Watched,
    busy_wallets,
    exceeds_velocity,
    mark,
    rules_of,
    turns,
    unmark,
    velocity,
    watches,
)
from app.store.database import Database
from app.store.deliveries import is_recent
from app.store.feed import FeedEvent, append_event

_log = structlog.get_logger(__name__)

_BATCH = 200
_MINUTE = 60 * 1000
_SPENDING = ("transaction.completed", "escrow.created")
"""Events of payments and escrows, which may be large ones."""


class Watcher(Periodic):
    """Looks at the start, whenever rules change and every `interval` seconds.

    Whether an alert holds follows from the read models; that it was told is a mark, made with the event in one
    transaction. So a restart neither loses nor doubles one. Balances are judged after every change of them, the
    velocity of the wallets that paid at the next look, and all wallets every minute. Large transactions, and the
    e-mails of all alerts, follow from the feed, by a position that moves in the transaction that adds them.
    """

    name = "alerts"

    def __init__(
        self,
        db: Database,
        projector: Projector,
        *,
        interval: float,
        compose: Compose | None = None,
        clock: Callable[[], int] = now_ms,
    ) -> None:
        """`compose` makes the e-mails, without it there are none; `clock` gives Unix milliseconds."""
        super().__init__(interval)
        self._db = db
        self._projector = projector
        self._compose = compose
        self._clock = clock
        self._moved: set[str] = set()
        self._watches_balances: bool | None = None
        self._look_at_all_at = 0

    async def start(self) -> None:
        """Begin, with everything that changed since an earlier process ended."""
        await self._db.write(begin)
        self._projector.subscribe(self._changed)
        await super().start()

    async def stop(self) -> None:
        """End."""
        if self._task is not None:
            self._projector.unsubscribe(self._changed)
        await super().stop()

    def rules_changed(self) -> None:
        """Look at all wallets now; call it from the event loop."""
        self._look_at_all_at = 0
        self._watches_balances = None
        self.wake()

    async def tick(self) -> None:
        """Tell everything that is to be told at this moment."""
        now = self._clock()
        if now >= self._look_at_all_at:
            # Set before: rules that change meanwhile ask for another look.
            self._look_at_all_at = now + _MINUTE
            try:
                await self._look_at_all()
            except BaseException:
                self._look_at_all_at = 0
                raise
        elif self._moved:
            async with self._projector.at_rest():
                moved, self._moved = self._moved, set()
                await self._judge_velocity(moved)
        while await self._db.read(unread):
            await self._db.write(self._read_feed)

    async def _look_at_all(self) -> None:
        async with self._projector.at_rest():
            self._moved.clear()
            self._watches_balances = None
            await self._turn(BALANCE_LOW)
            await self._turn(INACTIVITY)
            await self._judge_velocity(None)

    async def _changed(self, vaults: set[str]) -> None:
        self._moved |= vaults
        try:
            if self._watches_balances is None:
                self._watches_balances = await self._db.read(lambda conn: watches(conn, [BALANCE_LOW]))
            if self._watches_balances:
                await self._turn(BALANCE_LOW, vaults)
        except Exception:  # noqa: BLE001 - the projection goes on; the next look at all wallets makes up for it
            _log.exception("alerts_failed")

    async def _turn(self, kind: AlertType, vaults: Collection[str] | None = None) -> None:
        """Tell of an alert where it began to hold, and forget that it was told where it ended."""
        now = self._clock()

        def find(conn: Connection) -> list[Watched]:
            return turns(conn, kind, now, vaults=vaults, limit=_BATCH)

        def tell(conn: Connection) -> int:
            found = find(conn)
            for one in found:
                _turn_over(conn, kind, one, now)
            return len(found)

        while await self._db.read(find, in_thread=True) if vaults is None else await self._db.read(find):
            await self._db.write(tell)

    async def _judge_velocity(self, vaults: Collection[str] | None) -> None:
        now = self._clock()

        def find(conn: Connection) -> list[Watched]:
            if not watches(conn, [VELOCITY_SPIKE]) and vaults is not None:
                return []
            return [one for one in busy_wallets(conn, now, vaults=vaults) if _spikes(conn, one, now) != one.marked]

        def tell(conn: Connection, found: Collection[Watched]) -> None:
            for one in found:
                _turn_over(conn, VELOCITY_SPIKE, one, now)

        found = await self._db.read(find, in_thread=True)
        for first in range(0, len(found), _BATCH):
            await self._db.write(lambda conn: tell(conn, found[first : first + _BATCH]))  # noqa: B023 - awaited at once

    def _read_feed(self, conn: Connection) -> None:
        """Look at the next events of the feed."""
        now = self._clock()
        types = set(_SPENDING if watches(conn, [LARGE_TRANSACTION]) else ())
        if self._compose is not None:
            types |= set(EVENT_OF.values())
        # Rebuilding the read models adds old events, which the feed had deleted, to it again: those are not recent.
        events = [one for one in read_feed(conn, types, _BATCH) if is_recent(one, now)]
        rules = rules_of(conn, {scope for one in events for scope in (one.org, one.wallet_id) if scope is not None})
        for one in events:
            if one.type in _SPENDING:
                _tell_if_large(conn, one, rules)
        if self._compose is not None:
            told = [one for one in events if one.type not in _SPENDING]
            queue(conn, self._compose(conn, told, rules, now))


def _spikes(conn: Connection, wallet: Watched, now: int) -> bool:
    return wallet.threshold > 0 and exceeds_velocity(conn, wallet.wallet_id, wallet.threshold, now)


def _turn_over(conn: Connection, kind: AlertType, wallet: Watched, now: int) -> None:
    """Tell of the alert and mark it; or, where it is marked, remove the mark."""
    if wallet.marked:
        unmark(conn, wallet.wallet_id, kind)
        return
    event_id = random_id(EVENT_PREFIX)
    mark(conn, wallet.wallet_id, kind, event_id, now)
    threshold: str | int = wallet.threshold
    fields: dict[str, str | int | None]
    if kind == BALANCE_LOW:
        balance, threshold = format_usdc(wallet.balance), format_usdc(wallet.threshold)
        fields, summary = {"current_balance": balance}, f"{balance} USDC left, below {threshold}"
    elif kind == INACTIVITY:
        last = None if wallet.last_transaction_at is None else iso_ms(wallet.last_transaction_at)
        fields, summary = {"last_transaction_at": last}, f"No transaction for {threshold} hours"
    else:
        count = velocity(conn, wallet.wallet_id, now)
        fields, summary = {"transactions": count}, f"{count} transactions within an hour, above {threshold}"
    append_event(
        conn,
        event_id=event_id,
        org=wallet.org,
        type=EVENT_OF[kind],
        timestamp=now,
        wallet_id=wallet.wallet_id,
        summary=summary,
        payload={"wallet_id": wallet.wallet_id, **fields, "threshold": threshold, "timestamp": iso_ms(now)},
    )


def _tell_if_large(conn: Connection, event: FeedEvent, rules: dict[tuple[str, AlertType], AlertRule]) -> None:
    rule = rules.get((event.wallet_id or "", LARGE_TRANSACTION)) or rules.get((event.org, LARGE_TRANSACTION))
    shown = event.payload
    if rule is None or rule.threshold is None or parse_usdc(shown["amount"]) <= rule.threshold:
        return
    kind, threshold = EVENT_OF[LARGE_TRANSACTION], format_usdc(rule.threshold)
    same = {name: shown[name] for name in ("tx_id", "tx_signature", "amount", "on_chain_slot", "timestamp")}
    append_event(
        conn,
        # What a reorganisation of the chain took back, it takes back with this signature; brought again, it is this.
        event_id=derived_id(EVENT_PREFIX, event.event_id, kind),
        signature=event.signature,
        org=event.org,
        type=kind,
        timestamp=event.timestamp,
        wallet_id=event.wallet_id,
        summary=f"{shown['amount']} USDC in one transaction, above {threshold}",
        payload={
            "wallet_id": event.wallet_id,
            **same,
            "recipient": shown.get("recipient", shown.get("to_wallet")),
            "threshold": threshold,
        },
    )
