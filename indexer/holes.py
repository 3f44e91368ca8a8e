"""Stores unreadable transactions, to retry them with growing pauses."""

from collections.abc import Sequence
from dataclasses import astuple

from indexer.records import TransactionHole
from indexer.statements import Statements, insert_rows, parts

_SHARE_OF_AGE, _LONGEST_PAUSE = 16, 3600
"""A hole is retried after one sixteenth of its age: at least a second and at most an hour."""


class TransactionHoles:
    """The table of unreadable transactions. Call the writing methods within a database transaction."""

    def __init__(self, db: Statements) -> None:
        self._db = db

    def newest(self, limit: int) -> list[TransactionHole]:
        """Return at most `limit` holes, newest first."""
        return self._select("ORDER BY since DESC, signature DESC LIMIT ?", limit)

    def due(self, now: int, limit: int) -> list[TransactionHole]:
        """Return at most `limit` holes that are due for a retry, the longest overdue first."""
        return self._select("WHERE retry_at <= ? ORDER BY retry_at LIMIT ?", now, limit)

    def put(self, holes: Sequence[TransactionHole], now: int) -> None:
        """Store new holes, or the time of the next retry of known ones. The pause grows with a hole's age."""
        pauses = (max(1, min((now - one.since) // _SHARE_OF_AGE, _LONGEST_PAUSE)) for one in holes)
        rows = [(*astuple(one), now + pause) for one, pause in zip(holes, pauses, strict=True)]
        insert = "INSERT INTO transaction_holes (signature, slot, reason, since, retry_at)"
        insert_rows(self._db, insert, rows, "ON CONFLICT (signature) DO UPDATE SET retry_at = excluded.retry_at")

    def close(self, signatures: Sequence[str]) -> None:
        """Remove the holes with these signatures."""
        for part in parts(signatures):
            marks = ", ".join("?" * len(part))
            self._db.execute(f"DELETE FROM transaction_holes WHERE signature IN ({marks})", part)  # noqa: S608 - only question marks

    def _select(self, condition: str, *values: int) -> list[TransactionHole]:
        query = f"SELECT signature, slot, reason, since FROM transaction_holes {condition}"  # noqa: S608 - ours
        return [TransactionHole(*row) for row in self._db.execute(query, values)]
