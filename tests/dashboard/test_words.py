"""What pages say of errors, and of a registration that replaces another."""

import re

import pytest
from playwright.async_api import expect
from solders.keypair import Keypair

from app.core.errors import ConflictError, RequestError
from app.dashboard.forms.error_messages import FOR_PEOPLE, said
from app.dashboard.forms.formatting import device
from tests.dashboard.browsing import Crafted, Served, log, sign_in
from tests.support.service_world import Json, ServiceWorld

pytestmark = pytest.mark.asyncio(loop_scope="session")

#: Terms of the API that a page has no use for.
_OF_THE_API = re.compile(r"`|If-Match|ETag|[Ii]dempotency|API key|header|parameter")


@pytest.mark.parametrize("code", sorted(FOR_PEOPLE))
async def test_message_of_a_page_has_no_term_of_the_api(code: str) -> None:
    assert not _OF_THE_API.search(said(RequestError(code)))
    # What a use case says of the very case is kept.
    assert said(ConflictError(code, "The vault holds 5.00 USDC.")) == "The vault holds 5.00 USDC."


async def test_conflict_that_the_chain_finds_is_in_peoples_words(world: ServiceWorld) -> None:
    policy = await world.policy(maxPerTx="5")
    admin, path = Crafted(world, sign_in(world, "admin")), f"/dashboard/policies/{policy['policy_id']}"
    stale = await admin.post(f"{path}/delete", {"expected_version": "1-00000000"})
    assert (stale.status_code, "Another change was saved while you were editing." in stale.text) == (409, True)
    assert "If-Match" not in stale.text


async def _registered(world: ServiceWorld, name: str) -> Json | None:
    answer = await world.call("GET", f"/v1/recipients/{name}")
    return answer.json() if answer.status_code == 200 else None


async def test_second_domain_of_an_address_is_asked_before_it_replaces(site: Served) -> None:
    world, shop, store = site.world, str(Keypair().pubkey()), str(Keypair().pubkey())
    await world.ok("PUT", "/v1/recipients/first.example.com", {"address": shop, "category": "marketplace"})
    async with site.visit("admin", name="Ada") as page:
        await page.goto(f"{site.base}/recipients")
        await page.get_by_label("Address or domain").fill("second.example.com")
        await page.get_by_label("Address of the domain").fill(shop)
        await page.get_by_role("button", name="Register").click()
        row = page.get_by_role("row").filter(has_text="Name of")
        await expect(row).to_contain_text(re.compile(f"{shop}.*first.example.com.*second.example.com"))
        assert await _registered(world, "second.example.com") is None
        await page.get_by_role("button", name="Change").click()
        await expect(page.get_by_label("Address of the domain")).to_have_value(shop)
        await page.get_by_role("button", name="Register").click()
        await page.get_by_role("button", name="Replace").click()
        await expect(page.get_by_text("that it replaces is no longer registered.")).to_be_visible()
        assert await _registered(world, "first.example.com") is None
        # A domain that moves is asked about, too.
        await page.get_by_label("Address or domain").fill("second.example.com")
        await page.get_by_label("Address of the domain").fill(store)
        await page.get_by_role("button", name="Register").click()
        await expect(page.get_by_role("row").filter(has_text="Address of")).to_contain_text(store)
        await page.get_by_role("button", name="Replace").click()
        await expect(page.get_by_text("that it replaces is no longer registered.")).to_be_visible()
    found = await _registered(world, "second.example.com")
    assert found is not None
    assert found["address"] == store
    assert log(world, "recipient.register")[0].actor.type == "person"
    assert site.violations == []


async def test_replacement_that_was_not_shown_is_asked_again(world: ServiceWorld) -> None:
    shop = str(Keypair().pubkey())
    await world.ok("PUT", "/v1/recipients/shown.example.com", {"address": shop})
    fields = {"recipient": "new.example.com", "address": shop, "category": "", "replaces": "other.example.com"}
    admin, operator = (Crafted(world, sign_in(world, role)) for role in ("admin", "operator"))
    asked = await admin.post("/dashboard/recipients", fields)
    assert (asked.status_code, "shown.example.com" in asked.text) == (200, True)
    refused = await operator.post("/dashboard/recipients", {**fields, "replaces": ""})
    assert (refused.status_code, "Only an admin may change a registration." in refused.text) == (403, True)
    assert (await _registered(world, shop) or {})["domain"] == "shown.example.com"


async def test_key_of_an_agent_names_its_vault_as_people_do(world: ServiceWorld) -> None:
    wallet = await world.wallet(label="Key holder", funds=None)
    admin, path = Crafted(world, sign_in(world, "admin")), "/dashboard/developers/keys"
    for role, typed, message in (
        ("agent", "", "This field is required."),
        ("agent", "nobody at all", "No vault matches. An archived vault is found only by its id."),
        ("viewer", "Key holder", "Only an agent&#39;s key is bound to a vault."),
    ):
        refused = await admin.post(path, {"name": "Mine", "role": role, "wallet_id": typed})
        assert refused.status_code == 400
        assert f'<p class="says wrong" id="wallet_id-says">{message}' in refused.text
    assert (await admin.post(path, {"name": "Mine", "role": "agent", "wallet_id": "Key holder"})).status_code == 200
    keys = (await world.ok("GET", "/v1/keys?limit=1"))["data"]
    assert (keys[0]["role"], keys[0]["wallet_id"]) == ("agent", wallet["wallet_id"])


@pytest.mark.parametrize(
    ("sent", "shown"),
    [
        (
            "Mozilla/5.0 (Macintosh; Intel Mac OS X 10_15_7) AppleWebKit/537.36 Chrome/120.0 Safari/537.36",
            "Chrome on macOS",
        ),
        ("Mozilla/5.0 (Windows NT 10.0) AppleWebKit/537.36 Chrome/120.0 Safari/537.36 Edg/120.0", "Edge on Windows"),
        ("Mozilla/5.0 (iPhone; CPU iPhone OS 17_0 like Mac OS X) Version/17.0 Safari/604.1", "Safari on iPhone"),
        ("Mozilla/5.0 (X11; Linux x86_64; rv:142.0) Gecko/20100101 Firefox/142.0", "Firefox on Linux"),
        ("", "Unknown browser"),
    ],
)
async def test_device_names_browser_and_system(sent: str, shown: str) -> None:
    assert device(sent) == shown
