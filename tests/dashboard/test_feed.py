"""The feed, live and filtered; approvals."""

import asyncio
import re
import socket
from collections.abc import Callable
from contextlib import AsyncExitStack
from datetime import datetime, timedelta
from typing import Any

import httpx
import pytest
from playwright.async_api import Browser, Page, expect
from sqlalchemy import Connection

from app.core.event_catalogue import EVENTS
from app.dashboard.live import FeedHub, Message
from app.store.feed import append_event
from tests.dashboard.browsing import (
    Crafted,
    Served,
    findings,
    forget_step_up,
    listening,
    log,
    overflow,
    sign_in,
    statements,
)
from tests.support.http import PATIENCE, served
from tests.support.service_world import ServiceWorld

pytestmark = pytest.mark.asyncio(loop_scope="session")

_STATE = "Object.defineProperty(document, 'visibilityState', { get: () => 'STATE', configurable: true });"


@pytest.mark.proves("GET /dashboard/stream")
async def test_event_is_in_an_open_page_at_once(site: Served) -> None:
    world = site.world
    async with site.visit("viewer") as page:
        await page.goto(f"{site.base}/feed")
        assert await findings(page) == []
        await world.wallet(label="Newcomer", funds=None)
        await page.get_by_text("Newcomer").first.wait_for(timeout=3_000)
        stamp = await page.locator("time").first.get_attribute("title")
        assert stamp is not None
        assert stamp.endswith(" UTC")
        await page.get_by_text("Details").first.click()
        await expect(page.locator("pre").first).to_contain_text('"event": "wallet.created"')
    async with site.visit("viewer", viewport={"width": 390, "height": 844}, color_scheme="dark") as page:
        await page.goto(f"{site.base}/feed")
        assert await findings(page) == []
        assert await overflow(page) <= 0
    assert site.violations == []


@pytest.mark.proves("GET /dashboard/feed")
async def test_feed_is_filtered_by_severity_type_and_vault(world: ServiceWorld) -> None:
    wallet, other = await world.wallet(label="Frosty"), await world.wallet(label="Other")
    await world.ok("PATCH", f"/v1/wallets/{wallet['wallet_id']}", {"status": "frozen"})
    me = Crafted(world, sign_in(world, "viewer"))
    critical = (await me.client.get("/dashboard/feed?severity=critical&type=&from=&to=")).text
    assert "Frosty" in critical
    assert "Other" not in critical
    of_wallet = (await me.client.get(f"/dashboard/feed?wallet_id={other['wallet_id']}&type=wallet.created")).text
    assert "Other" in of_wallet
    assert "Frosty" not in of_wallet
    assert "There are no events that match" in (await me.client.get("/dashboard/feed?to=2020-01-01")).text
    for wrong in ("severity=loud", "from=yesterday", "wallet_id=wal_none", "page=2"):
        answer = await me.client.get(f"/dashboard/feed?{wrong}")
        assert answer.status_code == 200
        assert 'class="notice bad"' in answer.text
        assert "There are no events that match" in answer.text


@pytest.mark.proves("GET /dashboard/feed", "POST /dashboard/feed/read")
async def test_unread_alerts_are_counted_until_they_are_marked_as_read(site: Served) -> None:
    world = site.world
    wallet = await world.wallet(label="Watched")
    async with site.visit("viewer") as page:
        await page.goto(f"{site.base}/feed")
        menu = page.get_by_role("navigation", name="Pages")
        if await page.get_by_role("button", name="Mark all as read").count():
            await page.get_by_role("button", name="Mark all as read").click()
            await page.wait_for_load_state()
        await expect(menu.get_by_role("link", name="Feed", exact=True)).to_be_visible()
        # Shown where somebody looks at another page, at once
        await page.goto(f"{site.base}/approvals")
        await world.ok("PATCH", f"/v1/wallets/{wallet['wallet_id']}", {"status": "frozen"})
        await menu.get_by_role("link", name="Feed 1 unread").click()
        row = page.get_by_role("listitem").filter(has_text="Watched was frozen")
        await expect(row).to_contain_text("Unread")
        assert await findings(page) == []
        await page.get_by_role("button", name="Mark all as read").click()
        await expect(menu.get_by_role("link", name="Feed", exact=True)).to_be_visible()
        await expect(row).not_to_contain_text("Unread")
    assert site.violations == []


