"""The read models' values that reconciliation compares with the chain, and the differences it has reported."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import (
    BindParameter,
    Connection,
    bindparam,
    delete,
    false,
    func,
    or_,
    select,
    union_all,
)

from app.database.columns import upsert
from app.database.record_tables import table_of
from app.database.records import columns_of, fetch_all
from app.store.allowances import OUTSTANDING
from app.store.allowances import table as allowances
from app.store.escrows import OPEN
from app.store.organisations import reserves
from app.store.organisations import table as organisations
from app.store.read_tables import escrows, wallets
from app.store.wallets import HELD


@dataclass(frozen=True, slots=True)
class Difference:
    """A reported difference that still exists."""

    address: str
    """Address of the Org, vault or escrow account."""
    org: str
    subject: str
    """Kind of the object: `reserve`, `wallet` or `escrow`."""
    wallet_id: str | None
    escrow_id: str | None
    found: dict[str, Any]
    """The differing fields, each with its value on the chain and in the service."""
    since: int
    """Time when the difference was reported, in Unix milliseconds."""


table = table_of(
    "differences",
    Difference,
    key=["address"],
)


@dataclass(frozen=True, slots=True)
class ReserveModel:
    """The values of an organisation in the read models, as of `slot` and `sequence`."""

    org: str
    balance: int
    paused: bool
    authority: str
    operator: str
    arbiter: str
    verifier: str
    slot: int
    sequence: int


@dataclass(frozen=True, slots=True)
class WalletModel:
    """The values of a wallet in the read models, as of `balance_slot` and `sequence`."""

    vault: str
    balance: int
    frozen: int
    archived: bool
    policy: str
    budget: str | None
    session_authority: str | None
    balance_slot: int
    sequence: int
    open_escrows: int
    open_allowances: int
    held: int


@dataclass(frozen=True, slots=True)
class EscrowModel:
    """The values of an escrow in the read models. `owes` is True if a share of a split escrow is still owed."""

    address: str
    org: str
    escrow_id: str
    wallet_id: str
    vault: str
    amount: int
    status: str
    owes: bool


@dataclass(frozen=True, slots=True)
class Vault:
    """The vault of a wallet, and the vault's token account."""

    org: str
    vault: str
    tokens: str


# A split escrow still holds the share of a party that could not be paid.
_OWES = or_(func.coalesce(escrows.c.receiver_owed, false()), func.coalesce(escrows.c.vault_owed, false()))
_HOLDS_MONEY = or_(escrows.c.status.in_(OPEN), _OWES)
_ESCROW = [
    *(escrows.c[name] for name in ("address", "org", "escrow_id", "wallet_id", "vault", "amount", "status")),
    _OWES.label("owes"),
]
_RESERVE = [reserves.c[name] for name in ReserveModel.__dataclass_fields__]
_OPEN_OF = (
    select(func.count())
    .where(escrows.c.wallet_id == wallets.c.wallet_id, _HOLDS_MONEY)
    .scalar_subquery()
    .label("open_escrows")
)
_OUTSTANDING_OF = (
    select(func.count())
    .where(allowances.c.wallet_id == wallets.c.wallet_id, allowances.c.status == OUTSTANDING)
    .scalar_subquery()
    .label("open_allowances")
)
_WALLET = [wallets.c[name] for name in WalletModel.__dataclass_fields__ if name in wallets.c]
_KEYS: BindParameter[Any] = bindparam("keys", expanding=True)
_RESERVES = select(*_RESERVE).where(reserves.c.org.in_(_KEYS))
_WALLETS = select(*_WALLET, _OPEN_OF, _OUTSTANDING_OF, HELD).where(wallets.c.vault.in_(_KEYS))
_ESCROWS = select(*_ESCROW).where(escrows.c.address.in_(_KEYS))
_OF_THIS_SERVICE = select(organisations.c.org)
_VAULTS = select(wallets.c.org, wallets.c.vault, wallets.c.tokens).where(wallets.c.org.in_(_OF_THIS_SERVICE))
_OWNERS = union_all(
    select(organisations.c.org.label("address"), organisations.c.org).where(organisations.c.org.in_(_KEYS)),
    select(wallets.c.vault, wallets.c.org).where(wallets.c.vault.in_(_KEYS), wallets.c.org.in_(_OF_THIS_SERVICE)),
)
# An escrow that holds money has a due time, so that an index finds it among all past escrows.
_OPEN_ESCROWS = select(*_ESCROW).where(escrows.c.org.in_(_OF_THIS_SERVICE), _HOLDS_MONEY, escrows.c.due_at >= 0)


def vaults(connection: Connection) -> list[Vault]:
    """Return the vaults of all wallets of this service's organisations."""
    return fetch_all(connection, Vault, _VAULTS)


def owners(connection: Connection, addresses: Sequence[str]) -> dict[str, str]:
    """Return the organisation of each of these vaults and organisations, by address. Unknown addresses are left out."""
    return {one.address: one.org for one in connection.execute(_OWNERS, {"keys": list(addresses)})}


def open_escrows(connection: Connection) -> list[EscrowModel]:
    """Return the escrows of this service's organisations that hold money."""
    return fetch_all(connection, EscrowModel, _OPEN_ESCROWS)


def reserve_models(connection: Connection, orgs: Sequence[str]) -> dict[str, ReserveModel]:
    """Return the read models of these organisations, by address."""
    return {one.org: one for one in fetch_all(connection, ReserveModel, _RESERVES, {"keys": list(orgs)})}


def wallet_models(connection: Connection, addresses: Sequence[str]) -> dict[str, WalletModel]:
    """Return the read models of these vaults, by address."""
    return {one.vault: one for one in fetch_all(connection, WalletModel, _WALLETS, {"keys": list(addresses)})}


def escrow_models(connection: Connection, addresses: Sequence[str]) -> dict[str, EscrowModel]:
    """Return the read models of these escrows, by address."""
    return {one.address: one for one in fetch_all(connection, EscrowModel, _ESCROWS, {"keys": list(addresses)})}


def differences(connection: Connection) -> dict[str, Difference]:
    """Return the reported differences that still exist, by address."""
    return {one.address: one for one in fetch_all(connection, Difference, select(table))}


def count_differences(connection: Connection) -> int:
    """Return the number of reported differences that still exist."""
    return connection.scalar(select(func.count()).select_from(table)) or 0


def put_difference(connection: Connection, difference: Difference) -> bool:
    """Store a difference. Return False if an equal difference is already stored."""
    before = connection.scalar(select(table.c.found).where(table.c.address == difference.address))
    if before == difference.found:
        return False
    upsert(connection, table, columns_of(difference), keys=["address"])
    return True


def delete_difference(connection: Connection, address: str) -> bool:
    """Delete a difference. Return False if there is none."""
    return connection.execute(delete(table).where(table.c.address == address)).rowcount > 0
