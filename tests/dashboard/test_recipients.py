"""Recipients: addresses and domains are listed, and registered after a step-up."""

import pytest
from playwright.async_api import expect
from solders.keypair import Keypair

from tests.dashboard.browsing import LOOKS, Crafted, Served, findings, forget_step_up, log, overflow, refusals, sign_in
from tests.support.service_world import ServiceWorld

pytestmark = pytest.mark.asyncio(loop_scope="session")

_PATH = "/dashboard/recipients"


@pytest.mark.proves("GET /dashboard/recipients")
async def test_address_and_domain_are_registered_and_listed(site: Served) -> None:
    world, shop, store = site.world, str(Keypair().pubkey()), str(Keypair().pubkey())
    async with site.visit("operator") as page:
        await page.goto(site.base)
        await page.get_by_role("link", name="Recipients").click()
        await page.get_by_text("Nothing is registered yet.").wait_for()
        for name, address, category in ((shop, "", "Gambling"), ("Store.Example.com", store, "Marketplace")):
            await page.get_by_label("Address or domain").fill(name)
            await page.get_by_label("Address of the domain").fill(address)
            await page.get_by_label("Category").select_option(category)
            await page.get_by_role("button", name="Register").click()
            await page.get_by_text("The recipient is registered.").wait_for()
            await page.goto(f"{site.base}/recipients")
        await expect(page.get_by_role("row").filter(has_text=shop)).to_contain_text("Gambling")
        text = await page.get_by_role("row").filter(has_text="store.example.com").inner_text()
        assert store in text
        assert "Marketplace" in text
    for look in LOOKS:
        async with site.visit("operator", **look) as page:
            await page.goto(f"{site.base}/recipients")
            assert await findings(page) == []
            assert await overflow(page) <= 0
    assert (await world.ok("GET", "/v1/recipients/store.example.com"))["address"] == store
    entry = log(world, "recipient.register")[0]
    assert (entry.actor.type, entry.details["address"]) == ("person", store)
    assert site.violations == []


@pytest.mark.proves("POST /dashboard/recipients")
async def test_registration_waits_for_a_step_up(world: ServiceWorld) -> None:
    address = str(Keypair().pubkey())
    operator = Crafted(world, sign_in(world, "operator"))
    csrf = await operator.csrf()
    forget_step_up(world)
    answer = await operator.post(_PATH, {"recipient": address, "category": "nft"}, csrf=csrf)
    assert answer.status_code == 403
    assert "Confirm that it is you" in answer.text
    assert (await world.call("GET", f"/v1/recipients/{address}")).status_code == 404


@pytest.mark.proves("GET /dashboard/recipients")
async def test_remaining_delay_of_a_registration_is_shown(own_world: ServiceWorld) -> None:
    await own_world.restart(attestation_delay=2 * 3600)
    slow = await own_world.organisation("slow")
    operator = Crafted(own_world, sign_in(own_world, "operator", org=slow))
    address = str(Keypair().pubkey())
    assert (await operator.post(_PATH, {"recipient": address, "category": "nft"})).status_code == 303
    assert "in 1 h 59 min" in (await operator.client.get(_PATH)).text
    await own_world.later(3600)
    assert "in 59 min" in (await operator.client.get(_PATH)).text
    await own_world.later(3600)
    assert 'class="badge pending"' not in (await operator.client.get(_PATH)).text


@pytest.mark.proves("POST /dashboard/recipients")
@pytest.mark.parametrize(
    ("fields", "field", "says"),
    [
        ({"recipient": "<b>nobody"}, "recipient", "The recipient must be a chain address or a domain."),
        ({"recipient": ""}, "recipient", "The recipient must be a chain address or a domain."),
        ({"recipient": "bare.example.com"}, "address", "Give the chain address of the domain."),
        ({"recipient": "bare.example.com", "address": "zero0"}, "address", "Give the chain address of"),
        ({"recipient": "bare.example.com", "category": "fun"}, "category", "This field must be one of"),
    ],
)
async def test_bad_registration_is_refused_at_its_field_and_kept(
    world: ServiceWorld, fields: dict[str, str], field: str, says: str
) -> None:
    operator = Crafted(world, sign_in(world, "operator"))
    answer = await operator.post(_PATH, {"address": "", "category": "", **fields})
    assert answer.status_code == 400
    assert answer.text.partition(f'id="{field}-says">')[2].startswith(says)
    kept = fields["recipient"].replace("<", "&lt;").replace(">", "&gt;")
    assert f'value="{kept}"' in answer.text


async def test_only_an_admin_changes_a_registration(world: ServiceWorld) -> None:
    address = str(Keypair().pubkey())
    operator, admin = (Crafted(world, sign_in(world, role)) for role in ("operator", "admin"))
    assert (await operator.post(_PATH, {"recipient": address, "category": "nft"})).status_code == 303
    refused = await operator.post(_PATH, {"recipient": address, "category": "weapons"})
    assert refused.status_code == 403
    assert "Only an admin may change" in refused.text
    assert (await world.ok("GET", f"/v1/recipients/{address}"))["category"] == "nft"
    assert (await admin.post(_PATH, {"recipient": address, "category": "weapons"})).status_code == 303
    assert (await world.ok("GET", f"/v1/recipients/{address}"))["category"] == "weapons"


async def test_viewer_sees_no_form_and_another_organisation_no_row(own_world: ServiceWorld) -> None:
    world, address = own_world, str(Keypair().pubkey())
    await world.ok("PUT", f"/v1/recipients/{address}", {"category": "nft"})
    viewer = Crafted(world, sign_in(world, "viewer"))
    text = (await viewer.client.get(_PATH)).text
    assert address in text
    assert text.count('method="post"') == 1, "only the sign-out"
    assert (await viewer.post(_PATH, {"recipient": address, "category": "weapons"})).status_code == 403
    who, what = (await refusals(world))[0]
    assert who.startswith("person:")
    assert what == f"POST {_PATH}"
    assert (await world.ok("GET", f"/v1/recipients/{address}"))["category"] == "nft"
    other = await world.organisation("other")
    stranger = Crafted(world, sign_in(world, "admin", org=other))
    assert address not in (await stranger.client.get(_PATH)).text
    for cursor in ("none", "x" * 600):
        answer = await stranger.client.get(f"{_PATH}?cursor={cursor}")
        assert answer.status_code == 200
        assert "from its start" in answer.text
