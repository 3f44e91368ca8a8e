"""Recipients: addresses and domains are listed, and registered after a step-up."""

import re
from html import unescape

import pytest
from playwright.async_api import expect
from solders.keypair import Keypair

from app.core.timestamps import DAY, parse_iso_ms
from tests.dashboard.browsing import (
    LOOKS,
    Crafted,
    Served,
    findings,
    forget_step_up,
    log,
    overflow,
    posted,
    refusals,
    sign_in,
)
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
    assert set(posted(text)) <= {"/dashboard/sign-out", "/dashboard/pause"}
    assert (await viewer.post(_PATH, {"recipient": address, "category": "weapons"})).status_code == 403
    who, what = (await refusals(world))[0]
    assert who.startswith("person:")
    assert what == f"POST {_PATH}"
    assert (await world.ok("GET", f"/v1/recipients/{address}"))["category"] == "nft"
    other = await world.organisation("other")
    stranger = Crafted(world, sign_in(world, "admin", org=other))
    assert address not in (await stranger.client.get(_PATH)).text
    for wrong in ("cursor=none", f"cursor={'x' * 600}", f"q={'x' * 101}"):
        answer = await stranger.client.get(f"{_PATH}?{wrong}")
        assert answer.status_code == 200
        assert 'class="notice bad"' in answer.text


@pytest.mark.proves("GET /dashboard/recipients")
async def test_directory_shows_sums_and_is_searched_page_by_page(own_world: ServiceWorld) -> None:
    world, viewer = own_world, Crafted(own_world, sign_in(own_world, "viewer"))
    wallet, other, payee = await world.wallet(), await world.wallet(label="Press office"), await world.payee()
    for number in range(25):
        address = payee if number == 3 else str(Keypair().pubkey())
        await world.ok("PUT", f"/v1/recipients/shop-{number}.example.com", {"address": address, "category": "nft"})
    await world.ok("PUT", f"/v1/recipients/{other['chain_address']}", {"category": "nft"})
    for amount in ("2", "3.25"):
        await world.pay(wallet, payee, amount)
    await world.later(40 * 86_400)
    await world.pay(other, payee, "4")
    await world.pay(other, payee, "1000")
    await world.catch_up()

    listed, path = "", f"{_PATH}?q="
    for _ in range(2):
        page = (await viewer.client.get(path)).text
        listed += page
        path = unescape(page.partition('rel="next" href="')[2].partition('"')[0])
    assert path == ""
    assert all(f"shop-{number}.example.com" in listed for number in range(25))
    assert "Press office" in listed

    for search in ("SHOP-3.", payee):
        found = (await viewer.client.get(_PATH, params={"q": search})).text
        [row] = re.findall(r'<tr><th scope="row".*?</tr>', found, re.DOTALL)
        text = " ".join(re.sub("<[^>]*>", " ", row).split())
        assert text.startswith(f"shop-3.example.com {payee} Copy NFT 9.25 3 ")
        assert "Press office" in text
        times = [parse_iso_ms(one) for one in re.findall(r'datetime="([^"]+)"', row)]
        assert 39 < (times[1] - times[0]) / DAY < 41
    link = unescape(found.partition('<td class="right"><a href="')[2].partition('"')[0])
    assert (await viewer.client.get(link)).text.count('class="badge confirmed"') == 3
    assert "No recipient matches" in (await viewer.client.get(_PATH, params={"q": "%"})).text
