"""Writes requested export files and removes expired ones."""

import asyncio
import contextlib
import secrets
import threading
from collections.abc import Awaitable, Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import IO, Any

import structlog
from sqlalchemy import Connection

from app.chain.errors import ChainUnavailable, RpcError
from app.core import file_lock
from app.core.background import Periodic
from app.core.errors import is_storage_error
from app.core.identifiers import EVENT_PREFIX, derived_id
from app.core.timestamps import iso_ms, now_ms
from app.database.claims import holds, release
from app.database.interface import Database
from app.exports.files import PART, Show, private, write
from app.store.exports import (
    ExportRecord,
    chunk,
    claim_export,
    expire,
    exports,
    finish,
    over,
    put_chunk,
    with_files,
    with_status,
)
from app.store.exports import export as stored_export
from app.store.feed import append_event

_log = structlog.get_logger(__name__)

LOCK = "lock"
"""Name of the file that the writing process keeps locked."""
_INTERVAL = 5.0
"""Seconds between two searches for expired exports and for requests that another process accepted."""
CHUNK = 256 * 1024
"""Bytes of a file stored in one transaction. The number is small, because payments wait for such a transaction."""
_BATCH = 100
"""Exports removed in one transaction. The number is small, because payments wait for such a transaction."""


class Exporter(Periodic):
    """Writes exports one at a time, oldest first, each from a snapshot of the database.

    An export is `processing` until its file is complete. After a crash or a stop, it is written again. Only one process
    writes in a data folder; when that process ends, another one takes over. With several nodes, each node writes the
    exports that it claims and stores the content of their files in the database, so that every node can serve them.
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
        writes: bool = True,
    ) -> None:
        """Keep files for `lifetime` seconds. `show` returns the fields of a transaction as the API shows them.

        `show` takes the row and its issued payment, if any. `catch_up` projects the chain's events into the read models
        and returns the slot that it has reached. Without `writes`, this process only serves files that others have
        written.
        """
        super().__init__(_INTERVAL)
        self._db = db
        self._lifetime_ms = lifetime * 1000
        self._show = show
        self._folder = folder
        self._program_id = program_id
        self._catch_up = catch_up
        self._writes = writes
        self._ticking = asyncio.Lock()
        self._stop = threading.Event()
        self._lock: IO[str] | None = None

    def path(self, export: ExportRecord) -> Path:
        """Return the path of an export's finished file."""
        suffix = "csv" if export.format == "accounting" else export.format
        return self._folder / f"{export.export_id}.{suffix}"

    async def start(self) -> None:
        """Start to write exports. Those that an earlier process left unfinished come first."""
        self._folder.mkdir(mode=0o700, exist_ok=True)
        await super().start()

    async def stop(self) -> None:
        """Stop writing exports. The next start writes an interrupted export again."""
        await super().stop()
        if self._lock is not None:
            self._lock.close()

    async def tick(self) -> int:
        """Remove expired files and write all requested exports. Returns the number of exports that became ready.

        Writes nothing if this process only serves files, or another process has the lock of the folder.
        """
        if not self._writes:
            await self.sweep()
            return 0
        async with self._ticking:
            if not self._has_lock():
                return 0
            await self._remove()
            if self._db.node:
                return await self._write_claimed()
            ready = 0
            for export in await self._db.read(lambda conn: with_status(conn, "processing")):
                # Take the time before the catch-up, so that the file has every transaction that had landed by then.
                began = now_ms()
                ready += await self._write(export, began, await self._catch_up())
            return ready

    async def fetch(self, export: ExportRecord) -> Path | None:
        """Return the path of an export's file, or None if no node has it.

        If another node wrote the file, first copies it from the database into this node's folder.
        """
        path = self.path(export)
        if await asyncio.to_thread(path.is_file):
            return path
        if not self._db.node or export.status != "ready":
            return None
        await self.sweep()
        part = path.with_name(f"{path.name}.{secrets.token_hex(4)}{PART}")
        try:
            with private(part) as file:
                number = 0
                while data := await self._db.read(lambda conn: chunk(conn, export.export_id, number)):  # noqa: B023
                    await asyncio.to_thread(file.buffer.write, data)
                    number += 1
            if number == 0:
                return None
            part.replace(path)
        finally:
            part.unlink(missing_ok=True)
        return path

    async def sweep(self) -> None:
        """Remove the files in this node's folder whose exports have expired, failed or been deleted."""
        await asyncio.to_thread(self._folder.mkdir, mode=0o700, parents=True, exist_ok=True)
        files = {one.stem: one for one in self._folder.glob("exp_*") if one.suffix != PART}
        kept = await self._db.read(lambda conn: with_files(conn, list(files))) if files else set()
        await asyncio.to_thread(_unlink, [file for name, file in files.items() if name not in kept])

    async def _write_claimed(self) -> int:
        """Claim and write exports that no other node writes, and store their files for all nodes."""
        node, ready = self._db.node, 0
        await self.sweep()
        while (claimed := await self._db.write_unordered(lambda conn: claim_export(conn, node))) is not None:
            found = await self._db.read(lambda conn: stored_export(conn, claimed))
            if found is not None:
                began = now_ms()
                ready += await self._write(found, began, await self._catch_up())
            await self._db.write_unordered(lambda conn: release(conn, exports.name, claimed, node))
        return ready

    async def _share(self, export: ExportRecord, path: Path) -> bool:
        """Store a file's content for the other nodes. Returns False if one of them has taken over the export."""
        node, key = self._db.node, export.export_id

        def put(conn: Connection, number: int, data: bytes) -> bool:
            if not holds(conn, exports.name, key, node):
                return False
            put_chunk(conn, key, number, data)
            return True

        with path.open("rb") as file:
            number = 0
            while data := await asyncio.to_thread(file.read, CHUNK):
                if not await self._db.write(partial(put, number=number, data=data)):
                    return False
                number += 1
        return True

    async def _remove(self) -> None:
        """Remove expired exports. The file is removed first, so that a crash leaves no file without its export."""
        now = now_ms()
        while old := await self._db.read(lambda conn: over(conn, now, most=_BATCH)):
            await asyncio.to_thread(_unlink, [self.path(one) for one in old])
            await self._db.write(lambda conn: expire(conn, [one.export_id for one in old]))

    def _has_lock(self) -> bool:
        """Return True if this process holds the folder's lock and may write there. Takes the lock if it is free."""
        if self._lock is None:
            self._lock = file_lock.take(self._folder / LOCK)
            if self._lock is not None:
                _unlink(self._folder.glob(f"*{PART}"))
        return self._lock is not None

    async def _write(self, export: ExportRecord, began: int, slot: int) -> bool:
        """Write an export and add its event to the feed. Returns False if the export did not become ready here.

        ``began`` and ``slot`` become the ``generated_at`` and ``slot`` of `files.write`. Errors of a database outage
        propagate, and a later round writes the export again.
        """
        path = self.path(export)

        def work(conn: Connection) -> tuple[int, str | None]:
            return write(conn, export, began, slot, self._program_id, self._show, path, self._stop.is_set)

        writing = asyncio.ensure_future(self._db.read(work, in_thread=True))
        try:
            rows, manifest = await asyncio.shield(writing)
        except asyncio.CancelledError:
            # The database is closed next, so wait for the thread that still reads it.
            self._stop.set()
            await asyncio.gather(writing, return_exceptions=True)
            raise
        except Exception as error:
            with contextlib.suppress(OSError):
                _unlink([path.with_name(path.name + PART)])
            if is_storage_error(error) and not isinstance(error, OSError):
                raise  # an outage of the database; the next round writes the export again
            # Any other failure must not delay the other exports.
            _log.exception("export_failed", export_id=export.export_id)
            reason = "The file could not be written." if isinstance(error, OSError) else "An internal error occurred."
            await self._db.write(lambda conn: finish(conn, export.export_id, "failed", now_ms(), reason=reason))
            return False
        if self._db.node and not await self._share(export, path):
            return False
        now = now_ms()
        expires_at = now + self._lifetime_ms
        outcome = {"rows": rows, "expires_at": expires_at, "manifest": manifest}
        return await self._db.write(lambda conn: _ready(conn, export, now, outcome))


def _unlink(files: Iterable[Path]) -> None:
    for file in files:
        file.unlink(missing_ok=True)


def _ready(connection: Connection, export: ExportRecord, now: int, outcome: Mapping[str, Any]) -> bool:
    if not finish(connection, export.export_id, "ready", now, **outcome):
        return False
    rows = outcome["rows"]
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
            "expires_at": iso_ms(outcome["expires_at"]),
        },
    )
    return True
