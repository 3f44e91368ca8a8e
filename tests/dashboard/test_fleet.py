"""The fleet, in a browser and without."""

import re
import time

import pytest
from playwright.async_api import expect

from tests.dashboard.browsing import Crafted, Served, findings, overflow, sign_in, statements
from tests.dashboard.many import multiply
from tests.support.service_world import ServiceWorld

pytestmark = pytest.mark.asyncio(loop_scope="session")


@pytest.mark.proves("GET /dashboard")
async def test_fleet_shows_what_every_agent_spends(site: Served) -> None:
    world = site.world
    policy = await world.policy(maxPerDay="20", maxPerMonth="100")
    spender = await world.wallet(policy["policy_id"], label="Ad buyer", tags=["ads"])
    await world.wallet(policy["policy_id"], label="Idle one", tags=["research"])
    payee = await world.payee()
    paid = (await world.pay(spender, payee, "12.50")).json()
    await world.pay(spender, payee, "12.50")

    async with site.visit("viewer") as page:
        await page.goto(site.base)
        row = page.get_by_role("row").filter(has_text="Ad buyer")
        text = await row.inner_text()
        assert "87.50" in text
        assert "12.50 / 20.00" in text
        assert "12.50 / 100.00" in text
        assert "Refused recently" in text
        assert await findings(page) == []
        await expect(page.get_by_role("link", name="API reference")).to_have_count(1)
        for sought in (payee, paid["tx_id"], paid["tx_signature"]):
            await page.get_by_label("Search").fill(sought)
            await page.get_by_role("button", name="Show").click()
            await page.locator("main p").filter(has_text="Payee" if sought == payee else "Transaction").wait_for()
            assert await findings(page) == []
        await page.get_by_label("Search").fill("ad b")
        await page.get_by_role("button", name="Show").click()
        await expect(page).to_have_url(re.compile(re.escape("q=ad+b")))
        await expect(page.get_by_role("link", name="Idle one")).to_have_count(0)
        await page.get_by_role("link", name="ads").click()
        await expect(page).to_have_url(re.compile(re.escape("tag=ads")))
        await page.goto(site.base)
        await page.get_by_role("link", name="Spent").click()
        await page.get_by_role("columnheader", name="Spent").wait_for()
        await expect(page).to_have_url(re.compile(re.escape("sort=spent")))
        first = page.locator("tbody tr").first
        await expect(first).to_contain_text("Ad buyer")
    for options in ({"viewport": {"width": 390, "height": 844}}, {"color_scheme": "dark"}):
        async with site.visit("admin", **options) as page:
            await page.goto(site.base)
            assert await findings(page) == []
            assert await overflow(page) <= 0
    assert site.violations == []


@pytest.mark.proves("POST /dashboard/freeze")
async def test_selected_vaults_are_frozen(site: Served) -> None:
    world = site.world
    chosen = [await world.wallet(label=f"Chosen {number}") for number in range(2)]
    spared = await world.wallet(label="Spared")
    async with site.visit("operator") as page:
        await page.goto(site.base)
        for number in range(2):
            await page.get_by_label(f"Select Chosen {number}").check()
        await page.get_by_role("button", name="Freeze selected").click()
        await page.get_by_text("The selected vaults are frozen.").wait_for()
    for wallet, status in (*((one, "frozen") for one in chosen), (spared, "active")):
        assert (await world.ok("GET", f"/v1/wallets/{wallet['wallet_id']}"))["status"] == status


async def test_bulk_freeze_of_another_organisations_vault_is_refused(own_world: ServiceWorld) -> None:
    wallet = await own_world.wallet()
    other = await own_world.organisation("other")
    token = sign_in(own_world, "admin", org=other)
    answer = await Crafted(own_world, token).post("/dashboard/freeze", {"wallet_id": wallet["wallet_id"]})
    assert answer.status_code == 404
    assert (await own_world.ok("GET", f"/v1/wallets/{wallet['wallet_id']}"))["status"] == "active"


async def test_bulk_freeze_stops_for_no_unknown_vault_and_tells_of_each(own_world: ServiceWorld) -> None:
    known = [(await own_world.wallet())["wallet_id"] for _ in range(2)]
    unknown = "wal_1111111111111111111111"
    crafted = Crafted(own_world, sign_in(own_world, "operator"))

    answer = await crafted.post("/dashboard/freeze", {"wallet_id": [known[0], unknown, known[1], known[0]]})

    assert answer.status_code == 404
    for wallet_id in known:
        assert (await own_world.ok("GET", f"/v1/wallets/{wallet_id}"))["status"] == "frozen"
        assert answer.text.count(f"{wallet_id}: Frozen.") == 1
    assert f"{unknown}: The organisation has no wallet with this id." in answer.text


