"""Column types, the metadata that every table belongs to, and `upsert`."""

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

from sqlalchemy import BigInteger, Connection, Dialect, Executable, MetaData, Table
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.types import TypeDecorator

metadata = MetaData()

_SIGN_BIT = 2**63
_RANGE = 2**64


class U64(TypeDecorator[int]):
    """An unsigned 64-bit integer in a signed column.

    Databases have no unsigned type. Values below 2^63, which covers every amount of USDC that can exist, are stored
    as they are, so that they sort and add up; only limits and refused amounts can be larger and then wrap.
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


def upsert(
    connection: Connection, table: Table, values: Mapping[str, Any], *, keys: Sequence[str], replace: bool = True
) -> None:
    """Insert a row, or where `keys` are taken replace what it gives, or with `replace=False` leave it as it is.

    The one statement that the portable part of SQLAlchemy lacks; SQLite and PostgreSQL spell it alike.
    """
    upsert_all(connection, table, [values], keys=keys, replace=replace)


def upsert_all(
    connection: Connection,
    table: Table,
    rows: Sequence[Mapping[str, Any]],
    *,
    keys: Sequence[str],
    replace: bool = True,
) -> None:
    """Do the same for many rows, which must give the same columns."""
    if rows:
        statement = _upsert_statement(connection.dialect.name, table, tuple(rows[0]), tuple(keys), replace)
        connection.execute(statement, rows)


@lru_cache(maxsize=256)
def _upsert_statement(
    dialect: str, table: Table, names: tuple[str, ...], keys: tuple[str, ...], replace: bool
) -> Executable:
    # To build a statement costs more than to execute it, so each is built once.
    statement: Any = (postgresql if dialect == "postgresql" else sqlite).insert(table)
    changed = {name: statement.excluded[name] for name in names if name not in keys} if replace else {}
    built: Executable
    if changed:
        built = statement.on_conflict_do_update(index_elements=keys, set_=changed)
    else:
        built = statement.on_conflict_do_nothing(index_elements=keys)
    return built
