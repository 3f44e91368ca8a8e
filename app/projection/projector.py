"""Applies the rows that the indexer stored to the read models and the feed."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import NamedTuple

import structlog
from sqlalchemy import Connection, select

from app.core.background import Background
from app.core.errors import is_storage_error
from app.core.recent import Recent
from app.core.waiters import Waiters
from app.projection.batch import Batch, vaults_of
from app.projection.handlers import HANDLERS
from app.projection.rollbacks import (
    CURSOR,
    ROLLED_BACK,
    changed_orgs,
    changed_vaults,
    forget,
    last_rollback,
    reset,
    undo,
)
from app.store.columns import upsert_later
from app.store.database import Database, Step
from app.store.prepared import rows as rows_of
from app.store.read_tables import projection
from app.store.signals import ROWS, signal
from app.store.state_tables import organisations
from indexer import LastRow, StoredEvent

logger = structlog.get_logger(__name__)

Changes = Callable[[int, int], Awaitable[Sequence[StoredEvent]]]
"""`changes(after, limit)` returns at most `limit` rows with an id above `after`, in order."""

LastRows = Callable[[Connection, Sequence[str]], Sequence[LastRow]]
"""Returns the last row of each organisation in the transactions with these message hashes, if they are stored."""

Watcher = Callable[[set[str]], Awaitable[None]]
"""Receives the addresses of the changed vaults once all stored rows are applied; must not raise."""

_BATCH = 200
_KEPT = 10_000
"""The most rows about the vaults of a rolled back transaction that are kept in memory to make them anew."""
_REMEMBERED = 20_000
"""How many applied signatures are remembered."""
_RETRY_PAUSE = 0.5
_CURSORS = select(organisations.c.org, projection.c.position).outerjoin(
    projection, projection.c.name == CURSOR + organisations.c.org
)


class _Applied(NamedTuple):
    """A transaction whose events are in the read models."""

    signature: str
    slot: int


class Projector(Background):
    """Applies rows in the order in which they were stored, each batch and its cursor in one database transaction.

    Each organisation of this service has its own cursor, so that a new one also gets its past; rows of others are
    skipped. A row may be applied twice, or after a later one of the same vault.

    Other processes may apply rows to the same database; waiters and watchers in this one are notified of those too.
    """

    name = "projector"

    def __init__(self, db: Database, changes: Changes, last_rows: LastRows | None = None) -> None:
        """Take rows from `changes`; `last_rows` is for `look`, and reads rows that are in the same database."""
        self._db = db
        self._changes = changes
        self._last_rows = last_rows
        self._stored = asyncio.Event()
        self._applying = asyncio.Lock()
        self._notified: int | None = None
        # Where this process has moved the cursors; another one may have moved them since.
        self._moved: dict[str, int] | None = None
        self._changed: set[str] = set()
        # By the message hash.
        self._applied: Recent[_Applied] = Recent(_REMEMBERED)
        self._waiting: Waiters[int] = Waiters()
        self._watchers: list[Watcher] = []
        #: Whether what the chain confirms is soon applied here, or by a process that says so, without being asked for.
        self.prompt: Callable[[], bool] = lambda: False
        #: Called when somebody begins to wait for rows that this process does not apply by itself.
        self.wanted: Callable[[str], None] = lambda _message: None

    @property
    def applies(self) -> bool:
        """Whether this process applies rows by itself."""
        return self._task is not None

    def subscribe(self, watcher: Watcher) -> None:
        """Call `watcher` after every change, before the next one is applied; a rebuild is no change."""
        self._watchers.append(watcher)

    def unsubscribe(self, watcher: Watcher) -> None:
        """Stop calling `watcher`."""
        self._watchers.remove(watcher)

    @asynccontextmanager
    async def at_rest(self) -> AsyncIterator[None]:
        """Apply all stored rows, and no further ones until the context ends."""
        async with self._applying:
            await self._catch_up()
            yield

    def notify(self) -> None:
        """Announce that rows were stored; call this from the event loop."""
        self._stored.set()

    async def start(self) -> None:
        """Start applying rows."""
        self._stored.set()
        await super().start()

    async def wait(self, message_hash: str, timeout: float) -> int | None:  # noqa: ASYNC109 - None is a result
        """Wait until a transaction's events are in the read models, and return its slot; None if not in time."""
        if not self.applies:
            # Another node may have applied them already. What this one did may have been rolled back by another.
            asyncio.get_running_loop().call_soon(self.wanted, message_hash)
        elif (applied := self._applied.get(message_hash)) is not None:
            return applied.slot
        return await self._waiting.wait(message_hash, timeout)

    def arrived(self, message_hash: str, slot: int) -> bool:
        """Notify those who wait for a transaction that another process applied; returns whether there are any."""
        waited = message_hash in self._waiting
        self._waiting.notify(message_hash, slot)
        return waited

    async def look(self) -> set[str]:
        """Notify waiters of what other processes have applied; returns the message hashes that are still waited for."""
        names = list(self._waiting)
        if names and self._last_rows is not None:
            rows, cursors = await self._db.look_up(partial(_applied_of, names=names, last_rows=self._last_rows))
            ours = [row for row in rows if row.org in cursors]
            missing = {row.message_hash for row in ours if row.id > cursors[row.org]}
            for row in ours:
                if row.message_hash not in missing:
                    self._waiting.notify(row.message_hash, row.slot)
        return set(self._waiting)

    async def catch_up(self) -> int:
        """Apply all stored rows; returns the number of rows read."""
        async with self._applying:
            return await self._catch_up()

    async def rebuild(self) -> None:
        """Rebuild the read models from the chain's rows and the service's own attempts.

        Readers see the state before until it is complete. The feed keeps its entries and gains missing ones.
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
                await self.catch_up()
            except asyncio.CancelledError:
                raise
            except Exception as error:
                if is_storage_error(error):
                    logger.warning("projection_waits_for_storage", error=str(error))
                else:
                    logger.exception("projection_failed")
                await asyncio.sleep(_RETRY_PAUSE)
                self._stored.set()

    async def _catch_up(self) -> int:
        read = 0
        while cursors := self._moved or await self._db.look_up(_cursors):
            remembered, self._moved = self._moved is not None, None
            first = min(cursors.values())
            if self._notified is None:
                self._notified = first
            rows = await self._changes(min(first, self._notified), _BATCH)
            if remembered and (not rows or any(row.name == ROLLED_BACK for row in rows)):
                # `_apply`, which compares the cursors with these, would not be asked.
                continue
            read += len(rows)
            self._forget({row.signature for row in rows if row.name == ROLLED_BACK})
            if await self._roll_back(rows, cursors):
                continue
            whole = not rows or await self._take_in(rows, cursors)
            if whole is None:
                continue
            if self._changed and len(rows) < _BATCH:
                changed, self._changed = self._changed, set()
                for watcher in self._watchers:
                    await watcher(changed)
            if whole and len(rows) < _BATCH:
                break
        return read

    async def _roll_back(self, rows: Sequence[StoredEvent], cursors: Mapping[str, int]) -> bool:
        """Undo transactions that rows report as rolled back; returns whether there was anything to undo.

        That is one database transaction, so readers never see a part of it, and a crash leaves the state before. If the
        transactions changed only some vaults, only these are made anew, otherwise their organisations.
        """
        reports = [row for row in rows if row.name == ROLLED_BACK]
        last = await self._db.read(last_rollback) if reports else 0
        reports = [row for row in reports if row.id > last]
        if not reports:
            return False
        vaults = changed_vaults(reports)
        # Read before the writer is held, which payments wait for.
        kept = None if vaults is None else await self._rows_of(vaults, cursors)
        async with self._db.transaction() as step:
            if vaults is None or kept is None or await step(_cursors) != cursors:
                await self._apply_again(step)
                return True
            await step(partial(forget, reports=reports, vaults=vaults))
            parts = [kept[start : start + _BATCH] for start in range(0, len(kept), _BATCH)]
            # A second time if events were stored before the one that created what they are about.
            for _ in range(2):
                if not any([await step(partial(_restore, rows=part, vaults=vaults)) for part in parts]):
                    break
        return True

    async def _rows_of(self, vaults: Collection[str], cursors: Mapping[str, int]) -> list[StoredEvent] | None:
        """Return the applied rows about vaults; None if they are too many to keep in memory."""
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
        """Apply all rows within a transaction; waiters and watchers are notified after it."""
        while cursors := await step(_cursors):
            first = min(cursors.values())
            rows = await self._changes(first, _BATCH)
            if not rows:
                return
            mine = [row for row in rows if row.org is None or row.id > cursors.get(row.org, row.id)]
            whole = await step(partial(_apply, rows=mine, cursors=cursors, last=rows[-1].id))
            await step(partial(signal, what=ROWS))
            if whole and len(rows) < _BATCH:
                return

    async def _take_in(self, rows: Sequence[StoredEvent], cursors: Mapping[str, int]) -> bool | None:
        """Apply rows and notify waiters; returns what `_apply` does."""
        assert self._notified is not None
        mine = [row for row in rows if row.org is None or row.id > cursors.get(row.org, row.id)]
        last = rows[-1].id
        # Otherwise another process has applied them all.
        whole: bool | None = True
        if mine or last > min(cursors.values()):

            def apply(connection: Connection) -> bool | None:
                whole = _apply(connection, mine, cursors, last)
                if whole is not None:
                    signal(connection, ROWS, [f"{row.message_hash}:{row.slot}" for row in mine])
                return whole

            whole = await self._db.write(apply, repeatable=True)
            if whole:
                self._moved = _moved(cursors, last)
        if whole is None:
            return None
        self._notify_waiters(rows)
        before, self._notified = self._notified, max(self._notified, last)
        new = [
            row for row in rows if row.org is None or (row.org in cursors and row.id > min(cursors[row.org], before))
        ]
        self._changed |= vaults_of(new)
        return whole

    def _forget(self, rolled_back: Collection[str]) -> None:
        """Forget that transactions with these signatures were applied."""
        for name, applied in self._applied.items() if rolled_back else ():
            if applied.signature in rolled_back:
                self._applied.forget(name)

    def _notify_waiters(self, rows: Sequence[StoredEvent]) -> None:
        for row in rows:
            self._applied.put(row.message_hash, _Applied(row.signature, row.slot))
            self._waiting.notify(row.message_hash, row.slot)


def _cursors(connection: Connection) -> dict[str, int]:
    """Return the id of the last applied row for each organisation of this service."""
    return {org: position or 0 for org, position in rows_of(connection, _CURSORS, {})[1]}


def _applied_of(
    connection: Connection, names: Sequence[str], last_rows: LastRows
) -> tuple[Sequence[LastRow], dict[str, int]]:
    # Rows first: the cursor that is read after a row has passed it.
    return last_rows(connection, names), _cursors(connection)


def _moved(cursors: Mapping[str, int], last: int) -> dict[str, int]:
    return {org: max(position, last) for org, position in cursors.items()}


def _apply(connection: Connection, rows: Sequence[StoredEvent], cursors: Mapping[str, int], last: int) -> bool | None:
    """Apply rows and move the cursors to `last`, or back to the start for organisations to be applied again.

    Returns whether no row has to be applied again. Does nothing and returns None if the cursors differ from these, by
    which the rows were chosen: another process has applied more or started again.
    """
    if _cursors(connection) != cursors:
        return None
    reverted = [row for row in rows if row.name == ROLLED_BACK and undo(connection, row)]
    batch = Batch(connection, rows)
    for row in rows:
        if row.org is not None and row.name in HANDLERS:
            HANDLERS[row.name](batch, row)
    batch.flush()
    moved = _moved(cursors, last) | dict.fromkeys(batch.again, 0)
    positions = [{"name": CURSOR + org, "position": position} for org, position in moved.items()]
    upsert_later(connection, projection, positions, keys=["name"])
    for org in changed_orgs(reverted):
        reset(connection, org)
    return not batch.again and not reverted


def _restore(connection: Connection, rows: Sequence[StoredEvent], vaults: Collection[str]) -> bool:
    """Apply rows again, as far as they change these vaults; returns whether that must be done once more."""
    batch = Batch(connection, rows, only=vaults)
    for row in rows:
        if row.name in HANDLERS:
            HANDLERS[row.name](batch, row)
    batch.flush()
    return bool(batch.again)
