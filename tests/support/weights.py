"""Measures how much a request counts towards the rate limit, and how much SQLite reads for it."""

import re
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from sqlalchemy import Connection, event, inspect

from app.database.columns import metadata
from app.database.sqlite import SqliteDatabase

_ENDED: Mapping[str, Mapping[str, str]] = {
    "attempts": {"status": "'confirmed'"},
    "escrows": {"status": "'released'", "due_at": "NULL", "receiver_owed": "0", "vault_owed": "0"},
    "exports": {"status": "'expired'"},
}
"""Column values of a long history, in which all objects have ended."""
_COPIED = 20
"""Number of rows of a table that are copied."""
_APART_MS = 600_000
"""Milliseconds between two rows of a history."""


def weight_of(headers: Mapping[str, str], bucket: int) -> int:
    """Return the weight of a key's first request from the headers of its response. `bucket` is the bucket's size."""
    [rest] = re.findall(r"r=(\d+)", headers["ratelimit"])
    return bucket - int(rest)


class Steps:
    """The number of steps of SQLite's virtual machine. Reading a row takes 4 to 30 steps."""

    taken = 0


@contextmanager
def counting(db: SqliteDatabase) -> Iterator[ContextVar[Steps | None]]:
    """Count the steps of reads in contexts with `Steps`, such as a request's. Background work is not counted."""
    counted: ContextVar[Steps | None] = ContextVar("counted", default=None)

    def step() -> int:
        if (steps := counted.get()) is not None:
            steps.taken += 1
        return 0

    def watch(connection: Any, _record: Any = None) -> None:
        connection.set_progress_handler(step, 1)

    for one in db._open_readers:
        watch(one.connection.dbapi_connection)
    event.listen(db._readers, "connect", watch)
    yield counted
    event.remove(db._readers, "connect", watch)


def lengthen_history(connection: Connection, kept: Collection[str], rows: int) -> None:
    """Copy rows of all tables except the `kept` ones, with earlier times. Copies keep their wallet and organisation."""
    found = inspect(connection)
    connection.exec_driver_sql("PRAGMA defer_foreign_keys = ON")
    for table in sorted(set(metadata.tables) - set(kept)):
        unique = {one for names in found.get_unique_constraints(table) for one in names["column_names"]}
        unique |= set(found.get_pk_constraint(table)["constrained_columns"])
        columns = [(one["name"], str(one["type"])) for one in found.get_columns(table)]
        ended = _ENDED.get(table, {})
        values = [ended.get(name) or _earlier(name, kind, unique) for name, kind in columns]
        names = ", ".join(f'"{name}"' for name, _ in columns)
        source = f"(SELECT * FROM {table} LIMIT {_COPIED})"
        count = connection.exec_driver_sql(f"SELECT count(*) FROM {source}").scalar_one()
        connection.exec_driver_sql(
            "WITH RECURSIVE numbers(g) AS (SELECT 1 UNION ALL SELECT g + 1 FROM numbers"
            f" WHERE g < {rows // max(1, count)}) INSERT OR IGNORE INTO {table} ({names})"
            f" SELECT {', '.join(values)} FROM {source}, numbers"
        )


def _earlier(name: str, kind: str, unique: Collection[str]) -> str:
    if name in unique and name not in {"org", "log"}:
        return f"\"{name}\" || '-' || g" if kind.startswith(("VARCHAR", "TEXT", "BLOB")) else f'"{name}" + g * 1000'
    times = name == "timestamp" or name.endswith("_at")
    return f'"{name}" - g * {_APART_MS}' if times and kind == "BIGINT" else f'"{name}"'
