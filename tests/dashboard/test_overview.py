"""The overview: each figure equals the sum of the transactions that its link shows."""

import re
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from html import unescape

import pytest
from sqlalchemy import insert, select

from app.access.keyring import system
from app.insights.service import month
from app.store.read_tables import wallets
from app.store.spending import table as sums
from tests.dashboard.browsing import Crafted, sign_in
from tests.support.service_world import ServiceWorld

pytestmark = pytest.mark.asyncio(loop_scope="session")

_AMOUNT = re.compile("\N{MINUS SIGN}" + r'([\d,.]+)</span></td>\s*<td>\s*<span class="badge confirmed">')


def _amounts(page: str) -> list[Decimal]:
    """The amounts of the confirmed transactions on a page."""
    return [Decimal(one.replace(",", "")) for one in _AMOUNT.findall(page)]


def _section(page: str, title: str) -> str:
    return page.split(f"<h2>{title}</h2>", 1)[1].split("</section>", 1)[0]


@pytest.mark.proves("GET /dashboard/overview", "GET /dashboard/transactions")
async def test_figures_equal_the_transactions_that_their_links_show(own_world: ServiceWorld) -> None:
    world, viewer = own_world, Crafted(own_world, sign_in(own_world, "viewer"))
    policy = await world.policy(maxPerTx="50", maxPerMonth="900")
    budget = await world.ok("POST", "/v1/budgets", {"name": "Marketing", "maxPerDay": "40"})
    ads, travel = [await world.wallet(policy["policy_id"], label=one) for one in ("Ads", "Travel")]
    changes = {"tags": ["search"], "budgetId": budget["budget_id"]}
    await world.ok("PATCH", f"/v1/wallets/{ads['wallet_id']}", changes)
    payees = [await world.payee() for _ in range(2)]
    for wallet, to, amount in ((ads, payees[0], "25.5"), (ads, payees[1], "10"), (travel, payees[0], "4.25")):
        await world.pay(wallet, to, amount)
    await world.pay(travel, payees[1], "50.01")
    await world.catch_up()

    page = (await viewer.client.get("/dashboard/overview")).text

    assert ">39.75</a><small>USDC in 3 payments" in page
    assert "1,800.00<small>USDC a month" in page
    assert "Marketing</a> has used 35.50 of 40.00 in 24 hours." in page
    spent = {
        "Vaults": ("35.50", "4.25"),
        "Tags": ("35.50",),
        "Budgets": ("35.50", "4.25"),
        "Recipients": ("29.75", "10.00"),
    }
    for title, expected in spent.items():
        section = _section(page, title)
        assert tuple(re.findall(r'<td class="right">([\d,]+\.\d+)</td>', section)) == expected, title
        for link, amount in zip(re.findall(r'class="label" href="([^"]+)"', section), expected, strict=False):
            shown = (await viewer.client.get(unescape(link))).text
            assert sum(_amounts(shown)) == Decimal(amount), (title, link)
    [rule] = re.findall(r'class="label" href="([^"]+)"', _section(page, "Refusals by rule"))
    refused = (await viewer.client.get(unescape(rule))).text
    assert "50.01 is above the 50.00 limit per payment" in refused
    assert refused.count('class="badge blocked"') == 1


async def test_months_are_compared_up_to_the_same_day(own_world: ServiceWorld) -> None:
    world = own_world
    wallet = await world.wallet()
    org: str = world.service.db.read_now(lambda conn: conn.execute(select(wallets.c.org)).scalar_one())
    today = datetime.fromtimestamp(world.service.clock.seen_ms() // 1000, UTC).date()
    first = today.replace(day=1)
    before = first - timedelta(days=1)
    days = [before.replace(day=1) + timedelta(days=number) for number in range(before.day)]
    spent = {one: 10**6 * one.day for one in days}
    rows = [{"org": org, "kind": "total", "period": str(one), "key": "", "payments": 1, "refused": 0} for one in days]
    made = [row | {"spent": spent[date.fromisoformat(row["period"])]} for row in rows]  # type: ignore[arg-type]
    await world.service.db.write(lambda conn: conn.execute(insert(sums), made))
    await world.pay(wallet, payee := await world.payee(), "3")
    await world.catch_up()

    found = await month(world.service, system(org, "test"), None)

    last_day = (today + timedelta(days=1)).day == 1
    assert found.spent == 3 * 10**6
    assert found.before == sum(spent.values())
    assert found.earlier == (found.before if last_day else sum(spent[one] for one in days if one.day <= today.day))
    assert found.projected is not None
    assert found.projected >= found.spent
    assert found.projected % 10_000 == 0
    assert found.new == {payee}
    past = await month(world.service, system(org, "test"), before)
    assert (past.spent, past.projected, len(past.days)) == (found.before, None, len(days))


@pytest.mark.parametrize("text", ["2026", "2026-13", "0001-01", "99999-01", "x"])
async def test_unreadable_month_shows_the_present_one_with_a_message(world: ServiceWorld, text: str) -> None:
    viewer = Crafted(world, sign_in(world, "viewer"))

    answer = await viewer.client.get("/dashboard/overview", params={"month": text})

    assert answer.status_code == 200
    assert 'class="notice bad"' in answer.text
    assert "Projected for the month" in answer.text
