"""Whether the service can do its work: the chain answers, the database can be written, the indexer keeps up."""

import asyncio
import math
import time
from collections.abc import Callable
from dataclasses import dataclass

import structlog

from app.chain.client import COMMITMENT
from app.chain.errors import ChainUnavailable, RpcError
from app.core.timestamps import now_ms
from app.store.values import put_value
from app.submission.context import Service

_log = structlog.get_logger(__name__)

_SIGNATURES = 100
"""Newest transactions of the program that are compared with what the indexer has stored."""
_VALUE = "health"
"""What is written to see whether it can be."""


@dataclass(frozen=True, slots=True)
class HealthReport:
    """What was found: the parts that do not work, and the indexer's lag in slots, NaN when the chain does not answer.

    The lag is the age of the oldest transaction that the chain has confirmed and the indexer has not stored.
    """

    failing: tuple[str, ...]
    lag: float


class Health:
    """Looks at the parts, once at a time and at most once in ``remember`` seconds however often it is asked."""

    def __init__(
        self,
        service: Service,
        *,
        remember: float = 1.0,
        patience: float = 2.0,
        timer: Callable[[], float] = time.monotonic,
    ) -> None:
        """``patience`` is how many seconds a part gets to answer."""
        self._service = service
        self._remember = remember
        self._patience = patience
        self._timer = timer
        self._looking: asyncio.Task[HealthReport] | None = None
        self._found: tuple[float, HealthReport] | None = None

    async def report(self) -> HealthReport:
        """Return what was found a moment ago, or what the look finds that is under way or begins now."""
        if self._looking is None:
            if self._found is not None and self._timer() < self._found[0] + self._remember:
                return self._found[1]
            self._looking = asyncio.create_task(self._look(), name="health")
        # Others wait for the same look, so one who leaves does not end it.
        return await asyncio.shield(self._looking)

    async def _look(self) -> HealthReport:
        try:
            report = await self._examine()
            # A look can take longer than what was found is remembered: that counts from its end.
            self._found = (self._timer(), report)
        finally:
            self._looking = None
        return report

    async def _examine(self) -> HealthReport:
        lag, writable = await asyncio.gather(self._lag(), self._write())
        failing = [name for name, works in (("chain", not math.isnan(lag)), ("database", writable)) if not works]
        if lag > self._service.settings.max_indexer_lag:
            failing.append("indexer")
        if failing:
            _log.warning("not_ready", reasons=failing, lag=lag)
        return HealthReport(tuple(failing), lag)

    async def _lag(self) -> float:
        service = self._service
        program, options = str(service.codec.program_id), {"limit": _SIGNATURES, "commitment": COMMITMENT}
        try:
            async with asyncio.timeout(self._patience):
                newest = await service.chain.call("getSignaturesForAddress", [program, options])
                slot = await service.chain.call("getSlot", [{"commitment": COMMITMENT}])
        except (ChainUnavailable, RpcError, TimeoutError):
            return math.nan
        slots = {one["signature"]: one["slot"] for one in newest if one["err"] is None}
        return max((slot - slots[one] for one in await service.indexer.unknown(list(slots))), default=0)

    async def _write(self) -> bool:
        try:
            async with asyncio.timeout(self._patience):
                await self._service.db.write(lambda conn: put_value(conn, _VALUE, str(now_ms())))
        except Exception:  # noqa: BLE001 - a full disk, a lock, a file that is gone: whatever it is, it is logged
            _log.exception("database_cannot_be_written")
            return False
        return True
