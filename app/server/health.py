"""Readiness of a node: the chain answers, the database and the disk have room, and its indexer keeps up."""

import asyncio
import contextlib
import math
import shutil
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

import structlog

from app.chain.errors import ChainUnavailable, RpcError
from app.core.settings import ROLES
from app.core.timestamps import now_ms
from app.database import leases
from app.database.interface import WRITE_ERRORS
from app.organisations.roles import LostRole, lost_roles
from app.reconciliation.index_watch import lasting_gaps
from app.store.room import UndoError, fill, spill
from app.store.values import put_value
from app.submission.context import Service
from app.submission.database_guard import DatabaseGuard, State
from indexer.records import TransactionHole

T = TypeVar("T")
Other = TypeVar("Other")

_log = structlog.get_logger(__name__)

#: Number of the program's newest transactions that are compared with the indexer's.
_SIGNATURES = 100
_SLOT_SECONDS = 0.4
#: Name of the value that is written to test that the database accepts writes.
_VALUE = "health"


@dataclass(frozen=True, slots=True)
class HealthReport:
    """The failing parts, and the indexer's lag in slots.

    The lag is NaN if the chain does not answer, and infinite if the stored events cannot be read. Otherwise it is the
    age in slots of the oldest confirmed transaction, among the program's newest, that the indexer has not stored, or 0.
    `holes` are pairs of slots between which no node has served the program's history, so the read models may be
    incomplete. `unreadable` are the unreadable transactions, newest first. `gaps` are the vaults and organisations of
    this service with a missing event. `guard` is the state of the database guard after a restore or lost commits.
    `lost` are the roles that the chain gave to another key. A lost role does not count as a failing part, because
    agents can still pay, and because a freeze must still reach the service to stop payments. `missing_roles` are the
    roles with jobs that no node runs. `free` is the number of free bytes on the disk of the data folder. `backed_up` is
    the Unix time of the last backup of a data folder or, without one, of its first start, and NaN with PostgreSQL.
    """

    failing: tuple[str, ...]
    lag: float
    holes: tuple[tuple[int, int], ...] = ()
    guard: State | None = None
    lost: Sequence[LostRole] = ()
    unreadable: Sequence[TransactionHole] = ()
    gaps: Sequence[str] = ()
    missing_roles: Sequence[str] = ()
    free: int = 0
    backed_up: float = math.nan


class Health:
    """Checks the chain, the database, the disk and the indexer.

    Runs one check at a time, and at most one every ``remember`` seconds.
    """

    def __init__(
        self,
        service: Service,
        *,
        remember: float = 1.0,
        patience: float = 2.0,
        timer: Callable[[], float] = time.monotonic,
    ) -> None:
        """``patience`` is the number of seconds that each part has to answer."""
        self._service = service
        self._remember = remember
        self._patience = patience
        self._timer = timer
        self._checking: asyncio.Task[HealthReport] | None = None
        self._latest: tuple[float, HealthReport] | None = None

    async def report(self) -> HealthReport:
        """Return the latest report, or wait for the running check or a new one."""
        if self._checking is None:
            if self._latest is not None and self._timer() < self._latest[0] + self._remember:
                return self._latest[1]
            self._checking = asyncio.create_task(self._check(), name="health")
        # Shielded because several callers may wait: a caller that leaves must not cancel the check.
        return await asyncio.shield(self._checking)

    async def _check(self) -> HealthReport:
        try:
            report = await self._examine()
            # A check can take longer than its report is remembered, so the time counts from its end.
            self._latest = (self._timer(), report)
        finally:
            self._checking = None
        return report

    async def _examine(self) -> HealthReport:
        settings, indexer = self._service.settings, self._service.indexer
        lag, writable, missing = await asyncio.gather(self._lag(), self._write(), self._missing_roles())
        lost = () if math.isnan(lag) else await self._within(lost_roles(self._service), otherwise=())
        free = shutil.disk_usage(settings.data_dir).free
        works = {"chain": not math.isnan(lag), "database": writable, "disk": free >= settings.disk_reserve}
        failing = [name for name, good in works.items() if not good]
        # A node can pay without running the indexer, so only the node with the indexer has to keep up.
        behind = lag > settings.max_indexer_lag or indexer.failing_for > settings.max_indexer_lag * _SLOT_SECONDS
        if behind and self._service.projector.applies:
            failing.append("indexer")
        if failing:
            _log.warning("not_ready", reasons=failing, lag=lag)
        file = settings.paths().backed_up
        report = HealthReport(
            tuple(failing),
            lag,
            guard=self._service.part(DatabaseGuard).state(),
            lost=lost,
            missing_roles=missing,
            free=free,
            backed_up=file.stat().st_mtime if settings.database_url is None and file.exists() else math.nan,
        )
        try:
            async with asyncio.timeout(self._patience):
                holes = tuple((hole.after_slot, hole.before_slot) for hole in await indexer.holes())
                unreadable = await indexer.transaction_holes()
                gaps = sorted(await lasting_gaps(self._service))
        except WRITE_ERRORS:
            return report  # the report already lists the database as failing
        return replace(report, holes=holes, unreadable=unreadable, gaps=gaps)

    async def _missing_roles(self) -> Sequence[str]:
        if not self._service.db.node:
            return ()
        alive = await self._within(self._service.db.look_up(leases.alive), otherwise=None)
        # The roles have the names of their leases. `api` has none.
        return () if alive is None else [role for role in ROLES[1:] if role not in alive]

    async def _lag(self) -> float:
        service = self._service
        program = str(service.codec.program_id)
        try:
            async with asyncio.timeout(self._patience):
                newest = await service.chain.newest(program, _SIGNATURES)
                slot = await service.chain.slot()
        except (ChainUnavailable, RpcError, TimeoutError):
            return math.nan
        slots = {one.signature: one.slot for one in newest if not one.failed}
        unknown = await self._within(service.indexer.unknown(list(slots)), otherwise=None)
        # If the stored events cannot be read, the indexer cannot store new ones. The lag then counts as infinite.
        return math.inf if unknown is None else max((slot - slots[one] for one in unknown), default=0)

    async def _within(self, reading: Awaitable[T], *, otherwise: Other) -> T | Other:
        """Return the result of a reading, or ``otherwise`` if it fails or is late. Other parts report the failure."""
        try:
            async with asyncio.timeout(self._patience):
                return await reading
        except (ChainUnavailable, RpcError, *WRITE_ERRORS):
            return otherwise

    async def _write(self) -> bool:
        try:
            async with asyncio.timeout(self._patience):
                await self._service.db.write(lambda conn: put_value(conn, _VALUE, str(now_ms())))
                # A small value may fit into free pages of a full disk, where a payment does not.
                if self._service.db.node:
                    await self._service.db.read(spill)
                else:
                    with contextlib.suppress(UndoError):
                        await self._service.db.write(fill)
        except Exception as error:  # noqa: BLE001 - any failure, such as a full disk, is logged
            _log.warning("database_cannot_be_written", error=str(error))
            return False
        return True
