"""Makes tables from the classes of the records that they store. Each column is declared only once, as a field.

A field's type determines the type of its column, and `| None` makes it nullable. `Annotated[int, U64()]` selects a
different column type, and can add a server default.
"""

from collections.abc import Sequence
from dataclasses import fields
from types import NoneType
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

from sqlalchemy import (
    JSON,
    BigInteger,
    Boolean,
    Column,
    Connection,
    DefaultClause,
    FetchedValue,
    LargeBinary,
    String,
    Table,
    false,
    insert,
)
from sqlalchemy.schema import SchemaItem

from app.core.actors import Actor
from app.database.columns import ActorText, metadata
from app.database.records import columns_of

FALSE = DefaultClause(false())
"""The server default of a flag that was added to a table with rows."""
_TYPES: dict[Any, Any] = {
    str: String,
    Literal: String,
    int: BigInteger,
    bool: Boolean,
    bytes: LargeBinary,
    Actor: ActorText,
    dict: JSON,
    list: JSON,
    tuple: JSON,
    Sequence: JSON,
}


_tables: dict[type, Table] = {}


def table_of(name: str, record: type, *items: SchemaItem, key: Sequence[str], **options: Any) -> Table:
    """Return the table of a dataclass. It has one column per field, in the same order, and the given key."""
    hints = get_type_hints(record, include_extras=True)
    columns = (_column(one.name, hints[one.name], primary=one.name in key) for one in fields(record))
    _tables[record] = table = Table(name, metadata, *columns, *items, **options)
    return table


def insert_record(connection: Connection, record: Any) -> None:
    """Insert a record into the table made from its class."""
    connection.execute(insert(_tables[type(record)]).values(columns_of(record)))


def _column(name: str, hint: Any, *, primary: bool) -> Column[Any]:
    hint, *given = get_args(hint) if get_origin(hint) is Annotated else (hint,)
    kinds = get_args(hint)
    nullable = NoneType in kinds
    kind = next(one for one in kinds if one is not NoneType) if nullable else hint
    if all(isinstance(one, FetchedValue) for one in given):
        given.insert(0, _TYPES[get_origin(kind) or kind])
    return Column(name, *given, primary_key=primary, nullable=nullable)
