"""The attempts that this node has committed lately, in its data folder: by them it notices commits that a server lost.

With asynchronous replication, a promoted standby lacks the last commits, and nothing on it says so. The id of an
attempt serves because its row is never deleted: idempotency keys are released and purged, transaction numbers are
assigned a second time. It is written before the transaction is sent, without waiting for the disk: that survives the
end of the process. A crash of the node's machine during a failover is a second fault.
"""

from collections.abc import Mapping
from pathlib import Path

import structlog
from sqlalchemy import Connection, text

from app.core.timestamps import now_ms

KEPT = 10_000
"""Attempts that are remembered: far more than a node commits while a standby of any use lags behind."""
_KNOWN = text("SELECT tx_id FROM attempts WHERE tx_id = ANY(CAST(:ids AS text[]))")

_log = structlog.get_logger(__name__)


class CommitLog:
    """Remembers committed attempts, the newest ``KEPT`` of them.

    Processes that share a folder have a file each. A new process takes over the content of all.
    """

    def __init__(self, folder: Path, name: str) -> None:
        self._path = folder / f"committed-{name}"
        self._entries: dict[str, tuple[str, int]] = {}
        for path in folder.glob("committed-*"):
            for line in path.read_text(encoding="ascii", errors="replace").splitlines():
                tx_id, _, rest = line.partition(" ")
                org, _, moment = rest.partition(" ")
                # A crash may have cut the last line.
                if moment.isdecimal():
                    self._entries[tx_id] = org, int(moment)
        self._entries = dict(sorted(self._entries.items(), key=lambda one: one[1][1])[-KEPT:])
        self._rewrite()

    def add(self, tx_id: str, org: str) -> None:
        """Remember an attempt that was committed; call it before its transaction is sent."""
        if tx_id in self._entries:
            return
        self._entries[tx_id] = entry = org, now_ms()
        if len(self._entries) > KEPT:
            del self._entries[next(iter(self._entries))]
        try:
            if self._lines > 2 * KEPT:
                self._rewrite()
            else:
                with self._path.open("ab") as file:
                    file.write(_line(tx_id, entry))
                self._lines += 1
        except OSError as error:
            _log.warning("ledger_not_written", error=str(error))  # memory still has it

    def missing(self, connection: Connection, since: int) -> Mapping[str, int]:
        """Return the Unix millisecond of the newest missing attempt by organisation, of those after ``since``."""
        recent = {tx_id: entry for tx_id, entry in list(self._entries.items()) if entry[1] > since}
        known = set(connection.scalars(_KNOWN, {"ids": list(recent)}))
        return dict(sorted(entry for tx_id, entry in recent.items() if tx_id not in known))

    def _rewrite(self) -> None:
        """Write the remembered attempts to a new file in place of the old one."""
        new = self._path.with_name(f"new-{self._path.name}")
        new.write_bytes(b"".join(_line(*one) for one in self._entries.items()))
        new.replace(self._path)
        self._lines = len(self._entries)


def _line(tx_id: str, entry: tuple[str, int]) -> bytes:
    return f"{tx_id} {entry[0]} {entry[1]}\n".encode()
