"""Organisations and their reserves."""

from dataclasses import dataclass

from sqlalchemy import Connection, insert, select, update

from app.database.records import columns_of, fetch_all, fetch_one
from app.store.read_tables import reserves
from app.store.state_tables import organisations as table


@dataclass(frozen=True, slots=True)
class Organisation:
    """An organisation of this service; `org` is the address of its Org account.

    If `restricts_keys` is True, new API keys need an end and allowed addresses.
    """

    org: str
    org_id: str
    name: str
    creator: str
    mint: str
    reserve: str
    created_at: int
    restricts_keys: bool = False


@dataclass(frozen=True, slots=True)
class Reserve:
    """An organisation's on-chain state: the reserve's micro-USDC, the role addresses, and whether it is paused.

    If `authority_attaches` is True, attaching a policy needs the authority's signature in addition to the operator's.
    """

    org: str
    balance: int
    slot: int
    sequence: int
    authority: str
    operator: str
    arbiter: str
    verifier: str
    paused: bool
    authority_attaches: bool


def insert_organisation(connection: Connection, organisation: Organisation) -> None:
    """Store an organisation. From then on its events are projected, including earlier ones."""
    connection.execute(insert(table).values(columns_of(organisation)))


def organisation(connection: Connection, org: str) -> Organisation | None:
    """Return the organisation with this address, or None."""
    return fetch_one(connection, Organisation, select(table).where(table.c.org == org))


def set_key_restrictions(connection: Connection, org: str, *, required: bool) -> None:
    """Store whether new API keys of an organisation need an end and allowed addresses."""
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


def reserve_balance(connection: Connection, org: str) -> int:
    """Return the micro-USDC in the organisation's reserve, or 0 until its creation is seen on the chain."""
    found = reserve(connection, org)
    return 0 if found is None else found.balance
