"""Pages of lists: newest first, continued after the last row of the page before."""

import base64
import json
from binascii import Error as BinasciiError
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from sqlalchemy import Column, Connection, Row, Select, and_, or_

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
) -> tuple[list[Row[Any]], bool, str | None]:
    """Return the rows of one page, whether there are more, and the cursor of the next page.

    `parameters` are those that `query` leaves open. The order is `time`, then `key`, both falling; a page costs the
    same wherever it starts. Raises `InvalidCursorError`.
    """
    if cursor is not None:
        moment, last = _decode(cursor, key.type.python_type)
        query = query.where(or_(time < moment, and_(time == moment, key < last)), time <= moment)
    rows = list(connection.execute(query.order_by(time.desc(), key.desc()).limit(limit + 1), parameters))
    if len(rows) <= limit:
        return rows, False, None
    rows = rows[:limit]
    return rows, True, _encode(getattr(rows[-1], time.name), getattr(rows[-1], key.name))


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
