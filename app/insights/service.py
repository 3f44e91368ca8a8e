"""Adds up spending by groups, and compares it with an earlier period."""

from calendar import monthrange
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta

from sqlalchemy import Connection

from app.access.keyring import Principal
from app.chain.rules import CATEGORIES
from app.core.errors import RequestError
from app.insights.models import ComparedSpending, GetSpending, Spending, SpendingGroup, SpendingRow, SpendingSums
from app.store.fleet import MonthlyCaps, monthly_caps
from app.store.spending import filled
from app.store.spending_groups import SpentBy, names, paid_before, top_groups
from app.store.spending_groups import spending as sums
from app.submission.context import Service

_MOST_DAYS = 366
_DAY = timedelta(days=1)
_MONTHS = {"previous_month": 1, "previous_year": 12}
_TOP = 5
_CENT = 10_000
"""A cent in micro-USDC. Projections are rounded down to whole cents."""
_BEFORE = 12
"""A recipient is new if it got no payment in this number of earlier months."""
GROUPS: Sequence[SpendingGroup] = ("wallet", "tag", "budget", "recipient", "category", "rule")


@dataclass(frozen=True, slots=True)
class Month:
    """The spending of a month so far, with the groups that spent the most. Sums are in micro-USDC.

    The month begins on `first` and ends before `end`. `days` has a row for each of its UTC days up to today. `before`
    is the spending of the whole month before, and `earlier` its spending up to the same day. `projected` continues the
    present pace to the month's end, in whole cents, and is None for a past month. `new` are the top recipients without
    payments in the 12 months before.
    """

    first: date
    end: date
    days: list[SpentBy]
    spent: int
    payments: int
    refused: int
    earlier: int
    before: int
    projected: int | None
    top: dict[SpendingGroup, list[SpendingRow]]
    new: set[str]
    caps: MonthlyCaps
    complete: bool


async def spending(service: Service, principal: Principal, query: GetSpending) -> Spending:
    """Return the spending of a period by groups. Raises ``invalid_request`` for an empty or too long period."""
    end = query.to or datetime.fromtimestamp(service.clock.seen_ms() // 1000, UTC).date() + _DAY
    start = query.from_ or (end - _DAY).replace(day=1)
    if not 0 < (end - start).days <= _MOST_DAYS:
        raise RequestError("invalid_request", f"from, to: must be a period of 1 to {_MOST_DAYS} days.")
    org, by, months = principal.org, query.group_by, _MONTHS.get(query.compare_to or "")

    def read(conn: Connection) -> Spending:
        rows, shown = _period(conn, org, by, (start, end))
        compared = None
        if months is not None:
            keys = None if by in {"day", "month"} else [one.key for one in rows]
            earlier = (_earlier(start, months), _earlier(end - _DAY, months) + _DAY)
            _, compared = _period(conn, org, by, earlier, keys)
        return Spending(**dict(shown), complete=filled(conn), compared=compared)

    return await service.db.read(read, in_thread=True)


async def month(service: Service, principal: Principal, chosen: date | None) -> Month:
    """Return the spending of the month of a UTC date, by default the present one."""
    now, org = service.clock.seen_ms(), principal.org
    today = datetime.fromtimestamp(now // 1000, UTC).date()
    first = min(chosen or today, today).replace(day=1)
    end, before = _next_month(first), _earlier(first, 1)
    last = min(end - _DAY, today)
    # On the last day of a month, compare with the whole month before, even if that month is longer.
    same_day = first - _DAY if last + _DAY == end else _earlier(last, 1)

    def read(conn: Connection) -> Month:
        days = [str(before + _DAY * number) for number in range((last - before).days + 1)]
        by_day = {one.key: one for one in sums(conn, org, "day", days)}
        shown = [by_day.get(one) or SpentBy(one, 0, 0, 0) for one in days]
        this = [one for one in shown if one.key >= str(first)]
        spent = sum(one.spent for one in this)
        top = top_groups(conn, org, GROUPS, str(first)[:7], _TOP)
        earlier = [str(_earlier(first, number))[:7] for number in range(1, _BEFORE + 1)]
        payees = [one.key for one in top["recipient"]]
        passed = max(now - _ms(first), 1)
        return Month(
            first=first,
            end=end,
            days=this,
            spent=spent,
            payments=sum(one.payments for one in this),
            refused=sum(one.refused for one in this),
            earlier=sum(one.spent for one in shown if str(before) <= one.key <= str(same_day)),
            before=sum(one.spent for one in shown if one.key < str(first)),
            projected=spent * (_ms(end) - _ms(first)) // passed // _CENT * _CENT if now < _ms(end) else None,
            top={by: _rows(conn, org, by, top[by]) for by in GROUPS},
            new=set(payees) - paid_before(conn, org, payees, earlier),
            caps=monthly_caps(conn, org),
            complete=filled(conn),
        )

    return await service.db.read(read, in_thread=True)


def periods(start: date, end: date) -> list[str]:
    """Return the keys of the roll-ups that make up the period from `start` to before `end`.

    A whole month has a key such as `2026-05`. Each day outside whole months has a key such as `2026-05-31`.
    """
    found = []
    while start < end:
        following = _next_month(start)
        whole = start.day == 1 and following <= end
        found.append(str(start)[:7] if whole else str(start))
        start = following if whole else start + _DAY
    return found


def _next_month(day: date) -> date:
    return day.replace(day=1) + timedelta(days=monthrange(day.year, day.month)[1])


def _ms(day: date) -> int:
    return int(datetime(day.year, day.month, day.day, tzinfo=UTC).timestamp()) * 1000


def _earlier(day: date, months: int) -> date:
    """Return the same day some months earlier, or the last day of a shorter month."""
    year, month = divmod(day.year * 12 + day.month - 1 - months, 12)
    return date(year, month + 1, min(day.day, monthrange(year, month + 1)[1]))


def _period(
    conn: Connection, org: str, by: SpendingGroup, days: tuple[date, date], keys: Collection[str] | None = None
) -> tuple[list[SpentBy], ComparedSpending]:
    start, end = days
    spans = periods(start, end)
    each = [str(start + _DAY * number) for number in range((end - start).days)]
    rows = sums(conn, org, by, each if by == "day" else spans, keys)
    total = next(iter(sums(conn, org, "total", spans)), SpentBy("", 0, 0, 0))
    data = _rows(conn, org, by, rows)
    return rows, ComparedSpending(from_date=str(start), to_date=str(end), data=data, total=SpendingSums.of(total))


def _rows(conn: Connection, org: str, by: SpendingGroup, groups: Sequence[SpentBy]) -> list[SpendingRow]:
    found = names(conn, org, by, [one.key for one in groups])
    data = []
    for one in groups:
        key = CATEGORIES[int(one.key)] if by == "category" else one.key or None
        data.append(SpendingRow.of(one, key=key, label=found.get(one.key) or key or f"No {by}"))
    return data
