"""The metadata, column types and `upsert`, shared by all tables."""

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

from sqlalchemy import BigInteger, Column, Connection, Dialect, Integer, MetaData, String, Table, Text
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.types import TypeDecorator

from app.core.actors import Actor
from app.database.statements import Prepared, defer

metadata = MetaData()

_SIGN_BIT = 2**63
_RANGE = 2**64


SERIAL = BigInteger().with_variant(Integer, "sqlite")
"""Type of an auto-incremented id. SQLite increments only `INTEGER` columns, which have 64 bits there."""


@compiles(String, "postgresql")
@compiles(Text, "postgresql")
def _in_the_order_of_bytes(element: String, compiler: Any, **options: Any) -> str:
    """Return the DDL of a text type. Columns sort texts by their bytes, as in SQLite, under any locale of the server.

    Lists are sorted by id too, and an index in a different order could not serve them.
    """
    name = compiler.visit_TEXT(element) if isinstance(element, Text) else compiler.visit_VARCHAR(element)
    return f'{name} COLLATE "C"' if isinstance(options.get("type_expression"), Column) else name


class U64(TypeDecorator[int]):
    """An unsigned 64-bit integer in a signed column.

    The databases have no unsigned type. Values below 2^63 are stored unchanged, so they can be sorted and added up.
    Every amount of USDC that can exist is below 2^63. Only limits and refused amounts can be larger; they wrap to
    negative numbers.
    """

    impl = BigInteger
    cache_ok = True

    def process_bind_param(self, value: int | None, dialect: Dialect) -> int | None:  # noqa: ARG002
        """Return the signed integer with the same bits."""
        if value is None or value < _SIGN_BIT:
            return value
        return value - _RANGE

    def process_result_value(self, value: Any, dialect: Dialect) -> int | None:  # noqa: ARG002
        """Return the unsigned integer with the same bits."""
        if value is None or value >= 0:
            return value  # type: ignore[no-any-return]
        return int(value) + _RANGE


class ActorText(TypeDecorator[Actor]):
    """An actor, stored as its text."""

    impl = String
    cache_ok = True

    def process_bind_param(self, value: Actor | None, dialect: Dialect) -> str | None:  # noqa: ARG002
        """Return the actor's text."""
        return None if value is None else str(value)

    def process_result_value(self, value: Any, dialect: Dialect) -> Actor | None:  # noqa: ARG002
        """Return the actor from its text."""
        return None if value is None else Actor.parse(value)


def upsert(
    connection: Connection, table: Table, values: Mapping[str, Any], *, keys: Sequence[str], replace: bool = True
) -> bool:
    """Insert a row, or update the row with the same `keys`. With `replace=False`, leave an existing row unchanged.

    Returns True if anything was written. SQLAlchemy has no portable upsert, but SQLite and PostgreSQL share the syntax.
    """
    return upsert_all(connection, table, [values], keys=keys, replace=replace) == 1


def upsert_all(
    connection: Connection,
    table: Table,
    rows: Sequence[Mapping[str, Any]],
    *,
    keys: Sequence[str],
    replace: bool = True,
) -> int:
    """Upsert many rows with the same columns, and return the number of rows written.

    Of several rows with the same keys, the last one wins. Rows left unchanged by ``replace=False`` are not counted.
    """
    if not rows:
        return 0
    statement = _upsert(connection.dialect, table, tuple(rows[0]), tuple(keys), replace)
    return statement.execute(connection, _different(rows, keys))


def upsert_later(
    connection: Connection,
    table: Table,
    rows: Sequence[Mapping[str, Any]],
    *,
    keys: Sequence[str],
    replace: bool = True,
) -> None:
    """Upsert rows like ``upsert_all``, but combine the statement with other deferred ones if possible."""
    if rows:
        statement = _upsert(connection.dialect, table, tuple(rows[0]), tuple(keys), replace)
        defer(connection, statement, _different(rows, keys))


def _different(rows: Sequence[Mapping[str, Any]], keys: Sequence[str]) -> Sequence[Mapping[str, Any]]:
    return list({tuple(row[key] for key in keys): row for row in rows}.values()) if len(rows) > 1 else rows


@lru_cache(maxsize=256)
def _upsert(dialect: Dialect, table: Table, names: tuple[str, ...], keys: tuple[str, ...], replace: bool) -> Prepared:
    statement: Any = (postgresql if dialect.name == "postgresql" else sqlite).insert(table)
    changed = {name: statement.excluded[name] for name in names if name not in keys} if replace else {}
    if changed:
        statement = statement.on_conflict_do_update(index_elements=keys, set_=changed)
    else:
        statement = statement.on_conflict_do_nothing(index_elements=keys)
    return Prepared(statement, dialect, names)
