"""Adds up spending by groups, and compares it with an earlier period."""

from calendar import monthrange
from collections.abc import Collection
from datetime import UTC, date, datetime, timedelta

from sqlalchemy import Connection

from app.access.keyring import Principal
from app.chain.rules import CATEGORIES
from app.core.errors import RequestError
from app.insights.models import ComparedSpending, GetSpending, Spending, SpendingGroup, SpendingRow, SpendingSums
from app.store.spending import SpentBy, filled, names
from app.store.spending import spending as sums
from app.submission.context import Service

_MOST_DAYS = 366
_DAY = timedelta(days=1)
_MONTHS = {"previous_month": 1, "previous_year": 12}


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


def periods(start: date, end: date) -> list[str]:
    """Return the whole months and the other days from `start` to before `end`, as roll-ups name them."""
    found = []
    while start < end:
        following = start.replace(day=1) + timedelta(days=monthrange(start.year, start.month)[1])
        whole = start.day == 1 and following <= end
        found.append(str(start)[:7] if whole else str(start))
        start = following if whole else start + _DAY
    return found


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
    found = names(conn, org, by, [one.key for one in rows])
    data = []
    for one in rows:
        key = CATEGORIES[int(one.key)] if by == "category" else one.key or None
        data.append(SpendingRow.of(one, key=key, label=found.get(one.key) or key or f"No {by}"))
    return rows, ComparedSpending(from_date=str(start), to_date=str(end), data=data, total=SpendingSums.of(total))
