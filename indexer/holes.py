"""Stores unreadable transactions, to retry them with growing pauses."""

from collections.abc import Sequence
from dataclasses import asdict

from sqlalchemy import Connection, bindparam, delete, select
from sqlalchemy.dialects.postgresql import insert

from app.database.records import fetch_all
from app.database.statements import execute, execute_all
from indexer.records import TransactionHole
from indexer.schema import transaction_holes as table

_SHARE_OF_AGE, _LONGEST_PAUSE = 16, 3600
"""A hole is retried after one sixteenth of its age: at least a second and at most an hour."""

_HOLES = select(table.c.signature, table.c.slot, table.c.reason, table.c.since).limit(bindparam("limit"))
_NEWEST = _HOLES.order_by(table.c.since.desc(), table.c.signature.desc())
_DUE = _HOLES.where(table.c.retry_at <= bindparam("now")).order_by(table.c.retry_at)
_new = insert(table)
_PUT = _new.on_conflict_do_update(index_elements=["signature"], set_={"retry_at": _new.excluded.retry_at})
_CLOSE = delete(table).where(table.c.signature.in_(bindparam("signatures", expanding=True)))


class TransactionHoles:
    """The table of unreadable transactions. Call the writing methods within a database transaction."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def newest(self, limit: int) -> list[TransactionHole]:
        """Return at most `limit` holes, newest first."""
        return fetch_all(self._connection, TransactionHole, _NEWEST, {"limit": limit})

    def due(self, now: int, limit: int) -> list[TransactionHole]:
        """Return at most `limit` holes that are due for a retry, the longest overdue first."""
        return fetch_all(self._connection, TransactionHole, _DUE, {"now": now, "limit": limit})

    def put(self, holes: Sequence[TransactionHole], now: int) -> None:
        """Store new holes, or the time of the next retry of known ones. The pause grows with a hole's age."""
        pauses = (max(1, min((now - one.since) // _SHARE_OF_AGE, _LONGEST_PAUSE)) for one in holes)
        rows = [{**asdict(one), "retry_at": now + pause} for one, pause in zip(holes, pauses, strict=True)]
        execute_all(self._connection, _PUT, rows)

    def close(self, signatures: Sequence[str]) -> None:
        """Remove the holes with these signatures."""
        if signatures:
            execute(self._connection, _CLOSE, {}, signatures=list(signatures))