@pytest.mark.proves("POST /dashboard/feed/read")
async def test_each_person_has_read_what_they_have_read(world: ServiceWorld) -> None:
    wallet = await world.wallet(funds=None)
    one, other = (Crafted(world, sign_in(world, role)) for role in ("viewer", "operator"))

    async def read(position: object) -> int:
        return (await one.post("/dashboard/feed/read", {"position": position})).status_code

    async def unread(by: Crafted) -> str:
        found = re.search(
            r'<span id="unread" class="count">(.*?)</span>', (await by.client.get("/dashboard/feed")).text
        )
        assert found is not None
        return re.sub("<[^>]*>", "", found[1]).strip()

    await read(10**15 - 1)
    before = await unread(other)
    await world.ok("PATCH", f"/v1/wallets/{wallet['wallet_id']}", {"status": "frozen"})
    # A position beyond the feed's end hides nothing that comes later, and nobody marks for another.
    assert await unread(one) == "1 unread"
    assert await unread(other) != before
    shown = (await one.client.get("/dashboard/feed")).text
    position = re.search(r'name="position" value="(\d+)"', shown)
    assert position is not None
    await world.ok("PATCH", f"/v1/wallets/{wallet['wallet_id']}", {"status": "active"})
    await world.ok("PATCH", f"/v1/wallets/{wallet['wallet_id']}", {"status": "frozen"})
    # What came after the page was made stays unread, and nothing becomes unread again.
    assert await read(position[1]) == 303
    assert await unread(one) == "1 unread"
    assert await read("0") == 303
    assert await unread(one) == "1 unread"
    for wrong in ("", "-1", "many", "1" * 30):
        assert await read(wrong) == 400


async def test_event_leads_to_the_policy_that_it_is_about(world: ServiceWorld) -> None:
    policy = await world.policy(name="Linked")
    await world.ok("PATCH", f"/v1/policies/{policy['policy_id']}", {"maxPerTx": "5"})
    viewer = Crafted(world, sign_in(world, "viewer"))
    shown = (await viewer.client.get("/dashboard/feed?type=policy.updated")).text
    path = f"/dashboard/policies/{policy['policy_id']}"
    assert f'The policy <a href="{path}">Linked</a> was changed: per payment' in shown
    assert (await viewer.client.get(path)).status_code == 200


def _rows(page: str) -> list[str]:
    """The rows of the feed, without markup."""
    rows = page.split('<ol class="feed"')[1].split("<details>")[:-1]
    return [" ".join(re.sub("<[^>]*>", " ", one.rpartition("<li>")[2]).split()) for one in rows]


@pytest.mark.proves("GET /dashboard/feed")
async def test_payment_is_one_row_with_names_and_a_reason(own_world: ServiceWorld) -> None:
    world, viewer = own_world, Crafted(own_world, sign_in(own_world, "viewer"))
    policy = await world.policy(maxPerTx="120", requireCoSign="50")
    wallet, payee = await world.wallet(policy["policy_id"], label="Office supplies"), await world.payee()
    await world.ok("PUT", "/v1/recipients/paper.example.com", {"address": payee, "category": "marketplace"})
    session, key = await world.session(wallet), world.key("agent", wallet["wallet_id"])
    paid = (await world.pay(wallet, payee, "20")).json()
    await world.pay(wallet, payee, "140")
    await world.pay(wallet, "paper.example.com", "60", session=session, key=key)
    await world.catch_up()

    page = (await viewer.client.get("/dashboard/feed")).text
    rows = [one for one in _rows(page) if "paper.example.com" in one]
    tried, to = "Office supplies tried to pay", "to paper.example.com"

    assert [one.partition(" ")[2] for one in rows] == [
        f"{tried} 60.00 {to} Waits for approval Unread 60.00 is above 50.00 and needs an approval Approval",
        f"{tried} 140.00 {to} Unread Refused: 140.00 is above the 120.00 limit per payment Why?",
        f"Office supplies paid 20.00 {to}",
    ]
    assert all(re.match(r"\d\d:\d\d ", one) for one in rows)
    assert f'title="{payee}">paper.example.com' in page
    # A filter by type shows all events of the type, and an unfinished payment is shown until its outcome.
    pending = (await viewer.client.get("/dashboard/feed?type=transaction.pending")).text
    assert "Office supplies is paying 20.00 to" in " ".join(_rows(pending))
    assert paid["tx_id"] in pending


