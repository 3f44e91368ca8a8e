"""Writes the files that were asked for and removes those whose time is over."""

import asyncio
import contextlib
import threading
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import IO

import structlog
from sqlalchemy import Connection

from app.chain.errors import ChainUnavailable, RpcError
from app.core import file_lock as locks
from app.core.background import Periodic
from app.core.identifiers import EVENT_PREFIX, derived_id
from app.core.timestamps import iso_ms, now_ms
from app.exports.files import PART, Show, write
from app.store.database import Database
from app.store.exports import ExportRecord, expire, finish, over, with_status
from app.store.feed import append_event

_log = structlog.get_logger(__name__)

LOCK = "lock"
"""Name of the file whose lock the process has that writes."""
_INTERVAL = 5.0
"""Seconds between two looks for what is over, and for what another process was asked for."""
_BATCH = 100
"""Exports that are removed in one transaction, so that payments do not wait for many."""


class Exporter(Periodic):
    """Writes one export after the other, oldest first, each from a snapshot of the database.

    An export is `processing` until its file is complete: after a crash or a stop it is written anew. Of several
    processes on one data folder one writes; another takes over when that ends.
    """

    name = "exports"
    waits_for = (ChainUnavailable, RpcError)

    def __init__(
        self,
        *,
        db: Database,
        folder: Path,
        program_id: str,
        lifetime: int,
        show: Show,
        catch_up: Callable[[], Awaitable[int]],
    ) -> None:
        """`lifetime`: seconds for which files are kept; `show` gives the fields of a transaction as the API does.

        `catch_up` brings what the chain has into the read models and returns up to which slot it has done so.
        """
        super().__init__(_INTERVAL)
        self._db = db
        self._lifetime_ms = lifetime * 1000
        self._show = show
        self._folder = folder
        self._program_id = program_id
        self._catch_up = catch_up
        self._ticking = asyncio.Lock()
        self._stop = threading.Event()
        self._lock: IO[str] | None = None

    def path(self, export: ExportRecord) -> Path:
        """Return where an export's file lies once it is ready."""
        return self._folder / f"{export.export_id}.{export.format}"

    async def start(self) -> None:
        """Begin, with what an earlier process left unfinished."""
        self._folder.mkdir(mode=0o700, exist_ok=True)
        await super().start()

    async def stop(self) -> None:
        """End; what is being written is written anew at the next start."""
        await super().stop()
        if self._lock is not None:
            self._lock.close()

    async def tick(self) -> int:
        """Write everything that was asked for and remove what is over; returns how many became ready."""
        async with self._ticking:
            if not self._is_first():
                return 0
            await self._remove()
            ready = 0
            for export in await self._db.read(lambda conn: with_status(conn, "processing")):
                # The time comes first: what has landed by then is in the file, however long catching up takes.
                began = now_ms()
                ready += await self._write(export, began, await self._catch_up())
            return ready

    async def _remove(self) -> None:
        """Remove what is over: the file first, so that after a crash in between no file is left without an export."""
        now = now_ms()
        while old := await self._db.read(lambda conn: over(conn, now, most=_BATCH)):
            await asyncio.to_thread(self._unlink, old)
            await self._db.write(lambda conn: expire(conn, [one.export_id for one in old]))

    def _unlink(self, old: Sequence[ExportRecord]) -> None:
        for one in old:
            self.path(one).unlink(missing_ok=True)

    def _is_first(self) -> bool:
        """Whether this process is the one that writes here."""
        if self._lock is not None:
            return True
        self._lock = locks.take(self._folder / LOCK)
        if self._lock is None:
            return False
        for left in self._folder.glob(f"*{PART}"):
            left.unlink()
        return True

    async def _write(self, export: ExportRecord, began: int, slot: int) -> bool:
        """Write an export and say so in the feed; false when that failed."""
        path = self.path(export)

        def work(conn: Connection) -> int:
            return write(conn, export, began, slot, self._program_id, self._show, path, self._stop.is_set)

        writing = asyncio.ensure_future(self._db.read(work, in_thread=True))
        try:
            rows = await asyncio.shield(writing)
        except asyncio.CancelledError:
            # The thread reads the database, which is closed next.
            self._stop.set()
            await asyncio.gather(writing, return_exceptions=True)
            raise
        except Exception as error:  # noqa: BLE001 - whatever it is, the others are not to wait
            _log.exception("export_failed", export_id=export.export_id)
            with contextlib.suppress(OSError):
                path.with_name(path.name + PART).unlink(missing_ok=True)
            reason = "The file could not be written." if isinstance(error, OSError) else "The service failed."
            await self._db.write(lambda conn: finish(conn, export.export_id, "failed", now_ms(), reason=reason))
            return False
        now = now_ms()
        expires_at = now + self._lifetime_ms
        return await self._db.write(lambda conn: _ready(conn, export, now, rows, expires_at))


def _ready(connection: Connection, export: ExportRecord, now: int, rows: int, expires_at: int) -> bool:
    if not finish(connection, export.export_id, "ready", now, rows=rows, expires_at=expires_at):
        return False
    append_event(
        connection,
        event_id=derived_id(EVENT_PREFIX, export.export_id, "export.ready"),
        org=export.org,
        type="export.ready",
        timestamp=now,
        wallet_id=export.wallet_id,
        summary=f"Export {export.export_id} of {rows} transactions is ready",
        payload={
            "export_id": export.export_id,
            "wallet_id": export.wallet_id,
            "format": export.format,
            "rows": rows,
            "expires_at": iso_ms(expires_at),
            "timestamp": iso_ms(now),
        },
    )
    return True
