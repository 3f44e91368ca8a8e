"""Pages of lists, newest first. A cursor names the last row of the previous page."""

import base64
import hashlib
import json
from binascii import Error as BinasciiError
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

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

from app.core.pages import RecordPage
from app.database.records import records

T = TypeVar("T")
_MAX_CURSOR = 256
_SCOPE_LENGTH = 16
_LIMIT = 2**63
#: The parameter with the time of the request. It differs from page to page and does not belong to the cursor's list.
_NOW = "now"


class InvalidCursorError(ValueError):
    """The list did not issue this cursor."""


@dataclass(frozen=True, slots=True)
class Listing:
    """The statements of a list for one combination of filters. The values of the filters are parameters.

    Build each listing once: building a statement takes longer than executing it.
    """

    first: Mapping[str, Executable]
    """The statement for the first page, by dialect."""
    following: Mapping[str, Executable]
    name: str
    time: str
    key: str
    key_type: type


def listing(
    query: Select[Any], *, time: Column[Any], key: Column[Any], either: Sequence[ColumnElement[bool]] = ()
) -> Listing:
    """Return the statements of a list ordered by `time`, then `key`, both descending.

    `time` and `key` may be the same column. A row is listed if one of the conditions in `either` holds. At most one of
    them may hold for a row. Each condition needs an index in the order of the list. The database then merges the rows
    and reads little more than one page. No parameter of `query` may begin with `page_`.
    """
    moment, last = bindparam("page_moment", type_=time.type), bindparam("page_last", type_=key.type)
    # The second condition is redundant, but only it gives an index scan a starting point.
    after = query.where(or_(time < moment, and_(time == moment, key < last)), time <= moment)
    first, following = (
        {dialect: _page(one, time, key, either, dialect) for dialect in ("sqlite", "postgresql")}
        for one in (query, after)
    )
    return Listing(first, following, key.table.name, time.name, key.name, key.type.python_type)


def fetch_page(
    connection: Connection,
    record: Callable[..., T],
    found_by: Listing,
    parameters: Mapping[str, Any],
    *,
    limit: int,
    cursor: str | None,
) -> RecordPage[T]:
    """Return one page of a list, with its rows as records. A page costs the same at every position.

    A cursor is valid only for a list with the same parameters, except `now`. The organisation and the filters are among
    these parameters. Raises `InvalidCursorError` for any other cursor.
    """
    values = {**parameters, "page_limit": limit + 1}
    if cursor is not None:
        values["page_moment"], values["page_last"] = _decode(cursor, found_by, _scope(found_by, parameters))
    statements = found_by.first if cursor is None else found_by.following
    result = connection.execute(statements[connection.dialect.name], values)
    names, rows = result.keys(), result.all()
    more, rows = len(rows) > limit, rows[:limit]
    following = _encode(found_by, _scope(found_by, parameters), rows[-1]) if more else None
    return RecordPage(records(record, names, rows), more, following)


def unindexed(column: Column[Any]) -> ColumnElement[Any]:
    """Return a column in a form that no index can serve. Use it if another condition has a better index.

    Without statistics, SQLite considers all indexes equally good. To find one wallet's payments, it would scan all
    confirmed payments of the organisation.
    """
    return func.coalesce(column, column)


def _page(
    query: Select[Any], time: Column[Any], key: Column[Any], either: Sequence[ColumnElement[bool]], dialect: str
) -> Select[Any] | CompoundSelect[Any]:
    most = bindparam("page_limit", type_=Integer)
    # Name the key only once. Otherwise, an index with more columns after the key could not serve the order.
    order_columns = (key,) if time is key else (time, key)
    if len(either) <= 1:
        return query.where(*either).order_by(*(column.desc() for column in order_columns)).limit(most)
    # Order by position, because in a union SQLite cannot distinguish columns of the same name from two tables.
    names = [column.name for column in query.selected_columns]
    order: list[ColumnElement[Any]] = [
        desc(literal_column(str(names.index(column.name) + 1))) for column in order_columns
    ]
    parts = [query.where(one) for one in either]
    if dialect == "postgresql":
        # SQLite merges the parts. PostgreSQL would sort all of their rows, so limit each part.
        parts = [one.order_by(*(column.desc() for column in order_columns)).limit(most) for one in parts]
    return union_all(*parts).order_by(*order).limit(most)


def _scope(found_by: Listing, parameters: Mapping[str, Any]) -> str:
    """Return a short hash of a list's table and parameters. A cursor is invalid for lists with a different hash."""
    given = sorted((name, value) for name, value in parameters.items() if name != _NOW)
    return hashlib.sha256(json.dumps([found_by.name, given]).encode()).hexdigest()[:_SCOPE_LENGTH]


def _encode(found_by: Listing, scope: str, last: Row[Any]) -> str:
    text = json.dumps([scope, getattr(last, found_by.time), getattr(last, found_by.key)], separators=(",", ":"))
    return base64.urlsafe_b64encode(text.encode()).decode().rstrip("=")


def _decode(cursor: str, found_by: Listing, scope: str) -> tuple[int, Any]:
    try:
        if len(cursor) > _MAX_CURSOR:
            raise InvalidCursorError("the cursor is too long")
        padded = cursor + "=" * (-len(cursor) % 4)
        value = json.loads(base64.b64decode(padded, altchars=b"-_", validate=True))
    except (ValueError, BinasciiError, RecursionError) as error:
        raise InvalidCursorError("the cursor is malformed") from error
    match value:
        case [given, moment, last] if given == scope and type(moment) is int and type(last) is found_by.key_type:
            if _fits(moment) and _fits(last):
                return moment, last
    raise InvalidCursorError("the cursor is malformed")


def _fits(key: Any) -> bool:
    # All keys are ASCII. A database may reject other text.
    return 0 <= key < _LIMIT if isinstance(key, int) else key.isascii()
