"""Reads spending and refusals by groups, with the groups' names."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import date
from functools import cache
from typing import Any

from sqlalchemy import (
    BigInteger,
    CompoundSelect,
    Connection,
    Select,
    String,
    bindparam,
    cast,
    exists,
    func,
    literal,
    select,
    union_all,
)

from app.core.transaction_types import SPENT
from app.database.records import fetch_all
from app.database.statements import rows, scalar
from app.store.budgets import budget_details
from app.store.policies import policy_details
from app.store.read_tables import policies, recipients, transactions, wallets
from app.store.spending import LENGTHS, NUMBERS, TOTAL, table
from app.store.state_tables import domains, wallet_details

MOST_GROUPS = 100
"""Maximum number of groups in a response. Days and months have no such limit."""


@dataclass(frozen=True, slots=True)
class SpentBy:
    """The sums of a group: the spent micro-USDC, and the numbers of payments and refusals."""

    key: str
    spent: int
    payments: int
    refused: int


def spending(
    connection: Connection, org: str, by: str, periods: Sequence[str], keys: Collection[str] | None = None
) -> list[SpentBy]:
    """Return the sums of the given periods, grouped by day, by month, or by the keys of a kind.

    `by` is `day`, `month` or a kind, such as `wallet`. If `keys` are given, only these keys are summed. Days and months
    are in chronological order. Of other groups, the `MOST_GROUPS` with the most spending are returned.
    """
    given = {"org": org, "kind": TOTAL if by in LENGTHS else by, "periods": list(periods)}
    chosen = _grouped(by if by in LENGTHS else "key", keyed=keys is not None)
    return fetch_all(connection, SpentBy, chosen, given if keys is None else {**given, "keys": list(keys)})


def top_groups(
    connection: Connection, org: str, kinds: Collection[str], period: str, most: int
) -> dict[str, list[SpentBy]]:
    """Return up to `most` groups of each kind for a day or month, by kind.

    The groups with the most spending come first; among equals, those with the most refusals.
    """
    given = {"org": org, "period": period, "most": most}
    found: dict[str, list[SpentBy]] = {kind: [] for kind in kinds}
    for kind, *sums in rows(connection, _top(tuple(kinds)), given)[1]:
        found[kind].append(SpentBy(*sums))
    return found


def paid_before(connection: Connection, org: str, addresses: Collection[str], months: Collection[str]) -> set[str]:
    """Return the recipients among these addresses that were paid in one of these months."""
    given = {"org": org, "keys": list(addresses), "periods": list(months)}
    return {key for (key,) in rows(connection, _PAID_BEFORE, given)[1]} if addresses else set()


def was_paid(connection: Connection, org: str, address: str) -> bool:
    """Return True if the organisation ever paid this address."""
    return bool(scalar(connection, _WAS_PAID, {"org": org, "address": address}))


@dataclass(frozen=True, slots=True)
class PaidSoFar:
    """The payments and escrows to a recipient: their micro-USDC, number, and first and last Unix millisecond."""

    key: str
    spent: int
    payments: int
    first: int | None
    last: int | None


def paid_so_far(connection: Connection, org: str, addresses: Collection[str], today: date) -> dict[str, PaidSoFar]:
    """Return the payments to those recipients among these addresses that have any.

    For each recipient, reads one row per month with payments, and an index four times.
    """
    began = connection.scalar(_BEGAN, {"org": org}) if addresses else None
    if began is None:
        return {}
    first = date.fromisoformat(f"{began[:7]}-01")
    months = range(first.year * 12 + first.month - 1, today.year * 12 + today.month)
    periods = [f"{one // 12}-{one % 12 + 1:02}" for one in months]
    paid = {}
    for key, spent, payments, *times in rows(
        connection, _PAID_SO_FAR, {"org": org, "keys": list(addresses), "periods": periods}
    )[1]:
        known = [one for one in times if one is not None]
        paid[key] = PaidSoFar(key, spent, payments, min(known, default=None), max(known, default=None))
    return paid


def names(connection: Connection, org: str, by: str, keys: Collection[str]) -> dict[str, str]:
    """Return the names of wallets, budgets, policies, recipients or payees by key. Some have none.

    The name of a payee is the domain of a recipient, or the label of the vault at the address.
    """
    if by not in _NAMES:
        return {}
    found = rows(connection, _NAMES[by], {"org": org, "keys": list(keys)})[1]
    return {key: name for key, name in found if name is not None}


_KEYS = bindparam("keys", expanding=True, type_=String)
_MOST_FIRST = (table.c.spent.desc(), table.c.refused.desc(), table.c.key)
_PERIODS = bindparam("periods", expanding=True, type_=String)
_PAID_BEFORE = (
    select(table.c.key)
    .distinct()
    .where(table.c.org == bindparam("org"), table.c.kind == "recipient", table.c.period.in_(_PERIODS))
    .where(table.c.key.in_(_KEYS), table.c.payments > 0)
)
_WAS_PAID = select(
    exists().where(
        transactions.c.org == bindparam("org"),
        transactions.c.recipient_address == bindparam("address"),
        transactions.c.status == "confirmed",
        transactions.c.type.in_(SPENT),
    )
)
_BEGAN = select(func.min(table.c.period)).where(table.c.org == bindparam("org"), table.c.kind == TOTAL)
_PAID_SO_FAR = (
    select(
        table.c.key,
        *(cast(func.sum(table.c[name]), BigInteger).label(name) for name in ("spent", "payments")),
        *(
            select(end(transactions.c.timestamp))
            .where(transactions.c.org == bindparam("org"), transactions.c.recipient_address == table.c.key)
            .where(transactions.c.status == "confirmed", transactions.c.type == kind)
            .scalar_subquery()
            for end in (func.min, func.max)
            for kind in SPENT
        ),
    )
    .where(table.c.org == bindparam("org"), table.c.kind == "recipient", table.c.key.in_(_KEYS))
    .where(table.c.period.in_(_PERIODS))
    .group_by(table.c.key)
    .having(func.sum(table.c.payments) > 0)
)
_NAMES: dict[str, Select[Any] | CompoundSelect[Any]] = {
    by: select(key, name).where(key.in_(_KEYS), key.table.c.org == bindparam("org"), *joined)
    for by, key, name, joined in (
        ("wallet", wallet_details.c.wallet_id, wallet_details.c.label, ()),
        ("budget", budget_details.c.budget_id, budget_details.c.name, ()),
        ("policy", policies.c.policy_id, policy_details.c.name, [policy_details.c.address == policies.c.address]),
        ("vault", wallets.c.vault, wallet_details.c.label, [wallet_details.c.wallet_id == wallets.c.wallet_id]),
        ("recipient", recipients.c.address, domains.c.domain, [domains.c.domain_hash == recipients.c.domain_hash]),
    )
}
_NAMES["payee"] = union_all(_NAMES["recipient"], _NAMES["vault"])


@cache
def _top(kinds: Sequence[str]) -> CompoundSelect[Any]:
    """Return the statement of `top_groups`. Each part is a subquery, because it has a limit of its own."""
    sums = [table.c[name] for name in ("key", *NUMBERS)]
    parts = []
    for kind in kinds:
        mine = select(literal(kind).label("kind"), *sums).where(
            table.c.org == bindparam("org"), table.c.kind == kind, table.c.period == bindparam("period")
        )
        mine = mine.where(table.c.payments + table.c.refused > 0).order_by(*_MOST_FIRST)
        parts.append(select(mine.limit(bindparam("most", type_=BigInteger)).subquery()))
    return union_all(*parts)


@cache
def _grouped(by: str, *, keyed: bool) -> Select[Any]:
    key = table.c.key if by == "key" else func.substr(table.c.period, 1, LENGTHS[by])
    sums = [cast(func.sum(table.c[name]), BigInteger).label(name) for name in NUMBERS]
    query = select(key.label("key"), *sums).where(
        table.c.org == bindparam("org"),
        table.c.kind == bindparam("kind"),
        table.c.period.in_(_PERIODS),
    )
    if keyed:
        query = query.where(table.c.key.in_(_KEYS))
    query = query.group_by(key).having(func.sum(table.c.payments + table.c.refused) > 0)
    most = (func.sum(table.c.spent).desc(), func.sum(table.c.refused).desc(), table.c.key)
    return query.order_by(*most).limit(MOST_GROUPS) if by == "key" else query.order_by(key)
