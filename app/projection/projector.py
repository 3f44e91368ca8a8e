"""Applies the rows that the indexer stored to the read models and the feed."""

import asyncio
from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial

import structlog
from sqlalchemy import Connection, delete, insert, select, true, update

from app.core.background import Background
from app.core.errors import is_storage_error
from app.core.transaction_types import ROW_TYPES
from app.core.waiters import Waiters
from app.projection.batch import Batch, vaults_of
from app.projection.handlers import HANDLERS
from app.store.attempts import SHARED_COLUMNS
from app.store.columns import upsert, upsert_all
from app.store.database import Database, Step
from app.store.escrows import reset_escrows
from app.store.read_tables import (
    approvals,
    feed,
    policies,
    policy_versions,
    projection,
    recipients,
    reserves,
    transactions,
    wallets,
)
from app.store.state_tables import attempts, organisations
from indexer import StoredEvent

logger = structlog.get_logger(__name__)

Changes = Callable[[int, int], Awaitable[Sequence[StoredEvent]]]
"""`changes(after, limit)` returns at most `limit` rows with an id above `after`, in order."""

Watcher = Callable[[set[str]], Awaitable[None]]
"""Receives the addresses of the changed vaults once all stored rows are applied; must not raise."""

_BATCH = 200
_REMEMBERED = 20_000
"""How many applied signatures are remembered."""
_REVERTED = "TransactionReverted"
_CURSOR = "org:"
_REVERTS = "reverts"
"""Name of the position of the last row that reported a rolled back transaction and was applied."""
_RETRY_PAUSE = 0.5
_READ_MODELS = (approvals, policies, recipients, reserves, transactions, wallets)
_CURSORS = select(organisations.c.org, projection.c.position).outerjoin(
    projection, projection.c.name == _CURSOR + organisations.c.org
)


class Projector(Background):
    """Applies rows in the order in which they were stored, each batch and its cursor in one database transaction.

    Each organisation of this service has its own cursor, so that a new one also gets its past; rows of others are
    skipped. A row may be applied twice, or after a later one of the same vault.

    Other processes may apply rows to the same database; waiters and watchers in this one are notified of those too.
    """

    name = "projector"

    def __init__(self, db: Database, changes: Changes) -> None:
        self._db = db
        self._changes = changes
        self._stored = asyncio.Event()
        self._applying = asyncio.Lock()
        self._notified: int | None = None
        self._changed: set[str] = set()
        self._applied: OrderedDict[str, None] = OrderedDict()
        self._waiting: Waiters[bool] = Waiters()
        self._watchers: list[Watcher] = []

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

    async def wait(self, signature: str, timeout: float) -> bool:  # noqa: ASYNC109 - false is a result
        """Wait until a transaction's events are in the read models; false if they are not in time."""
        if signature in self._applied:
            return True
        return await self._waiting.wait(signature, timeout) is True

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
                await step(_reset)
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
        while cursors := await self._db.read(_cursors):
            first = min(cursors.values())
            if self._notified is None:
                self._notified = first
            rows = await self._changes(min(first, self._notified), _BATCH)
            read += len(rows)
            if await self._roll_back(rows):
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

    async def _roll_back(self, rows: Sequence[StoredEvent]) -> bool:
        """Undo transactions that rows report as rolled back; returns whether there was anything to undo.

        The read models of their organisations are made anew in one database transaction, so that readers never see a
        part of them, and a crash leaves the state before.
        """
        if not any(row.name == _REVERTED for row in rows):
            return False
        last = await self._db.read(_last_revert)
        if not any(row.name == _REVERTED and row.id > last for row in rows):
            return False
        async with self._db.transaction() as step:
            await self._apply_again(step)
        return True

    async def _apply_again(self, step: Step) -> None:
        """Apply all rows within a transaction; waiters and watchers are notified after it."""
        while cursors := await step(_cursors):
            first = min(cursors.values())
            rows = await self._changes(first, _BATCH)
            if not rows:
                return
            mine = [row for row in rows if row.org is None or row.id > cursors.get(row.org, row.id)]
            whole = await step(partial(_apply, rows=mine, cursors=cursors, last=rows[-1].id))
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
            whole = await self._db.write(lambda connection: _apply(connection, mine, cursors, last))
        if whole is None:
            return None
        self._notify_waiters(rows)
        before, self._notified = self._notified, max(self._notified, last)
        new = [
            row for row in rows if row.org is None or (row.org in cursors and row.id > min(cursors[row.org], before))
        ]
        self._changed |= vaults_of(new)
        return whole

    def _notify_waiters(self, rows: Sequence[StoredEvent]) -> None:
        for row in rows:
            self._applied[row.signature] = None
            self._waiting.notify(row.signature, True)
        while len(self._applied) > _REMEMBERED:
            self._applied.popitem(last=False)


