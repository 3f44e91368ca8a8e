"""Runs statements in the SQL that SQLite and PostgreSQL share, including statements for many rows at a time."""

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol, TypeVar

T = TypeVar("T")

_AT_ONCE = 500
"""Number of rows or values in one statement. SQLite accepts at most 32,766 values."""


class Statements(Protocol):
    """Runs statements in the SQL that SQLite and PostgreSQL share, with `?` for values."""

    def execute(self, statement: str, values: Sequence[Any] = (), /) -> Any:
        """Run a statement and return its cursor."""

    def atomic(self) -> AbstractContextManager[object]:
        """Return the context of one transaction. Either all of its writes are kept or none."""


def parts(values: Sequence[T]) -> Iterator[Sequence[T]]:
    """Split a sequence into parts that fit into one statement."""
    for start in range(0, len(values), _AT_ONCE):
        yield values[start : start + _AT_ONCE]


def insert_rows(db: Statements, insert: str, rows: Sequence[Sequence[Any]], then: str = "") -> list[Any]:
    """Insert rows with as few statements as possible. Return the rows of the RETURNING clause in `then`.

    One statement per row would cost at least one round trip per row on a server.
    """
    returns = "RETURNING" in then
    found: list[Any] = []
    for part in parts(rows):
        marks = ", ".join([f"({', '.join('?' * len(part[0]))})"] * len(part))
        cursor = db.execute(f"{insert} VALUES {marks} {then}", [value for row in part for value in row])
        if returns:
            found += cursor.fetchall()
    return found