async def test_every_type_of_event_has_a_row(own_world: ServiceWorld) -> None:
    world, viewer = own_world, Crafted(own_world, sign_in(own_world, "viewer"))
    now = world.service.clock.seen_ms()
    money = ("amount", "attempted_amount", "current_balance", "threshold", "spent", "limit")
    values: dict[str, Any] = dict.fromkeys(money, "1.00") | {"refusals": 2, "changes": {"max_per_tx": {}}}
    values["violation"] = {"rule": "budget_max_per_day", "limit": "1.00", "attempted": "2.00"}

    def add(conn: Connection) -> None:
        for kind in EVENTS.values():
            fields = {name: values.get(name, f"the {name}") for name in kind.fields}
            append_event(
                conn, event_id=f"evt_{kind.type}", org=world.org, type=kind.type, timestamp=now, payload=fields
            )

    await world.service.db.write(add)
    for kind in EVENTS:
        answer = await viewer.client.get(f"/dashboard/feed?type={kind}")
        assert (answer.status_code, "There are no events" in answer.text) == (200, False), kind


async def test_rows_are_grouped_by_the_days_of_the_reader(site: Served) -> None:
    await site.world.wallet(label="Abroad", funds=None)
    async with site.visit("viewer", timezone_id="Pacific/Kiritimati") as page:
        await page.goto(f"{site.base}/feed?type=wallet.created")
        stamps = await page.locator(".feed time").evaluate_all("(all) => all.map((one) => one.dateTime)")
        days = {(datetime.fromisoformat(one) + timedelta(hours=14)).date() for one in stamps}
        shown = [f"{one:%A} {one.day} {one:%B %Y}" for one in sorted(days, reverse=True)]
        await expect(page.locator(".feed .day")).to_have_text(shown)
        row = page.get_by_role("listitem").filter(has_text="Abroad was created")
        local = datetime.fromisoformat(stamps[0]) + timedelta(hours=14)
        await expect(row.locator("time")).to_have_text(f"{local:%H:%M}")


async def test_old_event_links_no_deleted_policy_or_budget(world: ServiceWorld) -> None:
    policy, kept = await world.policy(name="Short-lived"), await world.policy(name="Kept")
    for one in (policy, kept):
        await world.ok("PATCH", f"/v1/policies/{one['policy_id']}", {"maxPerTx": "5"})
    budget = await world.ok("POST", "/v1/budgets", {"name": "Short-lived", "maxPerDay": "5"})
    viewer = Crafted(world, sign_in(world, "viewer"))
    gone = [f"/dashboard/policies/{policy['policy_id']}", f"/dashboard/budgets/{budget['budget_id']}"]
    before = (await viewer.client.get("/dashboard/feed")).text
    assert all(f'href="{path}"' in before for path in gone)

    await world.ok("DELETE", f"/v1/policies/{policy['policy_id']}")
    await world.ok("DELETE", f"/v1/budgets/{budget['budget_id']}")
    after = (await viewer.client.get("/dashboard/feed")).text
    assert [path for path in gone if f'href="{path}"' in after] == []
    assert policy["policy_id"] in after, "the event itself stays"
    assert f'href="/dashboard/policies/{kept["policy_id"]}"' in after


async def test_hub_tells_only_the_organisations_own_pages(own_world: ServiceWorld) -> None:
    hub = FeedHub(own_world.service.db, most=1)
    with listening(own_world, hub) as mine, listening(own_world, hub, "other") as theirs:
        async with asyncio.timeout(30):
            for queue in (mine, theirs):
                assert isinstance(await queue.get(), int), "each is told first where it begins"
            await own_world.wallet(funds=None)
            # The request is on record before the chain has the wallet.
            while (told := await mine.get()) and isinstance(told, Message) and told.event is None:
                pass
        assert isinstance(told, Message)
        assert told.event is not None
        assert told.event.type == "wallet.created"
        assert theirs.empty()


