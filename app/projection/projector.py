"""Applies the rows stored by the indexer to the read models and the feed."""

import asyncio
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import NamedTuple, Protocol, TypeVar

import structlog
from sqlalchemy import Connection

from app.core.background import Background
from app.core.errors import is_storage_error
from app.core.recent import Recent
from app.core.waiters import Waiters
from app.database.interface import Database, Step
from app.database.signals import ROWS, signal
from app.projection.applying import apply, cursors_of, moved, restore, unapplied
from app.projection.batch import vaults_of
from app.projection.older_payments import OlderPayments
from app.projection.rollbacks import ROLLED_BACK, changed_vaults, forget, last_rollback, reset
from indexer import LastRow, StoredEvent

logger = structlog.get_logger(__name__)

Changes = Callable[[int, int], Awaitable[Sequence[StoredEvent]]]
"""`changes(after, limit)` returns at most `limit` rows with an id above `after`, in order."""

Watcher = Callable[[set[str]], Awaitable[None]]
"""Function called with the addresses of changed vaults once all stored rows are applied. It must not raise."""

_BATCH = 200
_KEPT = 10_000
"""Maximum number of rows kept in memory to recompute the vaults of transactions that were rolled back."""
_REMEMBERED = 20_000
"""Number of applied transactions that are remembered."""
_RETRY_PAUSE = 0.5
_ANY = sys.maxsize
"""Stands for an unknown id of the newest row."""
T = TypeVar("T")


class ColocatedEvents(Protocol):
    """The indexer's rows in the database of the read models, read within a transaction."""

    def changes_in(self, connection: Connection, after: int, limit: int) -> Sequence[StoredEvent]:
        """Return the rows that `Changes` would return, read in the connection's database transaction."""

    def last_rows(self, connection: Connection, message_hashes: Sequence[str]) -> Sequence[LastRow]:
        """Return each organisation's last row in the stored transactions with one of these messages."""


class _Applied(NamedTuple):
    """An applied transaction: its events are in the read models."""

    signature: str
    slot: int


