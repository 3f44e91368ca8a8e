"""Pages of lists: newest first, continued after the last row of the page before."""

import base64
import json
from binascii import Error as BinasciiError
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from sqlalchemy import (
    Column,
    ColumnElement,
    CompoundSelect,
    Connection,
    Row,
    Select,
    and_,
    func,
    or_,
    select,
    union_all,
)

T = TypeVar("T")
_MAX_CURSOR = 256
_LIMIT = 2**63


class InvalidCursorError(ValueError):
    """A cursor that no list gave."""


@dataclass(frozen=True, slots=True)
class Page(Generic[T]):
    """One page of a list and the cursor of the next."""

    data: list[T]
    has_more: bool
    next_cursor: str | None


def fetch_page(
    connection: Connection,
    query: Select[Any],
    *,
    time: Column[Any],
    key: Column[Any],
    limit: int,
    cursor: str | None,
    parameters: Mapping[str, Any] | None = None,
    either: Sequence[ColumnElement[bool]] = (),
) -> tuple[list[Row[Any]], bool, str | None]:
    """Return the rows of one page, whether there are more, and the cursor of the next page.

    `parameters` are those that `query` leaves open. Of the conditions `either` one must hold; each is to have an index
    in the order of the list, for the page is put together from the pages of each. The order is `time`, then `key`,
    both falling; a page costs the same wherever it starts. Raises `InvalidCursorError`.
    """
    if cursor is not None:
        moment, last = _decode(cursor, key.type.python_type)
        query = query.where(or_(time < moment, and_(time == moment, key < last)), time <= moment)
    parts = [query.where(one) for one in either] or [query]
    pages = [part.order_by(time.desc(), key.desc()).limit(limit + 1) for part in parts]
    rows = list(connection.execute(pages[0] if len(pages) == 1 else _all_of(pages), parameters))
    if len(pages) > 1:
        # A row for which several conditions hold is in the page of each.
        found = {getattr(row, key.name): row for row in rows}
        rows = sorted(found.values(), key=lambda row: (getattr(row, time.name), getattr(row, key.name)), reverse=True)
        rows = rows[: limit + 1]
    if len(rows) <= limit:
        return rows, False, None
    rows = rows[:limit]
    return rows, True, _encode(getattr(rows[-1], time.name), getattr(rows[-1], key.name))


def sought(column: Column[Any], *, there: bool) -> ColumnElement[Any]:
    """Return a column for a condition, which may look it up in an index only if it is `there` to be sought by.

    Without statistics SQLite takes every index for equally good: it would go through all confirmed payments of an
    organisation to find those of one wallet.
    """
    return column if there else func.coalesce(column, "")


def _all_of(pages: Sequence[Select[Any]]) -> CompoundSelect[Any]:
    # SQLite takes no order and limit in parts of a union unless they are selected from.
    return union_all(*(select(page.subquery()) for page in pages))


def _encode(moment: int, key: Any) -> str:
    return base64.urlsafe_b64encode(json.dumps([moment, key], separators=(",", ":")).encode()).decode().rstrip("=")


def _decode(cursor: str, kind: type) -> tuple[int, Any]:
    try:
        if len(cursor) > _MAX_CURSOR:
            raise InvalidCursorError("the cursor is too long")
        padded = cursor + "=" * (-len(cursor) % 4)
        value = json.loads(base64.b64decode(padded, altchars=b"-_", validate=True))
    except (ValueError, BinasciiError, RecursionError) as error:
        raise InvalidCursorError("the cursor is malformed") from error
    match value:
        case [moment, last] if type(moment) is int and type(last) is kind and _fits(moment) and _fits(last):
            return moment, last
    raise InvalidCursorError("the cursor is malformed")


def _fits(key: Any) -> bool:
    # All keys are ASCII; what is not may be no text that a database takes.
    return 0 <= key < _LIMIT if isinstance(key, int) else key.isascii()
