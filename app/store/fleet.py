"""Balances and spending of an organisation's wallets: totals, and one page of the wallets in any order."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

from sqlalchemy import (
    BigInteger,
    ColumnElement,
    Connection,
    Select,
    String,
    bindparam,
    case,
    cast,
    func,
    literal,
    or_,
    select,
    true,
    union_all,
)

from app.core.timestamps import DAY
from app.core.transaction_types import REFUSED, SPENT
from app.database.paging import unindexed
from app.database.records import fetch_all
from app.store.organisations import reserves
from app.store.read_tables import REFUSALS, escrows, policies, transactions
from app.store.read_tables import wallets as table
from app.store.state_tables import wallet_details as details
from app.store.state_tables import wallet_tags
from app.store.wallets import STATUS, WALLETS, WalletRecord, wallet_record

FleetOrder = Literal["label", "status", "balance", "spent", "active", "created"]
FLEET_ORDERS: tuple[FleetOrder, ...] = get_args(FleetOrder)
_WEEK = 7
_MOST_CAP = 10**14
"""Largest cap per month that is added up, in micro-USDC. The sum of ten thousand such caps fits a 64-bit integer."""


@dataclass(frozen=True, slots=True)
class FleetTotals:
    """Totals of an organisation; amounts in micro-USDC.

    `wallets`, `balance` and `frozen` leave out archived wallets; the other totals include them. `today` means the last
    24 hours, as policies count them, and `week` the last seven days. `refused_today` counts payments, escrows and
    allowances. `summed` is the number of transactions in the sums.
    """

    wallets: int
    balance: int
    frozen: int
    spent_today: int
    spent_week: int
    refused_today: int
    open_escrows: int
    reserve: int
    paused: bool
    summed: int

    @property
    def days_left(self) -> int | None:
        """Number of days that the reserve lasts at the pace of the last seven days; None if nothing was spent."""
        return None if self.spent_week == 0 else self.reserve * _WEEK // self.spent_week


@dataclass(frozen=True, slots=True)
class MonthlyCaps:
    """The total of all wallets' monthly caps, in micro-USDC, and the number of wallets without a cap.

    Archived wallets are left out. A cap above 100 million USDC counts as none.
    """

    wallets: int
    caps: int
    uncapped: int


@dataclass(frozen=True, slots=True)
class FleetFilter:
    """Narrows the fleet. `search` matches a part of the label or agent id, or a whole vault address or wallet id.

    Without a `status`, archived wallets are left out.
    """

    search: str = ""
    status: str | None = None
    tag: str | None = None


@dataclass(frozen=True, slots=True)
class WalletSpent:
    """A wallet's spending under its policy, in micro-USDC: in the last 24 hours, and since the start of the month.

    `since` is the Unix millisecond of the oldest payment within the 24 hours, `summed` the number of payments.
    """

    wallet_id: str
    day: int
    month: int
    since: int | None
    summed: int


@dataclass(frozen=True, slots=True)
class DaySpent:
    """A wallet's spending in micro-USDC and number of refusals on a UTC day; `day` counts days since 1970-01-01.

    `summed` is the number of transactions.
    """

    day: int
    amount: int
    refused: int
    summed: int


_NOW = bindparam("now", type_=BigInteger)
_ORG = bindparam("org", type_=String)
_SPENT = (transactions.c.org == _ORG, transactions.c.status == "confirmed", transactions.c.type.in_(SPENT))


_WEEKS = (
    select(
        func.coalesce(func.sum(case((transactions.c.timestamp > _NOW - DAY, transactions.c.amount), else_=0)), 0).label(
            "today"
        ),
        func.coalesce(func.sum(transactions.c.amount), 0).label("week"),
        func.count().label("summed"),
    )
    .where(*_SPENT, transactions.c.timestamp > _NOW - _WEEK * DAY)
    .subquery()
)
# Built once: building these statements takes longer than executing them.
_TOTALS = select(
    func.count().label("wallets"),
    func.coalesce(func.sum(table.c.balance), 0).label("balance"),
    func.coalesce(func.sum(case((table.c.frozen != 0, 1), else_=0)), 0).label("frozen"),
    func.coalesce(func.max(_WEEKS.c.today), 0).label("spent_today"),
    func.coalesce(func.max(_WEEKS.c.week), 0).label("spent_week"),
    func.coalesce(func.max(_WEEKS.c.summed), 0).label("summed"),
    select(func.coalesce(func.sum(REFUSALS), 0))
    .where(transactions.c.org == _ORG, transactions.c.status == "blocked", transactions.c.type.in_(REFUSED))
    .where(transactions.c.timestamp > _NOW - DAY)
    .scalar_subquery()
    .label("refused_today"),
    select(func.count())
    .where(escrows.c.org == _ORG, escrows.c.status.in_(("pending", "locked", "disputed")))
    .scalar_subquery()
    .label("open_escrows"),
    select(reserves.c.balance).where(reserves.c.org == _ORG).scalar_subquery().label("reserve"),
    select(reserves.c.paused).where(reserves.c.org == _ORG).scalar_subquery().label("paused"),
)
_TOTALS = _TOTALS.select_from(table).join(_WEEKS, true()).where(table.c.org == _ORG, ~table.c.archived)
_CAPPED = policies.c.max_per_month.between(0, _MOST_CAP)
_CAPS = (
    select(
        func.count().label("wallets"),
        func.coalesce(func.sum(case((_CAPPED, cast(policies.c.max_per_month, BigInteger)))), 0).label("caps"),
        func.coalesce(func.sum(case((_CAPPED, 0), else_=1)), 0).label("uncapped"),
    )
    .select_from(table)
    .outerjoin(policies, policies.c.address == table.c.policy)
    .where(table.c.org == _ORG, ~table.c.archived)
)
_OF_WALLETS = bindparam("wallet_ids", type_=String, expanding=True)
_BY_IDS = WALLETS.where(table.c.wallet_id.in_(_OF_WALLETS))
_SPENT_BY_WALLET = (
    select(
        transactions.c.wallet_id,
        func.sum(case((transactions.c.timestamp > _NOW - DAY, transactions.c.amount), else_=0)).label("day"),
        func.sum(case((transactions.c.timestamp >= bindparam("month"), transactions.c.amount), else_=0)).label("month"),
        func.min(case((transactions.c.timestamp > _NOW - DAY, transactions.c.timestamp))).label("since"),
        func.count().label("summed"),
    )
    .where(
        transactions.c.wallet_id.in_(_OF_WALLETS),
        transactions.c.status == "confirmed",
        transactions.c.type.in_(SPENT),
        transactions.c.timestamp > bindparam("since"),
    )
    .group_by(transactions.c.wallet_id)
)
_DAY_OF = (transactions.c.timestamp // DAY).label("day")


def _of_days(status: str, types: Collection[str], amount: Any, refused: Any) -> Select[Any]:
    """Return the query for the daily sums of a wallet's transactions with one status.

    With a single status, the query reads a single range of an index.
    """
    mine = (transactions.c.wallet_id == bindparam("wallet_id"), transactions.c.timestamp >= bindparam("since"))
    query = select(_DAY_OF, amount.label("amount"), refused.label("refused"), func.count().label("summed"))
    return query.where(*mine, transactions.c.status == status, transactions.c.type.in_(types)).group_by(_DAY_OF)


_DAYS = union_all(
    _of_days("confirmed", SPENT, func.sum(transactions.c.amount), literal(0)),
    _of_days("blocked", REFUSED, literal(0), func.sum(REFUSALS)),
).subquery()
# PostgreSQL's sums of sums are decimals.
_SUMS = (cast(func.sum(_DAYS.c[name]), BigInteger).label(name) for name in ("amount", "refused", "summed"))
_BY_DAY = select(_DAYS.c.day, *_SUMS).group_by(_DAYS.c.day)
_TODAY = (
    select(transactions.c.wallet_id, func.sum(transactions.c.amount).label("spent"))
    .where(*_SPENT, transactions.c.timestamp > _NOW - DAY)
    .group_by(transactions.c.wallet_id)
    .subquery()
)
_BY: Mapping[str, ColumnElement[Any]] = {
    "label": func.lower(func.coalesce(details.c.label, "")),
    "status": STATUS,
    "balance": table.c.balance,
    "spent": func.coalesce(_TODAY.c.spent, 0),
    "active": func.coalesce(table.c.last_transaction_at, 0),
    "created": table.c.created_at,
}


def monthly_caps(connection: Connection, org: str) -> MonthlyCaps:
    """Return the monthly caps of an organisation's wallets that are not archived."""
    return MonthlyCaps(**connection.execute(_CAPS, {"org": org}).one()._asdict())


