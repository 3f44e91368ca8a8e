"""The fleet: balances and spending of all wallets of an organisation."""

from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Annotated

from pydantic import Field
from sqlalchemy import Connection

from app.access.keyring import Principal
from app.api.fields import WHOLE_NUMBER, Query
from app.chain.consumption import day_frees_at
from app.core.timestamps import DAY
from app.store.fleet import (
    DaySpent,
    FleetFilter,
    FleetOrder,
    FleetTotals,
    WalletSpent,
    fleet,
    spent,
    spent_by_day,
    totals,
)
from app.store.wallets import WalletRecord
from app.submission.context import Service
from app.wallets.models import WalletStatus

PAGE = 30
"""Number of wallets on a page."""
DAYS = 30
"""Number of days in a wallet's chart."""
_NOTHING = WalletSpent("", 0, 0, None, 0)


class FleetQuery(Query):
    """Filter, order and page of the wallets to show."""

    q: Annotated[str, Field(max_length=100)] = ""
    status: WalletStatus | None = None
    tag: Annotated[str | None, Field(max_length=100)] = None
    sort: FleetOrder = "created"
    dir: Annotated[str, Field(pattern="^(asc|desc)$")] = "desc"
    page: Annotated[int, Field(ge=1, le=100_000), WHOLE_NUMBER] = 1


@dataclass(frozen=True, slots=True)
class FleetRow:
    """A wallet and its spending."""

    wallet: WalletRecord
    spent: WalletSpent


@dataclass(frozen=True, slots=True)
class Fleet:
    """The totals, and one page of wallets out of `count`."""

    totals: FleetTotals
    rows: list[FleetRow]
    count: int


def page_of(conn: Connection, org: str, now: int, query: FleetQuery) -> tuple[list[WalletRecord], int | None]:
    """Return the requested page of wallets and the number of matches.

    Without a filter, the number is None. On a page past the last match, the number is 0, because it is read together
    with the page's rows.
    """
    return fleet(
        conn,
        org,
        now,
        FleetFilter(query.q.strip(), query.status, query.tag),
        query.sort,
        descending=query.dir == "desc",
        limit=PAGE,
        offset=(query.page - 1) * PAGE,
    )


async def show(service: Service, principal: Principal, query: FleetQuery) -> Fleet:
    """Return the organisation's fleet. Runs four queries: for ids, rows, their spending, and the totals."""
    now = service.clock.seen_ms()

    def read(conn: Connection) -> Fleet:
        found, count = page_of(conn, principal.org, now, query)
        sums = spent(conn, [one.wallet_id for one in found], now, month_began(now))
        rows = [FleetRow(one, sums.get(one.wallet_id, _NOTHING)) for one in found]
        of_all = totals(conn, principal.org, now)
        return Fleet(of_all, rows, of_all.wallets if count is None else count)

    return await service.db.read(read, in_thread=True)


@dataclass(frozen=True, slots=True)
class WindowReset:
    """Times when a wallet's limits per day and per month gain headroom, in Unix milliseconds.

    `day` is when the oldest payment of the last 24 hours leaves the program's window; None if there is no such payment.
    `month` is when the UTC month ends.
    """

    day: int | None
    month: int


def freeing(service: Service, spent_now: WalletSpent) -> WindowReset:
    """Return times when past spending of a wallet stops counting towards its limits."""
    since = spent_now.since
    # 32 days after the first of a month is always in the next month.
    month = month_began(month_began(service.clock.seen_ms()) + 32 * DAY)
    return WindowReset(None if since is None else day_frees_at(since // 1000) * 1000, month)


async def spent_by(service: Service, wallet_id: str) -> tuple[list[DaySpent], WalletSpent]:
    """Return the spending of a wallet on each of the last 30 UTC days including today, and its current spending.

    Refunds of escrows and allowances are not deducted, although the program returns their headroom.
    """
    now = service.clock.seen_ms()
    month, last = month_began(now), now // DAY

    def read(conn: Connection) -> tuple[list[DaySpent], WalletSpent]:
        first = last - DAYS + 1
        by_day = {one.day: one for one in spent_by_day(conn, wallet_id, min(month, first * DAY))}
        lately = spent(conn, [wallet_id], now, now).get(wallet_id, _NOTHING)
        this_month = sum(one.amount for one in by_day.values() if one.day * DAY >= month)
        summed = lately.summed + sum(one.summed for one in by_day.values())
        days = [by_day.get(day) or DaySpent(day, 0, 0, 0) for day in range(first, last + 1)]
        return days, replace(lately, month=this_month, summed=summed)

    return await service.db.read(read, in_thread=True)


def month_began(now: int) -> int:
    """Return the first Unix millisecond of the UTC month that contains `now`, also in Unix milliseconds."""
    day = datetime.fromtimestamp(now // 1000, UTC)
    return int(datetime(day.year, day.month, 1, tzinfo=UTC).timestamp()) * 1000
