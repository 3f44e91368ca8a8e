"""Writes the request log in batches, after the responses."""

import asyncio
from collections.abc import Sequence
from functools import partial

import structlog
from sqlalchemy import Connection
from starlette.types import Scope

from app.access.keyring import Principal
from app.core.background import Periodic
from app.core.identifiers import is_id
from app.core.timestamps import now_ms
from app.database.interface import WRITE_ERRORS, Database
from app.store.request_log import RequestRecord, insert_requests
from app.store.stopped_payments import count_stopped

_log = structlog.get_logger(__name__)

#: Seconds between two batches.
_INTERVAL = 1.0
#: Maximum number of requests written in one transaction, so that payments do not wait for a large one.
_BATCH = 500
#: Maximum number of requests that may wait for the database. Further requests are only counted.
_MAX_WAITING = 10_000
#: Maximum number of bytes of a path.
_MAX_PATH = 128


class RequestLog(Periodic):
    """Collects requests made with API keys in memory, and writes them about once a second.

    No request waits for this write. If the queue is full, for example while the database is not writable, further
    requests are lost. A log line reports the number of lost requests. Queued requests are also lost if the process
    dies.
    """

    name = "request_log"

    def __init__(self, db: Database, *, kept: int) -> None:
        """Collect nothing if ``kept``, the number of requests to keep for each organisation, is 0."""
        super().__init__(_INTERVAL)
        self._db = db
        self._kept = kept
        self._waiting: list[RequestRecord] = []
        self._lost = 0
        self._ticking = asyncio.Lock()

    def answered(self, scope: Scope, status: int, seconds: float) -> None:
        """Queue a request to `/v1/` that had a valid API key and was answered after ``seconds``.

        Ignore any other request.
        """
        principal: Principal | None = scope["state"].get("principal")
        if not self._kept or principal is None or principal.actor.type != "key" or not scope["path"].startswith("/v1/"):
            return
        if len(self._waiting) >= _MAX_WAITING:
            self._lost += 1
            return
        self._waiting.append(
            RequestRecord(
                request_id=scope["state"]["request_id"],
                org=principal.org,
                key_id=principal.key_id,
                timestamp=now_ms(),
                method=scope["method"],
                path=_printable(scope["path"]),
                status=status,
                code=scope["state"].get("error_code"),
                duration_ms=round(seconds * 1000),
                wallet_id=_wallet_of(scope),
            )
        )

    async def tick(self) -> int:
        """Write the waiting requests and return their number."""
        async with self._ticking:
            if self._lost:
                _log.warning("requests_not_logged", requests=self._lost)
                self._lost = 0
            written = 0
            while self._waiting:
                batch = self._waiting[:_BATCH]
                await self._db.write(partial(store_requests, batch=batch))
                # The rows of a cancelled write stay in the queue. Writing the same rows again changes nothing.
                del self._waiting[: len(batch)]
                written += len(batch)
            return written

    async def stop(self) -> None:
        """Stop, and write the waiting requests. Requests that cannot be written are lost; their number is logged."""
        await super().stop()
        try:
            await self.tick()
        except WRITE_ERRORS as error:
            _log.warning("requests_not_logged", requests=len(self._waiting), error=str(error))


def store_requests(conn: Connection, batch: Sequence[RequestRecord]) -> None:
    """Store requests, and count the payments of stopped wallets among them.

    A second call with the same requests changes nothing.
    """
    # Count before inserting: rows that an earlier commit with an unknown outcome has already inserted are not counted
    # again.
    count_stopped(conn, batch, now_ms())
    insert_requests(conn, batch)


def _wallet_of(scope: Scope) -> str | None:
    found = scope["state"].get("wallet_id") or scope.get("path_params", {}).get("wallet_id")
    return found if found is not None and is_id("wal_", found) else None


def _printable(path: str) -> str:
    """Return the beginning of a text without unprintable characters, which terminals and databases may not accept."""
    shown = "".join(one if one.isprintable() else "\ufffd" for one in path[:_MAX_PATH])
    return shown.encode()[:_MAX_PATH].decode(errors="ignore")
