"""Rows as records. A record's fields are the columns of its query."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

from sqlalchemy import Connection, Executable
from sqlalchemy.exc import MultipleResultsFound

from app.database import statements

T = TypeVar("T")


def fetch_one(
    connection: Connection, record: Callable[..., T], query: Executable, parameters: Mapping[str, Any] | None = None
) -> T | None:
    """Return the only row of a query as a record, or `None` if there is no row.

    The compiled form of a query with `parameters`, even empty ones, is cached. Build such a query once.
    """
    found = fetch_all(connection, record, query, parameters)
    if len(found) > 1:
        raise MultipleResultsFound
    return found[0] if found else None


def fetch_all(
    connection: Connection, record: Callable[..., T], query: Executable, parameters: Mapping[str, Any] | None = None
) -> list[T]:
    """Return all rows of a query as records; for `parameters` see `fetch_one`."""
    if parameters is not None:
        return records(record, *statements.rows(connection, query, parameters))
    result = connection.execute(query)
    return records(record, result.keys(), result)


def records(record: Callable[..., T], names: Iterable[str], rows: Iterable[Sequence[Any]]) -> list[T]:
    """Return rows with these column names as records. This is twice as fast as using the rows' own mappings."""
    fields = tuple(names)
    return [record(**dict(zip(fields, row, strict=True))) for row in rows]


def columns_of(record: Any) -> dict[str, Any]:
    """Return a record's fields by name. This is ten times as fast as `dataclasses.asdict`, which copies every value."""
    return {name: getattr(record, name) for name in record.__dataclass_fields__}
