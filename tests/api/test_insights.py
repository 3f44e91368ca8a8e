"""Insights: spending by each group, its comparison with an earlier period, and the filters by the same labels."""

from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from pathlib import Path

import pytest
import pytest_asyncio
from sqlalchemy import delete, insert

from app.database.sqlite import SqliteDatabase
from app.insights import service as insights
from app.store.spending import fill
from app.store.spending import table as sums
from app.store.state_tables import setting_values
from tests.support.escrows import agent
from tests.support.service_world import Json, ServiceWorld, error_of
from tests.support.weights import Steps, counting

pytestmark = pytest.mark.asyncio(loop_scope="module")

_PATH = "/v1/insights/spending"
_VAULTS = 10_000
_STEPS_PER_ROW = 60
"""SQLite's steps to read, add up and sort one row of the sums."""


@dataclass
class _Spent:
    """An organisation's only payments: 2 USDC from a wallet with labels, 1 from one without, and a refusal."""

    world: ServiceWorld
    labelled: Json
    plain: Json
    budget: Json
    payee: str

    async def by(self, group: str, query: str = "") -> Json:
        return await self.world.ok("GET", f"{_PATH}?groupBy={group}{query}")

    async def rows(self, group: str, query: str = "") -> dict[str | None, tuple[str, str, int, int]]:
        data = (await self.by(group, query))["data"]
        return {one["key"]: (one["label"], one["spent"], one["payments"], one["refused"]) for one in data}