class Projector(Background):
    """Applies rows in the order in which they were stored, each batch and its cursor in one database transaction.

    Each organisation of this service has its own cursor, so that a new organisation also gets its past rows. Rows of
    other organisations are skipped. A row may be applied twice, or after a later row of the same vault.

    Other processes may apply rows to the same database. This process also notifies its waiters and watchers of them.
    """

    name = "projector"

    def __init__(
        self, db: Database, changes: Changes, beside: ColocatedEvents | None = None, *, payer: str = ""
    ) -> None:
        """Take rows from `changes`. `look` and `store` read rows from `beside`. `payer` is the service's fee payer."""
        self._db = db
        self._older_payments = OlderPayments(db)
        self._changes = changes
        self._beside = beside
        self._payer = payer
        self._stored = asyncio.Event()
        self._newest = 0
        self._applying = asyncio.Lock()
        self._notified: int | None = None
        # The cursors as this process last moved them. Another process may have moved them since.
        self._moved: dict[str, int] | None = None
        self._changed: set[str] = set()
        # Keyed by message hash.
        self._applied: Recent[_Applied] = Recent(_REMEMBERED)
        self._waiting: Waiters[int] = Waiters()
        self._watchers: list[Watcher] = []
        #: Returns True if confirmed transactions are soon applied without a request: by this process, or by another one
        #: that announces them.
        self.prompt: Callable[[], bool] = lambda: False
        #: Called when a request begins to wait for rows that this process does not apply itself.
        self.wanted: Callable[[str], None] = lambda _message: None

    @property
    def applies(self) -> bool:
        """True if this process itself applies stored rows to the read models."""
        return self._task is not None

    def subscribe(self, watcher: Watcher) -> None:
        """Call `watcher` with the changed vaults once all rows are applied. Rows applied again do not count."""
        self._watchers.append(watcher)

    def unsubscribe(self, watcher: Watcher) -> None:
        """Stop calling `watcher`, which must be subscribed."""
        self._watchers.remove(watcher)

    @asynccontextmanager
    async def paused(self) -> AsyncIterator[None]:
        """Apply all stored rows, then let this process apply no further ones until the context ends."""
        async with self._applying:
            await self._catch_up()
            yield

    def notify(self, newest: int = _ANY) -> None:
        """Announce that rows were stored, up to the id `newest`. Call this from the event loop."""
        self._newest = max(self._newest, newest)
        self._stored.set()

    async def start(self) -> None:
        """Start applying rows."""
        self.notify()
        await super().start()

    async def wait(self, message_hash: str, timeout: float) -> int | None:  # noqa: ASYNC109 - None is a result
        """Wait until a transaction's events are in the read models. Return its slot, or None after the timeout."""
        if not self.applies:
            # Another node may have applied them already, or may have rolled back rows applied by this node.
            asyncio.get_running_loop().call_soon(self.wanted, message_hash)
        elif (applied := self._applied.get(message_hash)) is not None:
            return applied.slot
        return await self._waiting.wait(message_hash, timeout)

    def applied_remotely(self, message_hash: str, slot: int) -> bool:
        """Notify the waiters of a transaction that another process applied. Return True if there were any."""
        waited = message_hash in self._waiting
        self._waiting.notify(message_hash, slot)
        return waited

    async def look(self) -> set[str]:
        """Notify waiters of rows that other processes have applied. Return the message hashes still awaited."""
        names = list(self._waiting)
        if names and self._beside is not None:
            rows, cursors = await self._db.look_up(partial(_applied_of, names=names, beside=self._beside))
            ours = [row for row in rows if row.org in cursors]
            missing = {row.message_hash for row in ours if row.id > cursors[row.org]}
            for row in ours:
                if row.message_hash not in missing:
                    self._waiting.notify(row.message_hash, row.slot)
        return set(self._waiting)

    async def store(self, work: Callable[[Connection], T]) -> T:
        """Run work that stores rows in the database of the read models, and apply the rows in the same transaction.

        This saves a second transaction, and waiting requests get their rows sooner. The rows are applied later if this
        process does not apply rows, is applying others at the moment, or must first read earlier rows.
        """
        beside, cursors, notified = self._beside, self._moved, self._notified
        if beside is None or cursors is None or notified is None or not self.applies or self._applying.locked():
            return await self._db.write(work, repeatable=True)

        def store_and_apply(connection: Connection) -> tuple[T, Sequence[StoredEvent], bool | None]:
            result = work(connection)
            rows = beside.changes_in(connection, min(notified, *cursors.values()), _BATCH)
            if len(rows) == _BATCH or any(row.name == ROLLED_BACK for row in rows):
                return result, rows, None
            return result, rows, self._apply(connection, rows, cursors) if rows else True

        async with self._applying:
            # If this fails, `_moved` stays None, so the next call of `store` stores its rows without applying them.
            self._moved = None
            result, rows, whole = await self._db.write(store_and_apply, repeatable=True)
            if whole:
                self._moved = moved(cursors, rows[-1].id) if rows else cursors
            if rows and whole is not None:
                self._applied_here(rows, cursors)
            if rows:
                self.notify(rows[-1].id)
            return result

    async def catch_up(self) -> int:
        """Apply all stored rows. Return the number of rows read."""
        async with self._applying:
            return await self._catch_up()

    async def rebuild(self) -> None:
        """Rebuild the read models from the indexer's rows and the service's own attempts.

        Readers see the previous state until the rebuild is complete. The feed keeps its entries and gains missing ones.
        """
        async with self._applying:
            async with self._db.transaction() as step:
                await step(reset)
                await self._apply_again(step)
            await self._catch_up()

    async def _run(self) -> None:
        while True:
            await self._stored.wait()
            self._stored.clear()
            try:
                async with self._applying:
                    newest, self._newest = self._newest, 0
                    if self._moved is None or min(self._moved.values()) < newest:
                        await self._catch_up()
                    else:
                        await self._tell_watchers()  # about the rows that `store` applied
                    if not await self._older_payments.count_day():
                        self._stored.set()
            except Exception as error:
                if is_storage_error(error):
                    logger.warning("projection_waits_for_storage", error=str(error))
                else:
                    logger.exception("projection_failed")
                await asyncio.sleep(_RETRY_PAUSE)
                self.notify()

    async def _catch_up(self) -> int:
        read = 0
        while cursors := self._moved or await self._db.look_up(cursors_of):
            remembered, self._moved = self._moved is not None, None
            first = min(cursors.values())
            self._notified = first if self._notified is None else self._notified
            rows = await self._changes(min(first, self._notified), _BATCH)
            if remembered and (not rows or any(row.name == ROLLED_BACK for row in rows)):
                # Read the cursors again. They may be outdated, and `apply`, which checks them, will not run.
                continue
            read += len(rows)
            self._forget({row.signature for row in rows if row.name == ROLLED_BACK})
            if await self._roll_back(rows, cursors):
                continue
            if not rows:
                self._moved = cursors
            whole = not rows or await self._take_in(rows, cursors)
            if whole is None:
                continue
            if len(rows) < _BATCH:
                await self._tell_watchers()
            if whole and len(rows) < _BATCH:
                break
        return read

    async def _tell_watchers(self) -> None:
        if self._changed:
            changed, self._changed = self._changed, set()
            for watcher in self._watchers:
                await watcher(changed)

    async def _roll_back(self, rows: Sequence[StoredEvent], cursors: Mapping[str, int]) -> bool:
        """Undo transactions that rows report as rolled back. Return True if there was anything to undo.

        This is one database transaction, so readers never see a part of it, and a crash leaves the previous state. If
        possible, only the changed vaults are recomputed, otherwise the whole organisations.
        """
        reports = [row for row in rows if row.name == ROLLED_BACK]
        last = await self._db.read(last_rollback) if reports else 0
        reports = [row for row in reports if row.id > last]
        if not reports:
            return False
        vaults = changed_vaults(reports)
        # Read the rows before the transaction takes the database's writer, because payments wait for the writer.
        kept = None if vaults is None else await self._rows_of(vaults, cursors)
        async with self._db.transaction() as step:
            if vaults is None or kept is None or await step(cursors_of) != cursors:
                await self._apply_again(step)
                return True
            await step(partial(forget, reports=reports, vaults=vaults))
            parts = [kept[start : start + _BATCH] for start in range(0, len(kept), _BATCH)]
            # Apply the rows a second time if events were stored before the event that created their object.
            for _ in range(2):
                if not any([await step(partial(restore, rows=part, vaults=vaults)) for part in parts]):
                    break
        return True

    async def _rows_of(self, vaults: Collection[str], cursors: Mapping[str, int]) -> list[StoredEvent] | None:
        """Return the applied rows about vaults, or None if there are too many to keep in memory."""
        found: list[StoredEvent] = []
        if not vaults:
            return found
        after = 0
        while rows := await self._changes(after, _BATCH):
            after = rows[-1].id
            applied = [row for row in rows if row.org is not None and row.id <= cursors.get(row.org, 0)]
            found += [row for row in applied if not vaults_of([row]).isdisjoint(vaults)]
            if len(found) > _KEPT:
                return None
            await asyncio.sleep(0)
        return found

    async def _apply_again(self, step: Step) -> None:
        """Apply all rows within a transaction. Waiters and watchers are notified afterwards."""
        while cursors := await step(cursors_of):
            rows = await self._changes(min(cursors.values()), _BATCH)
            if not rows:
                return
            whole = await step(partial(apply, rows=unapplied(rows, cursors), cursors=cursors, last=rows[-1].id))
            await step(partial(signal, what=ROWS))
            if whole and len(rows) < _BATCH:
                return

    async def _take_in(self, rows: Sequence[StoredEvent], cursors: Mapping[str, int]) -> bool | None:
        """Apply rows and notify waiters. Return the result of `apply`."""
        # If there is nothing to apply, another process has applied all rows.
        whole: bool | None = True
        if unapplied(rows, cursors) or rows[-1].id > min(cursors.values()):
            whole = await self._db.write(partial(self._apply, rows=rows, cursors=cursors), repeatable=True)
            if whole:
                self._moved = moved(cursors, rows[-1].id)
        if whole is not None:
            self._applied_here(rows, cursors)
        return whole

    def _apply(self, connection: Connection, rows: Sequence[StoredEvent], cursors: Mapping[str, int]) -> bool | None:
        """Call `apply` with the rows that are not applied yet, and announce these to the other nodes."""
        mine = unapplied(rows, cursors)
        whole = apply(connection, mine, cursors, rows[-1].id, fee_payer=self._payer)
        if whole is not None:
            signal(connection, ROWS, [f"{row.message_hash}:{row.slot}" for row in mine])
        return whole

    def _applied_here(self, rows: Sequence[StoredEvent], cursors: Mapping[str, int]) -> None:
        """Notify waiters of rows that were applied, and collect the changed vaults for the watchers."""
        assert self._notified is not None
        self._notify_waiters(rows)
        before, self._notified = self._notified, max(self._notified, rows[-1].id)
        new = [
            row for row in rows if row.org is None or (row.org in cursors and row.id > min(cursors[row.org], before))
        ]
        self._changed |= vaults_of(new)

    def _forget(self, rolled_back: Collection[str]) -> None:
        """Forget that transactions with these signatures were applied."""
        for name, applied in self._applied.items() if rolled_back else ():
            if applied.signature in rolled_back:
                self._applied.forget(name)

    def _notify_waiters(self, rows: Sequence[StoredEvent]) -> None:
        for row in rows:
            self._applied.put(row.message_hash, _Applied(row.signature, row.slot))
            self._waiting.notify(row.message_hash, row.slot)


def _applied_of(
    connection: Connection, names: Sequence[str], beside: ColocatedEvents
) -> tuple[Sequence[LastRow], dict[str, int]]:
    # Read the rows first, so that the cursors are not older than the rows.
    return beside.last_rows(connection, names), cursors_of(connection)
