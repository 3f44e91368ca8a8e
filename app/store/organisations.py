"""Organisations and their reserves."""

from dataclasses import dataclass
from typing import Annotated

from sqlalchemy import Connection, UniqueConstraint, select, update

from app.database.columns import U64
from app.database.record_tables import FALSE, table_of
from app.database.records import fetch_all, fetch_one


@dataclass(frozen=True, slots=True)
class Organisation:
    """An organisation of this service; `org` is the address of its Org account.

    If `restricts_keys` is True, new API keys need an end and allowed addresses.
    """

    org: str
    """Address of the Org account."""
    org_id: str
    name: str
    creator: str
    mint: str
    reserve: str
    """Token account of the reserve."""
    created_at: int
    restricts_keys: Annotated[bool, FALSE] = False
    """True if new API keys need an end and allowed addresses."""


table = table_of(
    "organisations",
    Organisation,
    UniqueConstraint("org_id"),
    key=["org"],
)


@dataclass(frozen=True, slots=True)
class Reserve:
    """An organisation's on-chain state: the reserve's micro-USDC, the role addresses and whether it is paused.

    If `authority_attaches` is True, attaching a policy needs the authority's signature in addition to the operator's.
    """

    org: str
    balance: Annotated[int, U64()]
    slot: int
    """Slot in which the reserve had this balance."""
    sequence: Annotated[int, U64()]
    """Number of the Org's last event."""
    authority: str
    operator: str
    arbiter: str
    verifier: str
    paused: bool
    authority_attaches: bool
    """True if the authority co-signs attachments."""


reserves = table_of(
    "reserves",
    Reserve,
    key=["org"],
)


def organisation(connection: Connection, org: str) -> Organisation | None:
    """Return the organisation with this address, or None."""
    return fetch_one(connection, Organisation, select(table).where(table.c.org == org))


def set_key_restrictions(connection: Connection, org: str, *, required: bool) -> None:
    """Set or lift the requirement that an organisation's new API keys have an end and allowed addresses."""
    connection.execute(update(table).where(table.c.org == org).values(restricts_keys=required))


def organisation_by_id(connection: Connection, org_id: str) -> Organisation | None:
    """Return the organisation with this id, or None."""
    return fetch_one(connection, Organisation, select(table).where(table.c.org_id == org_id))


def organisations(connection: Connection) -> list[Organisation]:
    """Return all organisations, oldest first."""
    return fetch_all(connection, Organisation, select(table).order_by(table.c.created_at, table.c.org))


def reserve(connection: Connection, org: str) -> Reserve | None:
    """Return an organisation's on-chain state, or None until its creation is seen on the chain."""
    return fetch_one(connection, Reserve, select(reserves).where(reserves.c.org == org))


def name_and_pause(connection: Connection, org: str) -> tuple[str, bool]:
    """Return an organisation's name, or "" if it is unknown, and whether the organisation is paused."""
    joined = table.outerjoin(reserves, reserves.c.org == table.c.org)
    found = connection.execute(select(table.c.name, reserves.c.paused).select_from(joined).where(table.c.org == org))
    row = found.first()
    return ("", False) if row is None else (row.name, bool(row.paused))


def reserve_balance(connection: Connection, org: str) -> int:
    """Return the micro-USDC in the organisation's reserve, or 0 until its creation is seen on the chain."""
    found = reserve(connection, org)
    return 0 if found is None else found.balance
