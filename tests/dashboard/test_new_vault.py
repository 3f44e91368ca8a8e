"""A vault made by hand: from the fleet to an agent that pays, and what the form refuses."""

import pytest
from playwright.async_api import expect

from app.core.signers import read_key
from tests.dashboard.browsing import Crafted, Served, log, refusals, sign_in
from tests.support.service_world import ServiceWorld

pytestmark = pytest.mark.asyncio(loop_scope="session")

_TYPED = {"label": "By hand", "agent_id": "by-hand", "policy_id": "pol_moderate"}


@pytest.mark.proves("GET /dashboard/vaults/new", "POST /dashboard/vaults")
async def test_operator_makes_a_vault_funds_it_and_its_agent_pays(site: Served) -> None:
    world = site.world
    budget = await world.ok("POST", "/v1/budgets", {"name": "Team", "maxPerDay": "20"})
    await world.wallet(agentId="taken")
    async with site.visit("operator") as page:
        await page.goto(site.base)
        await page.get_by_role("link", name="New vault").click()
        await page.get_by_label("Name").fill("Buyer of maps")
        await page.get_by_label("Agent id").fill("taken")
        await page.get_by_label("Policy").select_option("pol_moderate")
        await page.get_by_label("Budget").select_option("Team")
        await page.get_by_label("Tags").fill("maps, ,research")
        await page.get_by_role("button", name="Create").click()
        # An agent has one vault. What was typed stays.
        await expect(page.locator(".notice.bad")).to_be_visible()
        await expect(page.get_by_label("Budget")).to_have_value(budget["budget_id"])
        await expect(page.get_by_label("Tags")).to_have_value("maps, ,research")
        await page.get_by_label("Agent id").fill("map-buyer")
        await page.get_by_role("button", name="Create").click()
        await expect(page.get_by_text("The vault was created.")).to_be_visible()
        await expect(page.get_by_role("heading", name="Buyer of maps")).to_be_visible()
        wallet_id = page.url.rpartition("/")[2].partition("?")[0]
        await page.get_by_role("link", name="Fund or withdraw").click()
        await page.get_by_label("From the reserve").fill("9")
        await page.get_by_role("button", name="Review the funding").click()
        await page.get_by_role("button", name="Fund", exact=True).click()
        await expect(page.get_by_text("The funding is confirmed")).to_be_visible()
        await page.goto(f"{site.base}/vaults/{wallet_id}")
        await page.get_by_role("button", name="Open", exact=True).click()
        token = await page.get_by_label("Session token").input_value()
        await expect(page.get_by_role("heading", name="The agent's settings")).to_be_visible()
        # An open page follows with its chart, too.
        await page.goto(f"{site.base}/vaults/{wallet_id}")
        paid = await world.pay({"wallet_id": wallet_id}, await world.payee(), "4", session=token)
        assert paid.json()["status"] == "confirmed"
        await expect(page.get_by_text("4.00 USDC spent, 0 refused.")).to_be_visible()
        await expect(page.locator("[data-chart] canvas")).to_have_count(1)
    made = await world.ok("GET", f"/v1/wallets/{wallet_id}")
    assert (made["agent_id"], made["tags"]) == ("map-buyer", ["maps", "research"])
    assert (made["policy"]["policy_id"], made["budget_id"]) == ("pol_moderate", budget["budget_id"])
    assert (log(world, "wallet.create")[0].actor.type, log(world, "wallet.create")[0].object) == ("person", wallet_id)
    assert site.violations == []


@pytest.mark.proves("POST /dashboard/vaults")
async def test_form_names_the_field_and_keeps_the_rest(world: ServiceWorld) -> None:
    operator = Crafted(world, sign_in(world, "operator"))
    for field, text, said in (
        ("agent_id", " padded", "space"),
        ("label", "", "is required"),
        ("tags", f"fine,{'x' * 65}", "Entry 2 must have at most 64"),
        ("policy_id", "pol_unknown", "olicy"),
        ("budget_id", "bud_unknown", "udget"),
    ):
        answer = await operator.post("/dashboard/vaults", {**_TYPED, "label": "Kept", field: text})
        assert answer.status_code in {400, 404}, field
        assert said in answer.text, field
        assert 'value="by-hand"' in answer.text or field == "agent_id"


async def test_viewer_makes_no_vault(world: ServiceWorld) -> None:
    viewer = Crafted(world, sign_in(world, "viewer"))
    answer = await viewer.post("/dashboard/vaults", _TYPED)
    assert answer.status_code == 403
    assert (await refusals(world))[0][1] == "POST /dashboard/vaults"
    assert "New vault" not in (await viewer.client.get("/dashboard")).text
    assert (await viewer.client.get("/dashboard/vaults/new")).status_code == 403


async def test_vault_waits_for_no_signature(own_world: ServiceWorld) -> None:
    # Given an organisation whose authority alone attaches policies, and is elsewhere
    world = own_world
    authority = world.service.signers.require_authority()
    await world.land([await world.org_update(authority.pubkey(), authority_attaches=True)], authority)
    await world.catch_up()
    key = world.settings.data_dir / "keys" / "authority.json"
    assert read_key(key) == authority
    key.rename(key.parent.parent / "elsewhere.json")
    await world.restart()
    admin = Crafted(world, sign_in(world, "admin"))
    # When somebody asks for a vault
    answer = await admin.post("/dashboard/vaults", _TYPED)
    # Then it is refused, and the agent's name stays free
    assert (answer.status_code, "its key is not in the service" in answer.text) == (503, True)
    assert (await world.ok("GET", "/v1/wallets"))["data"] == []