def totals(connection: Connection, org: str, now: int) -> FleetTotals:
    """Return the totals of an organisation's wallets and reserve as of `now`, in Unix milliseconds."""
    row = connection.execute(_TOTALS, {"org": org, "now": now}).one()._asdict()
    return FleetTotals(**{**row, "reserve": row["reserve"] or 0, "paused": bool(row["paused"])})


def fleet(
    connection: Connection,
    org: str,
    now: int,
    narrowed: FleetFilter,
    order: FleetOrder,
    *,
    descending: bool,
    limit: int,
    offset: int,
) -> tuple[list[WalletRecord], int | None]:
    """Return one page of an organisation's wallets in this order, and the number of wallets that match the filter.

    On a page past the last match, the number is 0, because it is read with the page's rows. Without a filter, it is
    None: the totals already count all wallets, and counting them here takes as long as the page.
    """
    parameters = {"org": org, "now": now}
    by, every = _BY[order], narrowed == FleetFilter()
    # Sort only the ids first, because sorting ten thousand whole rows takes ten times as long.
    matching = literal(0) if every else func.count().over()
    query = _narrowed(select(table.c.wallet_id, matching.label("matching")), narrowed, order)
    query = query.order_by(*(one.desc() if descending else one.asc() for one in (by, table.c.wallet_id)))
    found = connection.execute(query.limit(limit).offset(offset), parameters).all()
    ids = [one.wallet_id for one in found]
    by_id = wallets_by_ids(connection, org, now, ids)
    count = None if every else int(found[0].matching) if found else 0
    return [by_id[one] for one in ids if one in by_id], count


