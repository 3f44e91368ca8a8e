"""Reads rows of the audit log as stored, so that one altered row does not hide the others."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Boolean, LargeBinary, Select, Table, select
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.functions import FunctionElement

from app.core.actors import Actor
from app.core.timestamps import iso_ms


@dataclass(frozen=True, slots=True)
class UnreadableEntry:
    """A row of the audit log that was altered and is no longer a valid entry. `column` has an impossible value."""

    number: int
    column: str

    @property
    def reason(self) -> str:
        """A description of the alteration, in words."""
        return f"its column {self.column} was rewritten to a value that no entry has"


def raw_rows(table: Table) -> Select[Any]:
    """Return the query for all entries, with each column except `number` as bytes.

    Drivers may fail on altered values of other types. A row with a non-integer number is left out. The original entry
    then counts as missing.
    """
    others = (_Bytes(column).label(column.name) for column in table.c if column.name != "number")
    return select(table.c.number, *others).where(_IsInteger(table.c.number))


class _Bytes(FunctionElement[bytes]):
    """The bytes of a column, as stored."""

    type = LargeBinary()
    inherit_cache = True


class _IsInteger(FunctionElement[bool]):
    """True if a column holds an integer. In SQLite any column can hold any type of value."""

    type = Boolean()
    inherit_cache = True


@compiles(_Bytes)
def _as_blob(element: _Bytes, compiler: Any, **options: Any) -> str:
    return f"CAST({compiler.process(element.clauses, **options)} AS BLOB)"


@compiles(_Bytes, "postgresql")
def _as_bytea(element: _Bytes, compiler: Any, **options: Any) -> str:
    return f"convert_to(CAST({compiler.process(element.clauses, **options)} AS text), 'UTF8')"


@compiles(_IsInteger)
def _typeof(element: _IsInteger, compiler: Any, **options: Any) -> str:
    return f"typeof({compiler.process(element.clauses, **options)}) = 'integer'"


@compiles(_IsInteger, "postgresql")
def _always(_element: _IsInteger, _compiler: Any, **_options: Any) -> str:
    return "true"


def read_columns(table: Table, number: int, row: Mapping[str, bytes | None]) -> dict[str, Any] | UnreadableEntry:
    """Return the values of a row of `raw_rows` by column, or an `UnreadableEntry`."""
    values: dict[str, Any] = {"number": number}
    for name, value in row.items():
        try:
            if value is None and not table.c[name].nullable:
                return UnreadableEntry(number, name)
            values[name] = None if value is None else _READERS.get(name, bytes.decode)(value)
        except (ValueError, TypeError, OverflowError, OSError, RecursionError):
            return UnreadableEntry(number, name)
    return values


def _time(value: bytes) -> int:
    iso_ms(found := int(value))
    return found


def _actor(value: bytes) -> Actor:
    return Actor.parse(value.decode())


def _details(value: bytes) -> dict[str, Any]:
    found = json.loads(value.decode())
    # Python parses values that a response cannot contain, such as half a surrogate pair or `NaN`.
    json.dumps(found, ensure_ascii=False, allow_nan=False).encode()
    if not isinstance(found, dict):
        raise TypeError
    return found


_READERS: Mapping[str, Callable[[bytes], Any]] = {"timestamp": _time, "actor": _actor, "details": _details}