@pytest.mark.proves("GET /dashboard/stream")
async def test_stream_ends_with_its_session(site: Served) -> None:
    token = sign_in(site.world, "viewer")
    me = Crafted(site.world, token)
    base = site.base.removesuffix("/dashboard")
    async with (
        httpx.AsyncClient(cookies={"agent-vault-session": token}, timeout=20) as client,
        client.stream("GET", f"{base}/dashboard/stream") as answer,
    ):
        assert answer.headers["content-type"].startswith("text/event-stream")
        await me.post("/dashboard/sign-out")
        await site.world.wallet(funds=None)
        async with asyncio.timeout(30):
            told = [one async for one in answer.aiter_lines() if one.startswith("data")]
    assert [one for one in told if "reached" not in one] == []
    nobody = await Crafted(site.world).client.get("/dashboard/stream")
    assert nobody.status_code == 303


@pytest.mark.proves("Limits: Live connections of the dashboard")
async def test_streams_of_a_person_are_few_and_cost_no_query_each(site: Served) -> None:
    world, token, base = site.world, sign_in(site.world, "viewer"), site.base.removesuffix("/dashboard")
    most, hub = world.settings.live_streams, world.service.part(FeedHub)
    async with AsyncExitStack() as stack:
        client = await stack.enter_async_context(httpx.AsyncClient(cookies={"agent-vault-session": token}, timeout=60))
        lines = []
        for _ in range(most):
            answer = await stack.enter_async_context(client.stream("GET", f"{base}/dashboard/stream"))
            assert answer.status_code == 200
            lines.append(answer.aiter_lines())
            assert "reached" in await anext(one async for one in lines[-1] if one.startswith("data"))
        refused = await client.get(f"{base}/dashboard/stream")
        assert (refused.status_code, "Retry-After" in refused.headers) == (429, True)
        with statements() as found:
            await world.wallet(funds=None)
            for one in lines:
                assert "reached" in await anext(line async for line in one if line.startswith("data"))
        assert len([one for one in found if "FROM browser_sessions" in one]) < most / 2
    async with asyncio.timeout(30):
        while len(hub):  # noqa: ASYNC110 - until the service has noticed
            await asyncio.sleep(0.05)


async def test_approver_reads_the_whole_address_that_is_approved(world: ServiceWorld) -> None:
    # The approval that is signed names the address; its name is what the agent called it.
    policy = await world.policy(requireCoSign="5")
    wallet, payee = await world.wallet(policy["policy_id"]), await world.payee()
    session, key = await world.session(wallet), world.key("agent", wallet["wallet_id"])
    body = {"address": payee, "category": "marketplace"}
    await world.ok("PUT", "/v1/recipients/approved.example.com", body)
    await world.pay(wallet, "approved.example.com", "11", session=session, key=key)

    shown = (await Crafted(world, sign_in(world, "operator")).client.get("/dashboard/approvals")).text

    assert f'<span class="mono">{payee}</span>' in shown
    assert "approved.example.com in the request" in shown
    [waiting] = (await world.ok("GET", "/v1/approvals?status=pending"))["data"]
    await world.ok("POST", f"/v1/approvals/{waiting['approval_id']}/reject", {})


