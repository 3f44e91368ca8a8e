"""Allowances: money that a vault has set aside for a delegate."""

from collections.abc import Collection
from dataclasses import dataclass
from functools import cache
from typing import Annotated, ClassVar

from sqlalchemy import (
    BigInteger,
    ColumnElement,
    Connection,
    Index,
    UniqueConstraint,
    bindparam,
    delete,
    func,
    or_,
    select,
    update,
)

from app.core.pages import RecordPage
from app.database.columns import U64, upsert
from app.database.paging import Listing, fetch_page, listing, unindexed
from app.database.record_tables import table_of
from app.database.records import columns_of, fetch_all, fetch_one
from app.store.attempts import table as attempts
from app.store.organisations import reserves
from app.store.read_tables import budgets, policies, wallets

PENDING, OUTSTANDING, SETTLED = "pending", "outstanding", "settled"
"""Statuses.

`pending`: the grant has not been seen on the chain yet; `outstanding`: the delegate can pay; `settled`: the rest is
back in the vault.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class AllowanceRecord:
    """An allowance. Amounts are micro-USDC, times Unix seconds, `created_at` milliseconds; `reference` is hex.

    While the allowance is outstanding, the vault still owns the money in the token account `tokens`. `delegate` may
    transfer it and should pay `destination`, a token account owned by `recipient`. The fields after `signature` are
    null until settlement. `transfers` holds the signatures of the delegate's transfers, and is null until they have
    been read.
    """

    currency: ClassVar = "USDC"
    allowance_id: str
    org: str
    address: str
    wallet_id: str
    vault: str
    policy: str
    """Address of the policy that allowed the grant."""
    policy_version: Annotated[int | None, U64()] = None
    """Version of the policy that allowed the grant; null while pending."""
    recipient: str
    """Owner of the token account `destination`."""
    destination: str
    """Token account that the delegate should pay."""
    delegate: str
    tokens: str
    """Token account that the delegate pays from."""
    payer: str
    """Address that gets the rent of the allowance's accounts back."""
    reference: str
    amount: Annotated[int, U64()]
    counter: Annotated[int, U64()]
    sequence: Annotated[int | None, U64()] = None
    """Sequence number of the vault's event for the grant; null while pending."""
    status: str
    """The status: `pending`, `outstanding` or `settled`."""
    expires_at: int
    """Expiry of the allowance in Unix seconds."""
    due_at: int | None = None
    """Unix second when the allowance should be settled; null while pending and once settled."""
    created_at: int
    tx_id: str | None = None
    """Id of the transaction that granted the allowance."""
    signature: str | None = None
    spent: Annotated[int | None, U64()] = None
    returned: Annotated[int | None, U64()] = None
    """Amount that the settlement moved back into the vault."""
    settled_at: int | None = None
    """Time of the settlement in Unix seconds."""
    settlement_signature: str | None = None
    transfers: list[str] | None = None
    """Signatures of the delegate's transfers; null until they are read."""
    budget: str | None = None
    """Address of the shared budget that also counts the amount; null while pending or without a budget."""


table = table_of(
    "allowances",
    AllowanceRecord,
    UniqueConstraint("address"),
    Index("allowances_by_wallet", "wallet_id", "created_at", "allowance_id"),
    Index("allowances_by_wallet_status", "wallet_id", "status", "created_at", "allowance_id"),
    Index("allowances_by_transaction", "tx_id"),
    Index("allowances_due", "due_at"),
    key=["allowance_id"],
)


def allowance(connection: Connection, org: str, allowance_id: str) -> AllowanceRecord | None:
    """Return the organisation's allowance with this id, or None."""
    return fetch_one(connection, AllowanceRecord, _BY_ID, {"org": org, "key": allowance_id})


def allowance_of_transaction(connection: Connection, org: str, tx_id: str) -> AllowanceRecord | None:
    """Return the allowance that this transaction granted or will grant, or None."""
    return fetch_one(connection, AllowanceRecord, _BY_TRANSACTION, {"org": org, "key": tx_id})


def allowances_of_transactions(connection: Connection, tx_ids: Collection[str]) -> list[AllowanceRecord]:
    """Return the allowances that these transactions granted or will grant."""
    return fetch_all(connection, AllowanceRecord, select(table).where(table.c.tx_id.in_(tx_ids))) if tx_ids else []


def allowances(
    connection: Connection,
    org: str,
    wallet_id: str,
    *,
    status: str | None = None,
    limit: int = 20,
    cursor: str | None = None,
) -> RecordPage[AllowanceRecord]:
    """Return a wallet's allowances, newest first. Raises `InvalidCursorError`."""
    parameters = {"org": org, "wallet_id": wallet_id, "status": status}
    chosen = _listing(with_status=status is not None)
    return fetch_page(connection, AllowanceRecord, chosen, parameters, limit=limit, cursor=cursor)


def count_granted(connection: Connection, wallet_id: str, since: int) -> int:
    """Return the number of a wallet's allowances created since a Unix millisecond, including pending ones."""
    mine = (table.c.wallet_id == wallet_id, table.c.created_at >= since)
    return connection.scalar(select(func.count()).where(*mine)) or 0


