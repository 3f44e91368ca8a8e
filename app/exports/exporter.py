"""Writes the requested files and removes expired ones."""

import asyncio
import contextlib
import threading
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path
from typing import IO

import structlog
from sqlalchemy import Connection

from app.chain.errors import ChainUnavailable, RpcError
from app.core import file_lock
from app.core.background import Periodic
from app.core.identifiers import EVENT_PREFIX, derived_id
from app.core.timestamps import iso_ms, now_ms
from app.exports.files import PART, Show, write
from app.store.database import Database
from app.store.exports import ExportRecord, expire, finish, over, with_status
from app.store.feed import append_event

_log = structlog.get_logger(__name__)

LOCK = "lock"
"""File that the writing process holds locked."""
_INTERVAL = 5.0
"""Seconds between two looks for expired exports and for requests that another process took."""
_BATCH = 100
"""Exports removed in one transaction, so that payments do not wait long."""


class Exporter(Periodic):
    """Writes exports one at a time, oldest first, each from a snapshot of the database.

    An export is `processing` until its file is complete; after a crash or a stop it is written again. Only one process
    writes in a data folder. When it ends, another takes over.
    """

    name = "exports"
    outages = (ChainUnavailable, RpcError)

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
        """Files are kept for `lifetime` seconds; `show` returns the fields of a transaction as the API does.

        `catch_up` projects the chain's events into the read models and returns the slot that it has reached.
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
        """Return the path of an export's finished file."""
        return self._folder / f"{export.export_id}.{export.format}"

    async def start(self) -> None:
        """Start, first with the exports that an earlier process left unfinished."""
        self._folder.mkdir(mode=0o700, exist_ok=True)
        await super().start()

    async def stop(self) -> None:
        """Stop; the next start writes the interrupted export again."""
        await super().stop()
        if self._lock is not None:
            self._lock.close()

    async def tick(self) -> int:
        """Remove expired files and write all requested exports; returns how many became ready."""
        async with self._ticking:
            if not self._has_lock():
                return 0
            await self._remove()
            ready = 0
            for export in await self._db.read(lambda conn: with_status(conn, "processing")):
                # Taken before catching up: the file then has everything that had landed by this time.
                began = now_ms()
                ready += await self._write(export, began, await self._catch_up())
            return ready

    async def _remove(self) -> None:
        """Remove expired exports, the file first: after a crash no file is left without its export."""
        now = now_ms()
        while old := await self._db.read(lambda conn: over(conn, now, most=_BATCH)):
            await asyncio.to_thread(_unlink, [self.path(one) for one in old])
            await self._db.write(lambda conn: expire(conn, [one.export_id for one in old]))

    def _has_lock(self) -> bool:
        """Whether this process is the one that writes in the folder."""
        if self._lock is None:
            self._lock = file_lock.take(self._folder / LOCK)
            if self._lock is not None:
                _unlink(self._folder.glob(f"*{PART}"))
        return self._lock is not None

    async def _write(self, export: ExportRecord, began: int, slot: int) -> bool:
        """Write an export and add its event to the feed; returns false on failure."""
        path = self.path(export)

        def work(conn: Connection) -> int:
            return write(conn, export, began, slot, self._program_id, self._show, path, self._stop.is_set)

        writing = asyncio.ensure_future(self._db.read(work, in_thread=True))
        try:
            rows = await asyncio.shield(writing)
        except asyncio.CancelledError:
            # The database is closed next, and the thread still reads it.
            self._stop.set()
            await asyncio.gather(writing, return_exceptions=True)
            raise
        except Exception as error:  # noqa: BLE001 - no failure may hold up the other exports
            _log.exception("export_failed", export_id=export.export_id)
            with contextlib.suppress(OSError):
                _unlink([path.with_name(path.name + PART)])
            reason = "The file could not be written." if isinstance(error, OSError) else "The service failed."
            await self._db.write(lambda conn: finish(conn, export.export_id, "failed", now_ms(), reason=reason))
            return False
        now = now_ms()
        expires_at = now + self._lifetime_ms
        return await self._db.write(lambda conn: _ready(conn, export, now, rows, expires_at))


def _unlink(files: Iterable[Path]) -> None:
    for file in files:
        file.unlink(missing_ok=True)


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