@pytest.mark.proves("POST /dashboard/pause", "POST /dashboard/unpause")
async def test_all_is_paused_at_once_and_resumed_after_a_step_up(own_world: ServiceWorld) -> None:
    world = own_world
    wallet, payee = await world.wallet(), await world.payee()
    admin = Crafted(world, sign_in(world, "admin", stepped_up=False))
    assert (await admin.post("/dashboard/pause")).headers["location"] == "/dashboard?done=paused"
    assert (await world.pay(wallet, payee, "1")).json()["error"]["code"] == "org_paused"
    assert "All vaults are paused" in (await admin.client.get("/dashboard")).text
    assert (await admin.post("/dashboard/unpause")).status_code == 403
    token = sign_in(world, "admin")
    assert (await Crafted(world, token).post("/dashboard/unpause")).headers["location"] == "/dashboard?done=unpaused"
    assert (await world.pay(wallet, payee, "1")).status_code == 200


async def test_query_that_is_not_understood_says_so(world: ServiceWorld) -> None:
    me = Crafted(world, sign_in(world, "viewer"))
    answer = await me.client.get("/dashboard?sort=size")
    assert answer.status_code == 200
    assert "sort: must be" in answer.text


async def test_page_is_fast_and_small_with_ten_thousand_vaults(own_world: ServiceWorld) -> None:
    world = own_world
    made = await world.wallet(tags=["many"])
    world.service.db.write_now(lambda conn: multiply(conn, made["wallet_id"], 10_000))
    me = Crafted(world, sign_in(world, "viewer"))
    for query in ("", "?sort=spent&dir=desc", "?q=copy+99", "?sort=balance&dir=asc&page=300", "?tag=many"):
        await me.client.get(f"/dashboard{query}")
        began = time.process_time()
        with statements() as executed:
            answer = await me.client.get(f"/dashboard{query}")
        assert time.process_time() - began < 0.5, query
        assert len(answer.content) < 200_000
        assert answer.text.count('name="wallet_id"') == 0
        assert answer.text.count('scope="row"') == 30
        # The sums, and the table: its count, its rows, what they spent. A search also covers payees and transactions.
        most = 6 if "q=" in query else 4
        assert 2 < len([one for one in executed if "wallets" in one or "FROM transactions" in one]) <= most


async def test_every_page_names_the_organisation_the_cluster_and_a_pause(site: Served) -> None:
    async with site.visit("operator") as page:
        for path in ("/overview", "/policies"):
            await page.goto(site.base + path)
            await page.get_by_text("localnet: test money").wait_for()
        await page.get_by_role("button", name="Pause all").click()
        for path in ("/overview", "/policies"):
            await page.goto(site.base + path)
            await page.get_by_text("All vaults are paused: the chain refuses every payment from a vault.").wait_for()
            await expect(page.get_by_role("button", name="Pause all")).to_have_count(0)
    await site.world.ok("POST", "/v1/organization/pause", {"paused": False})


async def test_phone_has_four_entries_and_the_whole_menu_behind_the_last(site: Served) -> None:
    async with site.visit("admin", viewport={"width": 390, "height": 844}) as page:
        await page.goto(f"{site.base}/overview")
        await page.get_by_role("link", name="Approvals").click()
        await page.get_by_role("heading", name="Approvals", exact=True).wait_for()
        assert await page.get_by_role("link", name="Budgets").count() == 0
        await page.get_by_text("More", exact=True).click()
        assert await findings(page) == []
        await page.get_by_role("link", name="Budgets").click()
        await page.get_by_role("heading", name="Budgets", exact=True).wait_for()


async def test_recent_times_are_elapsed_and_their_titles_exact(site: Served) -> None:
    await site.world.pay(await site.world.wallet(label="Just now"), await site.world.payee(), "1")
    async with site.visit("viewer") as page:
        await page.goto(f"{site.base}?q=just+now")
        shown = page.locator("tbody time").first
        await expect(shown).to_have_text(re.compile(r"^\d+ (sec|min) ago$"))
        await expect(shown).to_have_attribute("title", re.compile(r"^\d{4}-\d\d-\d\d \d\d:\d\d:\d\d [\w/]+, .* UTC$"))
