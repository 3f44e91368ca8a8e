"""The page of alert rules: of all vaults, and of one."""

import pytest
from playwright.async_api import expect

from tests.dashboard.browsing import Crafted, Served, findings, log, overflow, refusals, sign_in
from tests.support.service_world import ServiceWorld

pytestmark = pytest.mark.asyncio(loop_scope="session")


@pytest.mark.proves("GET /dashboard/alerts", "POST /dashboard/alerts")
async def test_rules_are_typed_refused_and_saved(site: Served) -> None:
    world = site.world
    async with site.visit("operator") as page:
        await page.goto(f"{site.base}/alerts")
        await page.get_by_text("No mail server is set").wait_for()
        await page.get_by_label("Balance below").fill("ten")
        await page.get_by_label("Hours without").fill("0")
        low = page.get_by_role("group", name="Balance low").get_by_label("E-mails to")
        await low.fill("ops@example.com\nnobody")
        await page.get_by_role("button", name="Save").click()
        await page.locator("#balance_low_threshold[aria-invalid]").wait_for()
        await expect(page.locator("#balance_low_emails-says")).to_contain_text("e-mail address")
        await expect(page.locator("#inactivity_threshold-says")).to_contain_text("at least 1")
        await expect(page.get_by_label("Balance below")).to_have_value("ten")
        await expect(low).to_have_value("ops@example.com\nnobody")
        assert await findings(page) == []

        await page.get_by_label("Balance below").fill("10")
        await page.get_by_label("Hours without").fill("")
        await low.fill("ops@example.com, cfo@example.com")
        sends = page.get_by_role("group", name="Refused payments").get_by_label("Send e-mails")
        await sends.uncheck()
        await page.get_by_role("button", name="Save").click()
        await page.get_by_text("The alert rules are saved.").wait_for()
        await expect(low).to_have_value("ops@example.com\ncfo@example.com")
        await expect(sends).not_to_be_checked()
    saved = await world.ok("GET", "/v1/alerts")
    assert saved["balance_low"]["threshold"] == "10.00"
    assert saved["balance_low"]["emails"] == ["ops@example.com", "cfo@example.com"]
    assert (saved["inactivity"]["threshold"], saved["policy_violation"]["enabled"]) == (None, False)
    assert log(world, "alerts.set")[0].actor.type == "person"
    assert site.violations == []


@pytest.mark.proves("GET /dashboard/vaults/{wallet_id}/alerts", "POST /dashboard/vaults/{wallet_id}/alerts")
async def test_vault_has_rules_of_its_own_or_those_of_all(site: Served) -> None:
    world = site.world
    await world.ok("PUT", "/v1/alerts", {"largeTransaction": {"threshold": "50", "emails": ["ops@example.com"]}})
    wallet = await world.wallet(label="Watched")
    path = f"/v1/wallets/{wallet['wallet_id']}/alerts"
    async with site.visit("admin", viewport={"width": 390, "height": 844}, color_scheme="dark") as page:
        await page.goto(f"{site.base}/vaults/{wallet['wallet_id']}")
        await page.get_by_role("link", name="Rules and e-mails").click()
        await page.get_by_role("heading", name="Alerts of Watched").wait_for()
        large = page.get_by_role("group", name="Large payment")
        await large.get_by_text("As for all vaults: amount above (USDC) 50.00").wait_for()
        await expect(large.get_by_label("E-mails to")).to_be_hidden()
        await large.get_by_label("A rule of its own").check()
        await large.get_by_label("Amount above").fill("5")
        await large.get_by_label("E-mails to").fill("")
        assert await findings(page) == []
        assert await overflow(page) <= 0
        await page.get_by_role("button", name="Save").click()
        await page.get_by_text("The alert rules are saved.").wait_for()
        saved = await world.ok("GET", path)
        assert (saved["large_transaction"]["threshold"], saved["large_transaction"]["inherited"]) == ("5.00", False)
        assert saved["large_transaction"]["emails"] == ["ops@example.com"]
        assert saved["balance_low"]["inherited"]
        await large.get_by_label("A rule of its own").uncheck()
        await page.get_by_role("button", name="Save").click()
        await large.get_by_text("As for all vaults").wait_for()
    assert (await world.ok("GET", path))["large_transaction"]["inherited"]
    assert site.violations == []


@pytest.mark.proves("POST /dashboard/alerts")
async def test_viewer_and_stranger_change_no_rules(world: ServiceWorld) -> None:
    wallet = await world.wallet()
    own = f"/dashboard/vaults/{wallet['wallet_id']}/alerts"
    fields = {"balance_low_own": "yes", "balance_low_threshold": "1", "policy_violation_enabled": "yes"}
    before = await world.ok("GET", "/v1/alerts")
    viewer = Crafted(world, sign_in(world, "viewer"))
    shown = await viewer.client.get("/dashboard/alerts")
    assert "<fieldset disabled>" in shown.text
    assert ">Save<" not in shown.text
    for path in ("/dashboard/alerts", own):
        assert (await viewer.post(path, fields)).status_code == 403
    assert "POST /dashboard/alerts" in {place for _, place in await refusals(world)}
    stranger = Crafted(world, sign_in(world, "admin", org=await world.organisation("elsewhere")))
    assert (await stranger.client.get(own)).status_code == 404
    assert (await stranger.post(own, fields)).status_code == 404
    assert await world.ok("GET", "/v1/alerts") == before
    assert (await world.ok("GET", f"/v1/wallets/{wallet['wallet_id']}/alerts"))["balance_low"]["inherited"]