def _cursors(connection: Connection) -> dict[str, int]:
    """Return the id of the last applied row for each organisation of this service."""
    return {org: position or 0 for org, position in connection.execute(_CURSORS)}


def _apply(connection: Connection, rows: Sequence[StoredEvent], cursors: Mapping[str, int], last: int) -> bool | None:
    """Apply rows and move the cursors to `last`, or back to the start for organisations to be applied again.

    Returns whether no row has to be applied again. Does nothing and returns None if the cursors differ from these, by
    which the rows were chosen: another process has applied more or started again.
    """
    if _cursors(connection) != cursors:
        return None
    reverted = [row for row in rows if row.name == _REVERTED and _revert(connection, row)]
    batch = Batch(connection, rows)
    for row in rows:
        if row.org is not None and row.name in HANDLERS:
            HANDLERS[row.name](batch, row)
    batch.flush()
    moved = {org: 0 if org in batch.again else max(position, last) for org, position in cursors.items()}
    positions = [{"name": _CURSOR + org, "position": position} for org, position in moved.items()]
    upsert_all(connection, projection, positions, keys=["name"])
    for org in {org for row in reverted for org in row.data["orgs"]}:
        _reset(connection, org)
    return not batch.again and not reverted


def _last_revert(connection: Connection) -> int:
    """Return the id of the last row applied that reported a rolled back transaction; 0 if none was."""
    return connection.scalar(select(projection.c.position).where(projection.c.name == _REVERTS)) or 0


def _revert(connection: Connection, row: StoredEvent) -> bool:
    """Undo what a rolled back transaction led to; its attempt is pending again. False if this is already done."""
    if row.id <= _last_revert(connection):
        return False
    upsert(connection, projection, {"name": _REVERTS, "position": row.id}, keys=["name"])
    signature = row.signature
    connection.execute(delete(feed).where(feed.c.signature == signature))
    again = update(attempts).where(attempts.c.signature == signature, attempts.c.status == "confirmed")
    connection.execute(again.values(status="pending", slot=None, ended_at=None))
    return True


def _reset(connection: Connection, org: str | None = None) -> None:
    """Reduce the read models to what the service's own attempts give, and go back to the first row.

    With `org` only those of this organisation: no event of one changes the read models of another.
    """
    mine = true() if org is None else policies.c.org == org
    versions = policy_versions.c.address.in_(select(policies.c.address).where(mine))
    connection.execute(delete(policy_versions).where(true() if org is None else versions))
    for table in _READ_MODELS:
        connection.execute(delete(table).where(true() if org is None else table.c.org == org))
    reset_escrows(connection, org)
    again = projection.c.name != _REVERTS if org is None else projection.c.name == _CURSOR + org
    connection.execute(delete(projection).where(again))
    kept = select(*(attempts.c[name] for name in SHARED_COLUMNS), attempts.c.created_at).where(
        attempts.c.type.in_(ROW_TYPES),
        attempts.c.wallet_id.is_not(None),
        true() if org is None else attempts.c.org == org,
    )
    connection.execute(insert(transactions).from_select([*SHARED_COLUMNS, "timestamp"], kept))
