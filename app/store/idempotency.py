"""Idempotency keys: which request holds a key, and what it was answered."""

from dataclasses import dataclass
from typing import Any, Literal

from sqlalchemy import Connection, Row, bindparam, delete, select, update

from app.store.columns import columns_of, upsert
from app.store.prepared import execute
from app.store.state_tables import idempotency as table

LIFETIME = 24 * 60 * 60 * 1000
"""Milliseconds for which an answer is repeated."""

State = Literal["running", "done"]
"""`running`: being worked on, or of unknown outcome; `done`: answered."""

# Built once: to build a statement takes longer than to execute it.
_BY_KEY = select(table).where(table.c.org == bindparam("org"), table.c.key == bindparam("key"))
_UPDATE = update(table).where(table.c.org == bindparam("of_org"), table.c.key == bindparam("of_key"))


@dataclass(frozen=True, slots=True)
class IdempotencyRecord:
    """A key's holder. `body_hash` is of the parsed body, so that spelling does not matter."""

    org: str
    key: str
    method: str
    path: str
    body_hash: str
    state: str
    created_at: int
    expires_at: int
    status_code: int | None = None
    response: str | None = None
    tx_id: str | None = None


def claim(connection: Connection, record: IdempotencyRecord) -> IdempotencyRecord | None:
    """Take a key for a request; return `None` when taken, else the record that holds it.

    An answered record whose time is up gives way; a running one does not.
    """
    values, keys = columns_of(record), ["org", "key"]
    if upsert(connection, table, values, keys=keys, replace=False):
        return None
    held = connection.execute(_BY_KEY, {"org": record.org, "key": record.key}).one()
    if not _is_over(held, record.created_at):
        return IdempotencyRecord(**held._mapping)  # noqa: SLF001
    upsert(connection, table, values, keys=keys)
    return None


def find(connection: Connection, org: str, key: str, now: int) -> IdempotencyRecord | None:
    """Return the record that holds a key; `None` when it is free, or held by an answer whose time is up."""
    row = connection.execute(_BY_KEY, {"org": org, "key": key}).one_or_none()
    return None if row is None or _is_over(row, now) else IdempotencyRecord(**row._mapping)  # noqa: SLF001


def attach_transaction(connection: Connection, org: str, key: str, tx_id: str) -> None:
    """Note the attempt that a request led to, in the transaction that stores the attempt."""
    _update(connection, org, key, tx_id=tx_id)


def finish(  # noqa: PLR0917
    connection: Connection, org: str, key: str, status_code: int, response: str, now: int
) -> None:
    """Store the answer that repeats of the request get for the next 24 hours."""
    _update(connection, org, key, state="done", status_code=status_code, response=response, expires_at=now + LIFETIME)


def release(connection: Connection, org: str, key: str) -> None:
    """Free the key of a request that failed and changed nothing."""
    connection.execute(delete(table).where(table.c.org == org, table.c.key == key, table.c.state != "done"))


def purge(connection: Connection, now: int) -> int:
    """Delete the answers whose time is up and return how many."""
    return connection.execute(delete(table).where(table.c.state == "done", table.c.expires_at <= now)).rowcount


def _is_over(row: Row[Any], now: int) -> bool:
    return bool(row.state == "done" and row.expires_at <= now)


def _update(connection: Connection, org: str, key: str, **values: Any) -> None:
    execute(connection, _UPDATE, values, of_org=org, of_key=key)
