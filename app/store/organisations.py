"""Organisations and their reserves."""

from dataclasses import asdict, dataclass
from typing import Any

from sqlalchemy import Connection, Row, Select, insert, select

from app.store.read_tables import reserves
from app.store.state_tables import organisations as table


@dataclass(frozen=True, slots=True)
class Organisation:
    """An organisation that this service serves; `org` is the address of its Org account."""

    org: str
    org_id: str
    name: str
    creator: str
    mint: str
    reserve: str
    created_at: int


@dataclass(frozen=True, slots=True)
class Reserve:
    """What the chain says about an organisation: its reserve's micro-USDC, its keys, and whether it is paused."""

    org: str
    balance: int
    slot: int
    sequence: int
    authority: str
    operator: str
    paused: bool


def insert_organisation(connection: Connection, organisation: Organisation) -> None:
    """Remember an organisation; from then on its events are projected."""
    connection.execute(insert(table).values(asdict(organisation)))


def organisation(connection: Connection, org: str) -> Organisation | None:
    """Return the organisation with this address."""
    return _one(connection, select(table).where(table.c.org == org))


def organisation_by_id(connection: Connection, org_id: str) -> Organisation | None:
    """Return the organisation with this id."""
    return _one(connection, select(table).where(table.c.org_id == org_id))


def organisations(connection: Connection) -> list[Organisation]:
    """Return all organisations, oldest first."""
    return [_record(row) for row in connection.execute(select(table).order_by(table.c.created_at, table.c.org))]


def reserve(connection: Connection, org: str) -> Reserve | None:
    """Return what the chain says about an organisation; `None` before its creation was seen there."""
    row = connection.execute(select(reserves).where(reserves.c.org == org)).one_or_none()
    return None if row is None else Reserve(**row._mapping)  # noqa: SLF001


def reserve_balance(connection: Connection, org: str) -> int:
    """Return the micro-USDC in the organisation's reserve."""
    found = reserve(connection, org)
    return 0 if found is None else found.balance


def _one(connection: Connection, query: Select[Any]) -> Organisation | None:
    row = connection.execute(query).one_or_none()
    return None if row is None else _record(row)


def _record(row: Row[Any]) -> Organisation:
    return Organisation(**row._mapping)  # noqa: SLF001
