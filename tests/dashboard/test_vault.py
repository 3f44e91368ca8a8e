"""A vault's page: what it shows, and its brake, in one browser and in another."""

import time

import pytest
from playwright.async_api import Page, expect

from app.access.request_log import RequestLog
from app.dashboard.live import FeedHub
from tests.dashboard.browsing import Crafted, Served, findings, forget_step_up, log, overflow, sign_in
from tests.support.service_world import ServiceWorld, error_of

pytestmark = pytest.mark.asyncio(loop_scope="session")


@pytest.mark.proves("GET /dashboard/vaults/{wallet_id}")
async def test_vault_shows_limits_refusals_and_explorer_links(site: Served) -> None:
    world = site.world
    policy = await world.policy(maxPerTx="10", maxPerDay="20", name="Ads")
    wallet = await world.wallet(policy["policy_id"], label="Ad buyer")
    payee = await world.payee()
    paid = (await world.pay(wallet, payee, "7.50", body={"memo": "clicks"})).json()
    await world.pay(wallet, payee, "12")
    for options in ({}, {"viewport": {"width": 390, "height": 844}}, {"color_scheme": "dark"}):
        async with site.visit("admin", **options) as page:
            await page.goto(site.base)
            await page.get_by_role("link", name="Ad buyer").click()
            await page.get_by_role("heading", name="Ad buyer").wait_for()
            text = await page.locator("main").inner_text()
            assert "7.50 of 20.00" in text
            assert "12.50 left, more from " in text
            assert "12.00 is above the 10.00 limit per payment" in text
            assert "\N{MINUS SIGN}7.50" in text
            assert "+100.00" in text
            assert "clicks" in text
            assert "7.50 USDC spent, 1 refused" in text
            await expect(page.locator(".chart canvas")).to_have_count(1)
            freeze = page.get_by_role("button", name="Freeze", exact=True)
            box = await freeze.bounding_box()
            assert box is not None
            assert box["y"] + box["height"] < 844
            assert await findings(page) == []
            assert await overflow(page) <= 0
            await page.goto(f"{site.base}/transactions/{paid['tx_id']}")
            link = page.get_by_role("link", name="explorer.solana.com").first
            assert paid["tx_signature"] in str(await link.get_attribute("href"))
    assert site.violations == []


@pytest.mark.proves("POST /dashboard/vaults/{wallet_id}/freeze", "POST /dashboard/vaults/{wallet_id}/unfreeze")
async def test_freeze_is_one_click_and_another_browser_sees_it(site: Served) -> None:
    world = site.world
    wallet, payee = await world.wallet(label="Runaway"), await world.payee()
    async with site.visit("operator") as page, site.visit("admin") as other:
        for one in (page, other):
            await one.goto(f"{site.base}/vaults/{wallet['wallet_id']}")
        await page.get_by_role("button", name="Freeze", exact=True).click()
        await page.get_by_text("Frozen. The chain refuses the vault's payments").wait_for()
        await expect(page.locator(".badge.frozen")).to_have_text("Frozen")
        refused = (await world.pay(wallet, payee, "1")).json()
        assert refused["error"]["code"] == "wallet_frozen"
        await expect(page.get_by_role("button", name="Unfreeze")).to_have_count(0)
        await other.locator(".badge.frozen").wait_for()

        await other.get_by_role("button", name="Unfreeze").click()
        await page.locator(".badge.active").wait_for()
    assert (await world.pay(wallet, payee, "1")).status_code == 200
    assert log(world, "wallet.freeze")[0].actor.type == "person"
    assert site.violations == []


@pytest.mark.proves("GET /dashboard/audit")
async def test_vault_shows_who_changed_it_at_once_and_leads_to_the_log(site: Served) -> None:
    world = site.world
    wallet, other = await world.wallet(label="Watched"), await world.wallet(label="Somebody else's")
    path = f"{site.base}/vaults/{wallet['wallet_id']}"
    async with site.visit("admin") as page, site.visit("operator") as colleague:
        await page.goto(path)
        entries = page.locator("#audit tbody tr")
        await expect(entries).to_have_count(2)
        await expect(entries.last).to_contain_text("Wallet: create")
        await colleague.goto(path)
        # The API shows the audit log to admins alone.
        await expect(colleague.locator("#audit")).to_have_count(0)
        await colleague.get_by_role("button", name="Freeze", exact=True).click()
        await expect(entries).to_have_count(3)
        await expect(entries.first).to_contain_text("Wallet: freeze")
        await expect(entries.first).to_contain_text(log(world, "wallet.freeze")[0].address or "?")
        assert await findings(page) == []

        await page.get_by_role("link", name="The whole audit log of this vault").click()
        await page.get_by_role("heading", name="Audit log").wait_for()
        listed = page.get_by_role("region", name="Audit log")
        await expect(listed.locator("tbody tr")).to_have_count(3)
        await page.get_by_label("Action").select_option("wallet.fund")
        await page.get_by_role("button", name="Show").click()
        await expect(listed.locator("tbody tr")).to_have_count(1)
        await expect(listed.locator("summary")).to_have_text("API key test funded Watched with 100.00 USDC")
        await listed.locator("summary").click()
        await expect(listed.get_by_text("Amount: 100.00")).to_be_visible()
        assert other["wallet_id"] not in await page.content()
        await page.goto(f"{site.base}/audit?actor=nobody")
        await expect(page.locator("#actor-says")).to_contain_text("must")
        assert (await colleague.goto(f"{site.base}/audit")).status == 403  # type: ignore[union-attr]
    assert site.violations == []


