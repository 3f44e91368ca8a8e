"""The commit log: a node's recently committed attempts, kept in its data folder to detect lost commits.

With asynchronous replication, a promoted standby lacks the last commits without reporting this. The log keeps the ids
of attempts, because rows of attempts are never deleted. Idempotency keys are released and purged, and a promoted
standby assigns transaction numbers a second time. An id is written before its transaction is sent. The write does not
wait for the disk, so it survives the end of the process, but not a crash of the node's machine during the failover.
"""

from collections.abc import Mapping
from pathlib import Path

import structlog
from sqlalchemy import Connection, String, bindparam, text

from app.core.timestamps import now_ms

KEPT = 10_000
"""Maximum number of remembered attempts. This is far more than a node commits within the lag of any useful standby."""
_KNOWN = text("SELECT tx_id FROM attempts WHERE tx_id IN :ids").bindparams(
    bindparam("ids", type_=String, expanding=True)
)

_log = structlog.get_logger(__name__)


class CommitLog:
    """Remembers the newest ``KEPT`` committed attempts.

    Processes that share a folder have one file each. A new process takes over the content of all files.
    """

    def __init__(self, folder: Path, name: str) -> None:
        self._path = folder / f"committed-{name}"
        self._entries: dict[str, tuple[str, int]] = {}
        for path in folder.glob("committed-*"):
            for line in path.read_text(encoding="ascii", errors="replace").splitlines():
                tx_id, _, rest = line.partition(" ")
                org, _, moment = rest.partition(" ")
                # A crash may have truncated the last line.
                if moment.isdecimal():
                    self._entries[tx_id] = org, int(moment)
        self._entries = dict(sorted(self._entries.items(), key=lambda one: one[1][1])[-KEPT:])
        self._rewrite()

    def add(self, tx_id: str, org: str) -> None:
        """Remember a committed attempt. Call this before its transaction is sent."""
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
        """Return the commit time of the newest attempt that the server has lost, by organisation.

        Times are Unix milliseconds. Attempts committed up to ``since`` are ignored.
        """
        recent = {tx_id: entry for tx_id, entry in list(self._entries.items()) if entry[1] > since}
        known = set(connection.scalars(_KNOWN, {"ids": list(recent)}))
        return dict(sorted(entry for tx_id, entry in recent.items() if tx_id not in known))

    def _rewrite(self) -> None:
        """Write the remembered attempts to a new file, and replace the old one with it."""
        new = self._path.with_name(f"new-{self._path.name}")
        new.touch(mode=0o600)
        new.write_bytes(b"".join(_line(*one) for one in self._entries.items()))
        new.replace(self._path)
        self._lines = len(self._entries)


def _line(tx_id: str, entry: tuple[str, int]) -> bytes:
    return f"{tx_id} {entry[0]} {entry[1]}\n".encode()
