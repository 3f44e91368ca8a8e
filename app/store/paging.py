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
    Executable,
    Integer,
    Row,
    Select,
    and_,
    bindparam,
    desc,
    func,
    literal_column,
    or_,
    union_all,
)

T = TypeVar("T")
_MAX_CURSOR = 256
_LIMIT = 2**63


class InvalidCursorError(ValueError):
    """A cursor that the list did not give."""


@dataclass(frozen=True, slots=True)
class RecordPage(Generic[T]):
    """One page of a list and the cursor of the next."""

    data: list[T]
    has_more: bool
    next_cursor: str | None


@dataclass(frozen=True, slots=True)
class Listing:
    """The statements of a list under one combination of conditions, whose values they leave open.

    To build a statement takes longer than to execute it: make each listing once.
    """

    first: Executable
    following: Executable
    name: str
    time: str
    key: str
    key_type: type


def listing(
    query: Select[Any], *, time: Column[Any], key: Column[Any], either: Sequence[ColumnElement[bool]] = ()
) -> Listing:
    """Return the statements of a list in the order `time`, then `key`, both falling.

    Of the conditions `either` one must hold, and no two may hold for one row. Each is to have an index in the order of
    the list: the database merges their rows, and reads hardly more of them than the page has. No parameter of `query`
    may begin with `page_`.
    """
    moment, last = bindparam("page_moment", type_=time.type), bindparam("page_last", type_=key.type)
    # The second condition follows from the first, and is one that an index can begin at.
    after = query.where(or_(time < moment, and_(time == moment, key < last)), time <= moment)
    first, following = (_page(one, time, key, either) for one in (query, after))
    return Listing(first, following, key.table.name, time.name, key.name, key.type.python_type)


def fetch_page(
    connection: Connection, found_by: Listing, parameters: Mapping[str, Any], *, limit: int, cursor: str | None
) -> tuple[Sequence[Row[Any]], bool, str | None]:
    """Return the rows of one page, whether there are more, and the cursor of the next page.

    `parameters` are those that the listing leaves open. A page costs the same wherever it starts. Raises
    `InvalidCursorError`.
    """
    values = {**parameters, "page_limit": limit + 1}
    if cursor is not None:
        values["page_moment"], values["page_last"] = _decode(cursor, found_by)
    rows = connection.execute(found_by.first if cursor is None else found_by.following, values).all()
    time, key = found_by.time, found_by.key
    if len(rows) <= limit:
        return rows, False, None
    rows = rows[:limit]
    return rows, True, _encode(found_by.name, getattr(rows[-1], time), getattr(rows[-1], key))


def sought(column: Column[Any], *, there: bool) -> ColumnElement[Any]:
    """Return a column for a condition, which may look it up in an index only if it is `there` to be sought by.

    Without statistics SQLite takes every index for equally good: it would go through all confirmed payments of an
    organisation to find those of one wallet.
    """
    return column if there else func.coalesce(column, "")


def _page(
    query: Select[Any], time: Column[Any], key: Column[Any], either: Sequence[ColumnElement[bool]]
) -> Select[Any] | CompoundSelect[Any]:
    most = bindparam("page_limit", type_=Integer)
    if len(either) <= 1:
        return query.where(*either).order_by(time.desc(), key.desc()).limit(most)
    # By their places: of the parts of a union SQLite does not tell columns of the same name in two tables apart.
    names = [column.name for column in query.selected_columns]
    order: list[ColumnElement[Any]] = [
        desc(literal_column(str(names.index(column.name) + 1))) for column in (time, key)
    ]
    return union_all(*(query.where(one) for one in either)).order_by(*order).limit(most)


def _encode(name: str, moment: int, key: Any) -> str:
    # The name of the list keeps its cursors out of others, where they would begin at rows that nobody asked for.
    text = json.dumps([name, moment, key], separators=(",", ":"))
    return base64.urlsafe_b64encode(text.encode()).decode().rstrip("=")


def _decode(cursor: str, found_by: Listing) -> tuple[int, Any]:
    try:
        if len(cursor) > _MAX_CURSOR:
            raise InvalidCursorError("the cursor is too long")
        padded = cursor + "=" * (-len(cursor) % 4)
        value = json.loads(base64.b64decode(padded, altchars=b"-_", validate=True))
    except (ValueError, BinasciiError, RecursionError) as error:
        raise InvalidCursorError("the cursor is malformed") from error
    match value:
        case [found_by.name, moment, last] if type(moment) is int and type(last) is found_by.key_type:
            if _fits(moment) and _fits(last):
                return moment, last
    raise InvalidCursorError("the cursor is malformed")


def _fits(key: Any) -> bool:
    # All keys are ASCII; what is not may be no text that a database takes.
    return 0 <= key < _LIMIT if isinstance(key, int) else key.isascii()
