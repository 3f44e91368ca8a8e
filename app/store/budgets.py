"""Budgets that wallets share: limits from the chain, names from the service."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, fields
from typing import Any

from sqlalchemy import Connection, RowMapping, Select, UniqueConstraint, bindparam, func, or_, select

from app.chain.rules import BudgetLimits
from app.database.columns import upsert
from app.database.record_tables import table_of
from app.database.records import columns_of, fetch_all, fetch_one
from app.store.read_tables import budgets as table
from app.store.read_tables import policies, wallets

_LIMITS = tuple(field.name for field in fields(BudgetLimits))


@dataclass(frozen=True, slots=True)
class BudgetRecord:
    """A budget. `unlimited` is the number of its wallets whose policy has no daily limit or no hourly limit.

    Each of these wallets might spend the whole budget alone. `parent` is the address of the budget that this one is
    part of. `parent_id` and `parent_version` belong to the parent. `budget_count` is the number of this budget's parts.
    """

    budget_id: str
    org: str
    address: str
    key: bytes
    name: str
    limits: BudgetLimits
    parent: str | None
    parent_id: str | None
    parent_version: int | None
    frozen: bool
    frozen_sequence: int
    version: int
    wallet_count: int
    budget_count: int
    unlimited: int
    created_at: int
    closed: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class BudgetDetails:
    """The details of a budget known only to the service."""

    address: str
    budget_id: str
    org: str
    name: str
    created_at: int


budget_details = table_of(
    "budget_details",
    BudgetDetails,
    UniqueConstraint("org", "budget_id"),
    key=["address"],
)


def put_budget_details(connection: Connection, details: BudgetDetails) -> None:
    """Store or replace a budget's details, in the transaction that stores the attempt to create the budget."""
    upsert(connection, budget_details, columns_of(details), keys=["address"])


def budget(connection: Connection, org: str, budget_id: str) -> BudgetRecord | None:
    """Return the organisation's budget with this id, closed or not, or None."""
    return fetch_one(connection, _record, _BY_ID, {"org": org, "key": budget_id})


def budgets(connection: Connection, org: str) -> list[BudgetRecord]:
    """Return the organisation's open budgets, oldest first."""
    return fetch_all(connection, _record, _OPEN, {"org": org})


def wallets_in(connection: Connection, org: str, address: str, limit: int) -> Sequence[str]:
    """Return up to ``limit`` ids of an organisation's unarchived wallets in a budget, most recently used first."""
    mine = (wallets.c.org == org, wallets.c.budget == address, ~wallets.c.archived)
    newest = func.coalesce(wallets.c.last_transaction_at, wallets.c.created_at).desc()
    query = select(wallets.c.wallet_id).where(*mine).order_by(newest, wallets.c.wallet_id)
    return connection.scalars(query.limit(limit)).all()


def limits_of_vaults(connection: Connection, vaults: Collection[str]) -> Sequence[RowMapping]:
    """Return each vault's monthly limit and the limits of its budget.

    A vault has one row for its budget and, if the budget has a parent, one for the parent. Each row has the ids and
    addresses of the wallet and the budget. A vault without a budget has one row, in which the budget is null.
    """
    return connection.execute(_OF_VAULTS, {"vaults": list(vaults)}).mappings().all()


def _query() -> Select[Any]:
    attached = (
        select(func.count())
        .select_from(wallets)
        .where(wallets.c.org == table.c.org, wallets.c.budget == table.c.address, ~wallets.c.archived)
    )
    lax = attached.join(policies, policies.c.address == wallets.c.policy).where(
        or_(policies.c.max_per_day.is_(None), policies.c.velocity_cap.is_(None))
    )
    above, below = table.alias(), table.alias()
    parts = select(func.count()).select_from(below).where(below.c.parent == table.c.address, ~below.c.closed)
    return (
        select(
            table,
            budget_details.c.name,
            above.c.budget_id.label("parent_id"),
            above.c.version.label("parent_version"),
            parts.scalar_subquery().label("budget_count"),
            attached.scalar_subquery().label("wallet_count"),
            lax.scalar_subquery().label("unlimited"),
        )
        .outerjoin(budget_details, budget_details.c.address == table.c.address)
        .outerjoin(above, above.c.address == table.c.parent)
        .where(table.c.org == bindparam("org"))
    )


# Built once: building a statement takes longer than executing it.
_BUDGETS = _query()
_BY_ID = _BUDGETS.where(table.c.budget_id == bindparam("key"))
_OPEN = _BUDGETS.where(~table.c.closed).order_by(table.c.created_at, table.c.budget_id)


def _record(*, name: str | None, **values: Any) -> BudgetRecord:
    limits = BudgetLimits(**{limit: values.pop(limit) for limit in _LIMITS})
    return BudgetRecord(name=name or values["budget_id"], limits=limits, **values)


_OWN = table.alias()
_OF_VAULTS = (
    select(
        *(wallets.c[name] for name in ("org", "wallet_id", "vault")),
        policies.c.max_per_month,
        budget_details.c.name,
        *(table.c.address.label("budget"), table.c.budget_id, table.c.max_total.label("budget_total")),
        *(table.c.max_per_day.label("budget_day"), table.c.max_per_month.label("budget_month")),
    )
    .join(policies, policies.c.address == wallets.c.policy)
    .outerjoin(_OWN, _OWN.c.address == wallets.c.budget)
    .outerjoin(table, table.c.address.in_([_OWN.c.address, _OWN.c.parent]))
    .outerjoin(budget_details, budget_details.c.address == table.c.address)
    .where(wallets.c.vault.in_(bindparam("vaults", expanding=True)))
)