@pytest_asyncio.fixture(scope="module", loop_scope="module", name="spent")
async def _spent(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[_Spent]:
    async with ServiceWorld(tmp_path_factory.mktemp("insights")) as world:
        policy = (await world.policy(maxPerTx="5"))["policy_id"]
        budget = await world.ok("POST", "/v1/budgets", {"name": "Marketing", "maxPerDay": "50"})
        fields = {"label": "Ads", "tags": ["ads", "spring"], "budgetId": budget["budget_id"]}
        labelled, plain, payee = await world.wallet(policy, **fields), await world.wallet(policy), await world.payee()
        await world.ok("PUT", "/v1/recipients/shop.example", {"address": payee, "category": "marketplace"})
        await world.later(49 * 3600)
        assert (await world.pay(labelled, payee, "2")).status_code == 200
        assert (await world.pay(plain, await world.payee(), "1")).status_code == 200
        error_of(await world.pay(labelled, payee, "9"), 402, "policy_violation")
        # Changes that later payments keep
        await world.ok("PATCH", f"/v1/wallets/{labelled['wallet_id']}", {"tags": ["other"], "budgetId": None})
        yield _Spent(world, labelled, plain, budget, payee)


@pytest.mark.proves(
    "GET /v1/insights/spending",
    "GET /v1/insights/spending(groupBy)",
    "SpendingRow(key, label, spent, payments, refused)",
    "SpendingSums(spent, payments, refused)",
    "Spending(total)",
)
async def test_payments_keep_their_labels_and_count_once_in_the_total(spent: _Spent) -> None:
    ids = spent.labelled["wallet_id"], spent.plain["wallet_id"]
    marketplace = ("marketplace", "2.00", 1, 1)

    assert await spent.rows("wallet") == {ids[0]: ("Ads", "2.00", 1, 1), ids[1]: ("Agent", "1.00", 1, 0)}
    assert await spent.rows("tag") == {one: (one, "2.00", 1, 1) for one in ("ads", "spring")}
    budgets = {spent.budget["budget_id"]: ("Marketing", "2.00", 1, 1), None: ("No budget", "1.00", 1, 0)}
    assert await spent.rows("budget") == budgets
    assert await spent.rows("category") == {
        "marketplace": marketplace,
        "uncategorized": ("uncategorized", "1.00", 1, 0),
    }
    assert (await spent.rows("recipient"))[spent.payee] == ("shop.example", "2.00", 1, 1)
    assert await spent.rows("rule") == {"max_per_tx": ("max_per_tx", "0.00", 0, 1)}
    for group in ("day", "month", "tag"):
        assert (await spent.by(group))["total"] == {"spent": "3.00", "payments": 2, "refused": 1}


@pytest.mark.proves(
    "GET /v1/insights/spending(from, to, compareTo)",
    "Spending(from_date, to_date, compared)",
    "ComparedSpending(from_date, to_date, total)",
)
async def test_period_is_compared_with_the_same_days_of_the_month_before(spent: _Spent) -> None:
    now = datetime.fromtimestamp(spent.world.service.clock.seen_ms() / 1000, UTC).date()
    found = await spent.by("wallet")
    assert (found["from_date"], found["to_date"]) == (str(now.replace(day=1)), str(now + timedelta(days=1)))
    assert found["compared"] is None

    month = (now.replace(day=1) + timedelta(days=32)).replace(day=1)
    query = f"&from={month}&to={month + timedelta(days=31)}&compareTo=previous_month"
    later = await spent.by("month", query)
    assert (later["data"], later["total"]["payments"]) == ([], 0)
    assert later["compared"]["total"] == {"spent": "3.00", "payments": 2, "refused": 1}
    assert [one["key"] for one in later["compared"]["data"]] == [str(now)[:7]]

    dates = "&from=2026-03-01&to=2026-03-31&compareTo="
    shown = (await spent.by("tag", f"{dates}previous_month"))["compared"]
    assert (shown["from_date"], shown["to_date"]) == ("2026-02-01", "2026-03-01")
    shown = (await spent.by("tag", f"{dates}previous_year"))["compared"]
    assert (shown["from_date"], shown["to_date"]) == ("2025-03-01", "2025-03-31")


@pytest.mark.parametrize(
    "query",
    [
        "from=2026-02-30",
        "from=2026-1-1",
        "to=1700000000",
        "from=2026-02-01&to=2026-02-01",
        "from=2025-01-01&to=2026-01-03",
    ],
)
async def test_periods_that_are_no_dates_empty_or_too_long_are_refused(spent: _Spent, query: str) -> None:
    error_of(await spent.world.call("GET", f"{_PATH}?groupBy=day&{query}"), 400, "invalid_request")


async def test_whole_months_are_read_as_months() -> None:
    assert insights.periods(date(2026, 1, 31), date(2026, 3, 2)) == ["2026-01-31", "2026-02", "2026-03-01"]
    assert insights.periods(date(2026, 12, 1), date(2027, 1, 1)) == ["2026-12"]


@pytest.mark.proves("GET /v1/transactions(spending)")
async def test_counted_transactions_can_be_listed_alone(spent: _Spent) -> None:
    wallet = f"walletId={spent.labelled['wallet_id']}"
    for query, expected in (
        ("spending=true", ["blocked", "confirmed", "confirmed"]),
        (f"spending=true&{wallet}", ["blocked", "confirmed"]),
        (f"spending=true&status=confirmed&{wallet}", ["confirmed"]),
        (f"spending=true&recipient={spent.payee}&tag=ads", ["blocked", "confirmed"]),
        ("spending=true&type=funding", []),
        (f"{wallet}", ["blocked", "confirmed", "confirmed"]),
    ):
        found = (await spent.world.ok("GET", f"/v1/transactions?{query}"))["data"]
        assert sorted(one["status"] for one in found) == expected, query


@pytest.mark.proves("Spending(complete)")
async def test_sums_are_incomplete_until_all_days_are_counted(own_world: ServiceWorld) -> None:
    world, db = own_world, own_world.service.db
    assert (await world.ok("GET", _PATH))["complete"] is True
    await db.write(lambda conn: conn.execute(delete(setting_values).where(setting_values.c.name == "spending.filled")))
    await world.pay(await world.wallet(), await world.payee(), "1")
    assert (await world.ok("GET", _PATH))["complete"] is False

    while await db.write(fill):
        pass

    found = await world.ok("GET", _PATH)
    assert (found["complete"], found["total"]["spent"]) == (True, "1.00")


@pytest.mark.proves("GET /v1/transactions(tag, budgetId, category, rule)")
async def test_transactions_are_filtered_by_the_same_labels(spent: _Spent) -> None:
    world, budget = spent.world, spent.budget["budget_id"]
    one, mine = "status=confirmed", f"walletId={spent.labelled['wallet_id']}"
    for query, count in (
        *(("tag=ads", 2), ("tag=other", 0), (f"tag=ads&{one}", 1), (f"budgetId={budget}", 2), ("rule=max_per_tx", 1)),
        *(("category=marketplace", 2), ("category=marketplace&tag=spring", 2), ("tag=ads&rule=frozen", 0)),
        *((f"tag=ads&{mine}", 2), (f"tag=ads&walletId={spent.plain['wallet_id']}", 0), ("tag=ads&x402Host=*", 0)),
        *(("tag=ads&type=payment", 2), (f"tag=ads&recipient={spent.payee}", 2), ("tag=ads&to=2026-01-01T00:00:00Z", 0)),
    ):
        page = await world.ok("GET", f"/v1/transactions?{query}")
        assert len(page["data"]) == count, query
    first = await world.ok("GET", "/v1/transactions?tag=ads&limit=1")
    second = await world.ok("GET", f"/v1/transactions?tag=ads&limit=1&cursor={first['next_cursor']}")
    assert [one["status"] for page in (first, second) for one in page["data"]] == ["blocked", "confirmed"]


async def test_agent_sees_labels_of_its_own_payments_only(own_world: ServiceWorld) -> None:
    world = own_world
    mine, other = await agent(world), await world.wallet(tags=["ads"])
    await world.pay(other, await world.payee(), "1")

    assert (await world.ok("GET", "/v1/transactions?tag=ads", key=mine.key))["data"] == []
    error_of(await world.call("GET", f"{_PATH}?groupBy=tag", key=mine.key), 403, "insufficient_permissions")


@pytest.mark.sqlite("counts the steps of SQLite")
async def test_month_of_ten_thousand_vaults_is_read_by_a_row_each(tmp_path: Path) -> None:
    async with ServiceWorld(tmp_path) as world:
        db = world.service.db
        assert isinstance(db, SqliteDatabase)
        names = [f"wal_{number}" for number in range(_VAULTS)]
        kinds = [("total", ""), *(("wallet", name) for name in names)]
        # A day's rows for each day of two months, as ten million payments leave them, and a row for each month.
        spans = [f"2026-0{month}-{day:02}" for month in (4, 5) for day in range(1, 31)] + ["2026-04", "2026-05"]
        numbers = {"org": world.org, "spent": 10, "payments": 2, "refused": 0}
        for span in spans:
            chosen = kinds if len(span) == 7 else kinds[:1_000]
            rows = [{**numbers, "kind": kind, "period": span, "key": key} for kind, key in chosen]
            db.write_now(lambda conn, rows=rows: conn.execute(insert(sums), rows))  # type: ignore[misc]
        taken = {}
        with counting(db) as counted:
            for query in (
                *("groupBy=day&from=2026-05-01&to=2026-05-28&compareTo=previous_month", "groupBy=wallet"),
                "groupBy=wallet&from=2026-05-01&to=2026-06-01&compareTo=previous_month",
            ):
                counted.set(steps := Steps())
                await world.ok("GET", f"{_PATH}?{query}")
                taken[query] = steps.taken

    assert [
        steps // _STEPS_PER_ROW < rows for steps, rows in zip(taken.values(), (200, 100, _VAULTS + 300), strict=True)
    ] == [
        True,
        True,
        True,
    ], taken