async def test_vault_shows_its_last_alerts_with_severity(world: ServiceWorld) -> None:
    policy = await world.policy(maxPerTx="10")
    wallet, other = await world.wallet(policy["policy_id"]), await world.wallet(policy["policy_id"])
    payee = await world.payee()
    viewer = Crafted(world, sign_in(world, "viewer"))

    async def alerts(of: dict[str, str]) -> str:
        text = (await viewer.client.get(f"/dashboard/vaults/{of['wallet_id']}")).text
        return text.split('id="alerts"')[1].split("</section>")[0]

    for _ in range(6):
        await world.pay(wallet, payee, "12")
    shown = await alerts(wallet)
    assert shown.count('<span class="badge warning">Warning</span>') == 5
    assert shown.count("Refused: 12.00 is above the 10.00 limit per payment") == 5
    more = shown.split('<p class="after"><a href="')[1].split('"')[0].replace("&amp;", "&")
    listed = (await viewer.client.get(more)).text
    assert listed.count("Refused: 12.00 is above the 10.00 limit per payment") >= 6
    assert "There are no alerts." in await alerts(other)


async def test_vault_shows_what_was_refused_while_it_was_stopped(world: ServiceWorld) -> None:
    wallet, other, payee = await world.wallet(), await world.wallet(), await world.payee()
    operator = Crafted(world, sign_in(world, "operator"))
    path = f"/dashboard/vaults/{wallet['wallet_id']}"
    await world.ok("PATCH", f"/v1/wallets/{wallet['wallet_id']}", {"status": "frozen"})
    await world.pay(wallet, payee, "1")
    await world.ok("POST", "/v1/organization/pause", {"paused": True})
    await world.pay(other, payee, "1")
    await world.pay(wallet, payee, "2")
    await world.catch_up()
    assert "All vaults are paused" in (await operator.client.get(path)).text
    await world.ok("POST", "/v1/organization/pause", {"paused": False})
    error_of(await world.pay(other, payee, "150"), 422, "wallet_insufficient_balance")
    await world.service.part(RequestLog).tick()

    text = (await operator.client.get(path)).text
    assert "2 requests were refused in the last 24 hours because the vault was frozen, all vaults were paused" in text
    assert "See the requests" not in text
    assert "All vaults are paused" not in text
    assert "2 requests were refused" in (await operator.client.get(f"/dashboard/vaults/{other['wallet_id']}")).text
    admin = Crafted(world, sign_in(world, "admin"))
    assert f"developers/requests?wallet_id={wallet['wallet_id']}" in (await admin.client.get(path)).text
    shown = (await admin.client.get(f"/dashboard/developers/requests?wallet_id={wallet['wallet_id']}")).text
    assert shown.count("/docs/errors/") == 2
    # What was never submitted is no transaction of the contract: neither blocked by a rule nor failed.
    listed = await world.ok("GET", f"/v1/wallets/{wallet['wallet_id']}/transactions?type=payment")
    assert listed["data"] == []


async def test_vault_is_found_and_frozen_by_keyboard_alone(site: Served) -> None:
    wallet = await site.world.wallet(label="By keyboard")
    async with site.visit("operator") as page:
        await page.goto(site.base)
        await page.keyboard.press("Tab")
        assert await page.evaluate("document.activeElement.textContent") == "Skip to the content"
        for name, key in (("By keyboard", "Enter"), ("Freeze", "Space")):
            await page.get_by_text(name, exact=True).first.wait_for()
            await _tab_to(page, name)
            assert await page.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "solid"
            await page.keyboard.press(key)
        await page.locator(".badge.frozen").wait_for()
    assert site.world.wallet_record(wallet["wallet_id"]).frozen == 1


async def _tab_to(page: Page, name: str) -> None:
    """Press Tab until what has this text has the focus."""
    for _ in range(100):
        if await page.evaluate("document.activeElement.textContent.trim()") == name:
            return
        await page.keyboard.press("Tab")
    raise AssertionError(f"{name} is not reached by Tab")