def due_allowances(connection: Connection, now: int) -> list[AllowanceRecord]:
    """Return all organisations' allowances to settle at the Unix second `now`, earliest expiry first.

    An allowance is due once it has expired or the basis of its grant is gone: the vault or a budget that counts
    the amount was frozen, the organisation paused, or the vault's session, its policy or the policy's version changed.
    """
    return fetch_all(connection, AllowanceRecord, _DUE, {"now": now})


def outstanding_allowances(connection: Connection, org: str, wallet_id: str | None) -> list[AllowanceRecord]:
    """Return an organisation's outstanding allowances, earliest expiry first.

    If `wallet_id` is given, return only those granted by this wallet.
    """
    if wallet_id is None:
        return fetch_all(connection, AllowanceRecord, _OUTSTANDING, {"org": org})
    return fetch_all(connection, AllowanceRecord, _OUTSTANDING_OF_WALLET, {"org": org, "wallet": wallet_id})


def holding_allowances(connection: Connection, org: str, wallet_id: str, budget: str | None) -> list[AllowanceRecord]:
    """Return the outstanding allowances of a wallet or, if `budget` is given, those that this budget counts.

    The earliest expiry comes first.
    """
    if budget is None:
        return outstanding_allowances(connection, org, wallet_id)
    return fetch_all(connection, AllowanceRecord, _OUTSTANDING_OF_BUDGET, {"org": org, "budget": budget})


def insert_pending_allowance(connection: Connection, new: AllowanceRecord) -> None:
    """Add an allowance in the transaction that stores the attempt to grant it, unless the chain already has it."""
    connection.execute(delete(table).where(table.c.allowance_id == new.allowance_id, table.c.status == PENDING))
    upsert(connection, table, columns_of(new), keys=["allowance_id"], replace=False)


def delete_pending_allowance(connection: Connection, tx_id: str) -> None:
    """Delete the pending allowance of a grant that has failed."""
    connection.execute(delete(table).where(table.c.tx_id == tx_id, table.c.status == PENDING))


def reset_allowances(connection: Connection, mine: ColumnElement[bool]) -> None:
    """Undo the projection of the allowances matched by `mine`.

    Rows with a pending grant become pending again; all other rows are deleted.
    """
    pending = select(attempts.c.tx_id).where(attempts.c.status == PENDING)
    connection.execute(delete(table).where(mine, or_(table.c.tx_id.is_(None), table.c.tx_id.not_in(pending))))
    connection.execute(update(table).where(mine).values(status=PENDING, due_at=None, **dict.fromkeys(OF_SETTLEMENT)))


OF_SETTLEMENT = ("spent", "returned", "settled_at", "settlement_signature", "transfers")
"""Columns that are null until the allowance is settled."""
# Built once: building a statement takes longer than executing it.
_ALLOWANCES = select(table).where(table.c.org == bindparam("org"))
_BY_ID = _ALLOWANCES.where(table.c.allowance_id == bindparam("key"))
_BY_TRANSACTION = _ALLOWANCES.where(table.c.tx_id == bindparam("key"))
# Few allowances are outstanding, and the index by `due_at` finds them.
_OUTSTANDING = _ALLOWANCES.where(table.c.due_at.is_not(None)).order_by(table.c.due_at, table.c.allowance_id)
_OUTSTANDING_OF_WALLET = _OUTSTANDING.where(table.c.wallet_id == bindparam("wallet"))
_LEVELS = select(budgets.c.address).where(bindparam("budget").in_([budgets.c.address, budgets.c.parent]))
_OUTSTANDING_OF_BUDGET = _OUTSTANDING.where(table.c.budget.in_(_LEVELS))
_BUDGET, _PARENT = budgets.alias(), budgets.alias()
_DUE = (
    select(table)
    .join(wallets, wallets.c.wallet_id == table.c.wallet_id)
    .join(reserves, reserves.c.org == table.c.org)
    .outerjoin(policies, policies.c.address == table.c.policy)
    .outerjoin(_BUDGET, _BUDGET.c.address == table.c.budget)
    .outerjoin(_PARENT, _PARENT.c.address == _BUDGET.c.parent)
    .where(
        table.c.due_at.is_not(None),
        or_(
            table.c.due_at <= bindparam("now", type_=BigInteger),
            wallets.c.frozen != 0,
            _BUDGET.c.frozen,
            _PARENT.c.frozen,
            reserves.c.paused,
            wallets.c.config_sequence > table.c.sequence,
            policies.c.version > table.c.policy_version,
        ),
    )
    .order_by(table.c.due_at, table.c.allowance_id)
)


@cache
def _listing(*, with_status: bool) -> Listing:
    query = select(table).where(unindexed(table.c.org) == bindparam("org"), table.c.wallet_id == bindparam("wallet_id"))
    if with_status:
        query = query.where(table.c.status == bindparam("status"))
    return listing(query, time=table.c.created_at, key=table.c.allowance_id)