def wallets_by_ids(connection: Connection, org: str, now: int, ids: Collection[str]) -> dict[str, WalletRecord]:
    """Return the organisation's wallets with these ids, by id."""
    given = {"org": org, "now": now, "wallet_ids": list(ids)}
    rows: list[dict[str, Any]] = fetch_all(connection, dict, _BY_IDS, given)
    return {one["wallet_id"]: wallet_record(one) for one in rows}


def spent(connection: Connection, wallet_ids: Collection[str], now: int, month: int) -> dict[str, WalletSpent]:
    """Return the spending of wallets by id. `month` is the Unix millisecond when the month began.

    Wallets that spent nothing in the last 24 hours and nothing in this month are left out.
    """
    given = {"wallet_ids": list(wallet_ids), "now": now, "month": month, "since": min(month - 1, now - DAY)}
    return {one.wallet_id: one for one in fetch_all(connection, WalletSpent, _SPENT_BY_WALLET, given)}


def spent_by_day(connection: Connection, wallet_id: str, since: int) -> list[DaySpent]:
    """Return the days since a Unix millisecond with spending or refusals of a wallet, in any order."""
    return fetch_all(connection, DaySpent, _BY_DAY, {"wallet_id": wallet_id, "since": since})


def _narrowed(query: Select[Any], by: FleetFilter, order: FleetOrder) -> Select[Any]:
    """Return the query for the organisation's wallets that match the filter, with the joins needed for the order."""
    query = query.select_from(table).where(table.c.org == _ORG)
    query = query.where(literal(by.status) == STATUS) if by.status else query.where(~table.c.archived)
    if by.search or order == "label":
        query = query.outerjoin(details, details.c.wallet_id == table.c.wallet_id)
    if order == "spent":
        query = query.outerjoin(_TODAY, _TODAY.c.wallet_id == table.c.wallet_id)
    if by.tag:
        tagged = select(wallet_tags.c.wallet_id).where(wallet_tags.c.tag == by.tag)
        query = query.where(unindexed(table.c.wallet_id).in_(tagged))
    if by.search:
        like = {"autoescape": True}
        found = (details.c.label.icontains(by.search, **like), details.c.agent_id.icontains(by.search, **like))
        query = query.where(or_(*found, table.c.vault == by.search, table.c.wallet_id == by.search))
    return query