@pytest.mark.proves("POST /dashboard/vaults/{wallet_id}/freeze")
async def test_freeze_is_effective_within_two_seconds(world: ServiceWorld) -> None:
    wallet, payee = await world.wallet(), await world.payee()
    operator = Crafted(world, sign_in(world, "operator"))
    csrf = await operator.csrf()
    began = time.monotonic()
    answer = await operator.post(f"/dashboard/vaults/{wallet['wallet_id']}/freeze", csrf=csrf)
    assert time.monotonic() - began < 2
    assert answer.status_code == 303
    assert (await world.pay(wallet, payee, "1")).json()["error"]["code"] == "wallet_frozen"
    assert '<span class="badge frozen">Frozen</span>' in (await operator.client.get(answer.headers["location"])).text


async def test_freeze_in_the_eighth_tab_waits_for_no_stream(site: Served) -> None:
    wallet = await site.world.wallet(label="Busy")
    async with site.visit("operator") as first:
        tabs = [first, *[await first.context.new_page() for _ in range(7)]]
        for tab in tabs:
            await tab.goto(f"{site.base}/vaults/{wallet['wallet_id']}")
        # They share one connection, so that the six which a browser allows are left for what matters.
        assert len(site.world.service.part(FeedHub)) == 1
        await tabs[-1].get_by_role("button", name="Freeze", exact=True).click()
        await tabs[-1].locator(".badge.frozen").wait_for()


@pytest.mark.proves("POST /dashboard/vaults/{wallet_id}/unfreeze", "POST /dashboard/vaults/{wallet_id}/policy")
async def test_change_of_a_vault_that_needs_a_step_up_waits_for_it(world: ServiceWorld) -> None:
    wallet, policy = await world.wallet(), await world.policy(maxPerTx="1")
    path = f"/dashboard/vaults/{wallet['wallet_id']}"
    admin = Crafted(world, sign_in(world, "admin"))
    csrf = await admin.csrf()
    await admin.post(f"{path}/freeze", csrf=csrf)
    forget_step_up(world)
    for place, fields in (("unfreeze", {}), ("policy", {"policy_id": policy["policy_id"]}), ("session", {})):
        answer = await admin.post(f"{path}/{place}", fields, csrf=csrf)
        assert answer.status_code == 403
        assert "Confirm that it is you" in answer.text
    shown = await world.ok("GET", f"/v1/wallets/{wallet['wallet_id']}")
    assert (shown["status"], shown["policy"]["policy_id"]) == ("frozen", wallet["policy"]["policy_id"])
    again = Crafted(world, sign_in(world, "admin"))
    assert (await again.post(f"{path}/unfreeze")).status_code == 303
    assert (await again.post(f"{path}/policy", {"policy_id": policy["policy_id"]})).status_code == 303
    shown = await world.ok("GET", f"/v1/wallets/{wallet['wallet_id']}")
    assert (shown["status"], shown["policy"]["policy_id"]) == ("active", policy["policy_id"])


@pytest.mark.proves("POST /dashboard/vaults/{wallet_id}/session", "POST /dashboard/vaults/{wallet_id}/session/revoke")
async def test_session_is_opened_shown_once_and_revoked(world: ServiceWorld) -> None:
    wallet, payee = await world.wallet(), await world.payee()
    path = f"/dashboard/vaults/{wallet['wallet_id']}"
    operator = Crafted(world, sign_in(world, "operator"))
    wrong = await operator.post(f"{path}/session", {"ttl_seconds": "soon"})
    assert wrong.status_code == 400
    assert "must be a whole number" in wrong.text
    opened = await operator.post(f"{path}/session", {"ttl_seconds": "3600"})
    token = opened.text.partition('value="avs_')[2].partition('"')[0]
    assert (await world.pay(wallet, payee, "1", session=f"avs_{token}")).status_code == 200
    assert token not in (await operator.client.get(path)).text
    assert (await operator.post(f"{path}/session/revoke")).status_code == 303
    refused = await world.pay(wallet, payee, "1", session=f"avs_{token}")
    assert refused.json()["error"]["code"] == "session_token_invalid"


@pytest.mark.proves("GET /dashboard/vaults/{wallet_id}")
async def test_vault_of_another_organisation_is_not_found_and_on_record(own_world: ServiceWorld) -> None:
    wallet = await own_world.wallet()
    other = await own_world.organisation("other")
    stranger = Crafted(own_world, sign_in(own_world, "admin", org=other))
    path = f"/dashboard/vaults/{wallet['wallet_id']}"
    assert (await stranger.client.get(path)).status_code == 404
    for place in ("freeze", "unfreeze", "session", "session/revoke", "policy"):
        assert (await stranger.post(f"{path}/{place}", {"policy_id": "pol_locked"})).status_code == 404
    assert (await own_world.ok("GET", f"/v1/wallets/{wallet['wallet_id']}"))["status"] == "active"
    viewer = Crafted(own_world, sign_in(own_world, "viewer"))
    for place in ("freeze", "unfreeze", "session", "session/revoke", "policy"):
        assert (await viewer.post(f"{path}/{place}")).status_code == 403
