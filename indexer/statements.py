"""Statements in the SQL that SQLite and PostgreSQL share, also about many rows at a time."""

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol, TypeVar

T = TypeVar("T")

_AT_ONCE = 500
"""Rows or values of one statement; SQLite takes at most 32,766 values."""


class Statements(Protocol):
    """Runs statements in the SQL that SQLite and PostgreSQL share, with `?` for values."""

    def execute(self, statement: str, values: Sequence[Any] = (), /) -> Any:
        """Run a statement; returns its cursor."""

    def atomic(self) -> AbstractContextManager[object]:
        """Return the context of one transaction: all that is written in it is kept together, or none of it."""


def parts(values: Sequence[T]) -> Iterator[Sequence[T]]:
    """Split what is too long for one statement."""
    for start in range(0, len(values), _AT_ONCE):
        yield values[start : start + _AT_ONCE]


def insert_rows(db: Statements, insert: str, rows: Sequence[Sequence[Any]], then: str = "") -> list[Any]:
    """Insert rows by as few statements as possible; returns what `then` returns of them.

    A repeated statement for each row would be a round trip or more for each on a server.
    """
    returns = "RETURNING" in then
    found: list[Any] = []
    for part in parts(rows):
        marks = ", ".join([f"({', '.join('?' * len(part[0]))})"] * len(part))
        cursor = db.execute(f"{insert} VALUES {marks} {then}", [value for row in part for value in row])
        if returns:
            found += cursor.fetchall()
    return found