@pytest.mark.proves(
    "GET /dashboard/approvals",
    "POST /dashboard/approvals/{approval_id}/approve",
    "POST /dashboard/approvals/{approval_id}/reject",
)
async def test_payment_above_the_threshold_is_approved_after_a_step_up(site: Served) -> None:
    world = site.world
    policy = await world.policy(requireCoSign="5")
    wallet, payee = await world.wallet(policy["policy_id"], label="Spender"), await world.payee()
    session, key = await world.session(wallet), world.key("agent", wallet["wallet_id"])
    for amount in ("6", "7"):
        refused = await world.pay(wallet, payee, amount, session=session, key=key, body={"memo": f"Trip {amount}"})
        assert refused.status_code == 402
    async with site.visit("operator") as page:
        await page.goto(f"{site.base}/approvals")
        await expect(page).to_have_title("(2) Approvals · Agent Vault")
        assert await findings(page) == []
        row = page.get_by_role("row").filter(has_text="6.00")
        why = f"requests this payment, “Trip 6”, above 5.00, the threshold of {policy['name']}"
        await expect(row).to_contain_text(f"API key test {why}")
        await row.get_by_role("button", name="Approve").click()
        await page.get_by_text("Approved. The agent may repeat the refused request").wait_for()
        row = page.get_by_role("row").filter(has_text="7.00")
        await row.get_by_role("button", name="Reject").click()
        await page.get_by_text("The request for approval was rejected").wait_for()
        await expect(page).to_have_title("Approvals · Agent Vault")
    assert (await world.pay(wallet, payee, "6", session=session, key=key)).status_code == 200
    assert log(world, "approval.approve")[0].actor.type == "person"
    assert site.violations == []

    await world.pay(wallet, payee, "8", session=session, key=key)
    [waiting] = (await world.ok("GET", "/v1/approvals?status=pending"))["data"]
    operator = Crafted(world, sign_in(world, "operator"))
    csrf = await operator.csrf()
    assert (await operator.post("/dashboard/approvals/apr_none/reject", csrf=csrf)).status_code == 404
    forget_step_up(world)
    for decision in ("approve", "reject"):
        answer = await operator.post(f"/dashboard/approvals/{waiting['approval_id']}/{decision}", csrf=csrf)
        assert answer.status_code == 403
    viewer = Crafted(world, sign_in(world, "viewer"))
    assert (await viewer.post(f"/dashboard/approvals/{waiting['approval_id']}/reject")).status_code == 403


async def test_hidden_page_follows_nothing_and_is_up_to_date_when_it_is_back(site: Served) -> None:
    hub = site.world.service.part(FeedHub)
    async with site.visit("viewer") as page:
        await page.goto(f"{site.base}/feed")
        await _until(lambda: len(hub) == 1)
        await _show(page, "hidden")
        await _until(lambda: len(hub) == 0)
        await site.world.wallet(label="While hidden", funds=None)
        await expect(page.get_by_text("While hidden")).to_have_count(0)
        await _show(page, "visible")
        await page.get_by_text("While hidden").first.wait_for()
    await _until(lambda: len(hub) == 0)


async def test_page_opened_in_the_background_shows_what_came_since(site: Served) -> None:
    async with site.visit("viewer") as page:
        await page.add_init_script(_STATE.replace("STATE", "hidden"))
        await page.goto(f"{site.base}/feed")
        await site.world.wallet(label="Before it was seen", funds=None)
        await expect(page.get_by_text("Before it was seen")).to_have_count(0)
        await _show(page, "visible")
        await page.get_by_text("Before it was seen").first.wait_for()


async def test_open_page_goes_on_after_a_restart_of_the_service(own_world: ServiceWorld, browser: Browser) -> None:
    with socket.create_server(("127.0.0.1", 0)) as one:
        port = one.getsockname()[1]
    async with served(own_world, port) as base:
        site = Served(own_world, browser, base.replace("127.0.0.1", "localhost") + "/dashboard")
        visit = site.visit("operator")
        page = await visit.__aenter__()
        await page.goto(f"{site.base}/feed")
    try:
        await own_world.restart()
        async with served(own_world, port):
            await own_world.wallet(label="After the restart", funds=None)
            await page.get_by_text("After the restart").first.wait_for(timeout=30_000)
            await page.get_by_role("link", name="After the restart").first.click()
            await page.get_by_role("button", name="Freeze", exact=True).click()
            await page.locator(".badge.frozen").wait_for()
    finally:
        await visit.__aexit__(None, None, None)


async def _until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE):
        while not holds():  # noqa: ASYNC110 - nothing says so
            await asyncio.sleep(0.02)


async def _show(page: Page, state: str) -> None:
    """Hide a page or show it again, as switching tabs does."""
    await page.evaluate(_STATE.replace("STATE", state) + "document.dispatchEvent(new Event('visibilitychange'));")
