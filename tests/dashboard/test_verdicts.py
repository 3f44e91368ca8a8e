"""The page of a transaction with its refusal's reason, and the form that tries a payment."""

import re

import pytest
from playwright.async_api import expect

from tests.dashboard.browsing import LOOKS, Crafted, Served, findings, overflow, sign_in
from tests.support.service_world import Json, ServiceWorld

pytestmark = pytest.mark.asyncio(loop_scope="session")


def _verdicts(page: str) -> dict[str, list[str]]:
    """The cells of each rule's row."""
    found = {}
    for row in re.findall(r"<tr><th.*?</tr>", page.partition('aria-label="Verdicts"')[2], re.DOTALL):
        name, *cells = (re.sub("<[^>]*>", "", one).strip() for one in re.findall(r"<t[hd].*?</t[hd]>", row, re.DOTALL))
        found[name] = cells
    return found


async def _spender(world: ServiceWorld) -> tuple[Json, str]:
    policy = await world.policy(maxPerTx="10", maxPerDay="20", requireCoSign="8", name="Ads")
    wallet, payee = await world.wallet(policy["policy_id"], label="Ad buyer"), await world.payee()
    await world.pay(wallet, payee, "7.50")
    return wallet, payee


@pytest.mark.proves("GET /dashboard/transactions/{tx_id}")
async def test_refused_payment_shows_its_rule_and_all_verdicts_now(site: Served) -> None:
    world = site.world
    wallet, payee = await _spender(world)
    await world.pay(wallet, payee, "12.75")
    async with site.visit("viewer") as page:
        await page.goto(f"{site.base}/vaults/{wallet['wallet_id']}")
        await page.get_by_role("link", name="Why was this refused?").first.click()
        await page.get_by_role("heading", name="Payment of 12.75 USDC").wait_for()
        text = await page.locator("main").inner_text()
        assert "Per payment: 12.75 is above the 10.00 limit per payment." in text
        assert "The rule belongs to the policy Ads." in text
        assert "The payment would be refused now." in text
        verdicts = _verdicts(await page.content())
        assert verdicts["Per payment"] == ["Refuses", "12.75", "10.00", "10.00"]
        assert verdicts["In 24 hours"] == ["Refuses", "20.25", "20.00", "12.50"]
        assert verdicts["Approval above"][:3] == ["Needs an approval", "12.75", "8.00"]
        assert verdicts["Frozen"][0] == "Passes"
        await page.get_by_role("link", name="Try another amount or recipient").click()
        await expect(page.get_by_label("Amount (USDC)")).to_have_value("12.75")
        await expect(page.get_by_label("Recipient")).to_have_value(payee)
    assert site.violations == []


@pytest.mark.proves("GET /dashboard/vaults/{wallet_id}/try")
async def test_payment_is_tried_and_no_money_moves(site: Served) -> None:
    world = site.world
    wallet, payee = await _spender(world)
    before = await world.ok("GET", f"/v1/wallets/{wallet['wallet_id']}")
    listed = await world.ok("GET", f"/v1/wallets/{wallet['wallet_id']}/transactions")
    for look in LOOKS:
        async with site.visit("viewer", **look) as page:
            await page.goto(f"{site.base}/vaults/{wallet['wallet_id']}")
            await page.get_by_role("link", name="Try a payment").click()
            await page.get_by_label("Recipient").fill(payee)
            await page.get_by_label("Amount (USDC)").fill("4.25")
            await page.get_by_role("button", name="Try", exact=True).click()
            await page.get_by_text("The rules would let this payment pass now.").wait_for()
            assert _verdicts(await page.content())["In 24 hours"] == ["Passes", "11.75", "20.00", "12.50"]
            assert await findings(page) == []
            assert await overflow(page) <= 0
    assert await world.ok("GET", f"/v1/wallets/{wallet['wallet_id']}") == before
    assert await world.ok("GET", f"/v1/wallets/{wallet['wallet_id']}/transactions") == listed
    assert site.violations == []


@pytest.mark.proves("GET /dashboard/vaults/{wallet_id}/try")
async def test_wrong_fields_of_a_tried_payment_are_explained(world: ServiceWorld) -> None:
    wallet, payee = await _spender(world)
    viewer, path = Crafted(world, sign_in(world, "viewer")), f"/dashboard/vaults/{wallet['wallet_id']}/try"
    wrongs = (("amount", payee, "x"), ("amount", payee, ""), ("to", "no<b>body", "1"), ("to", "", "1"))
    for field, to, amount in wrongs:
        answer = await viewer.client.get(path, params={"to": to, "amount": amount})
        assert answer.status_code == 200
        assert re.search(rf'class="says wrong" id="{field}-says">[A-Z\w]', answer.text), (field, to, amount)
        assert "<b>body" not in answer.text
        assert 'id="verdicts"' not in answer.text
    shown = (await viewer.client.get(path, params={"to": payee, "amount": "99999"})).text
    assert "Refuses" in shown
    await world.ok("PATCH", f"/v1/wallets/{wallet['wallet_id']}", {"status": "frozen"})
    frozen = (await viewer.client.get(path, params={"to": payee, "amount": "1"})).text
    assert _verdicts(frozen)["Frozen"][0] == "Refuses"


async def test_transaction_of_another_organisation_is_not_found(own_world: ServiceWorld) -> None:
    wallet, payee = await _spender(own_world)
    [paid] = (await own_world.ok("GET", f"/v1/wallets/{wallet['wallet_id']}/transactions?type=payment"))["data"]
    stranger = Crafted(own_world, sign_in(own_world, "admin", org=await own_world.organisation("other")))
    assert (await stranger.client.get(f"/dashboard/transactions/{paid['tx_id']}")).status_code == 404
    assert (await stranger.client.get(f"/dashboard/vaults/{wallet['wallet_id']}/try")).status_code == 404
    viewer = Crafted(own_world, sign_in(own_world, "viewer"))
    shown = (await viewer.client.get(f"/dashboard/transactions/{paid['tx_id']}")).text
    assert f'data-copy="{payee}"' in shown
    assert "\N{MINUS SIGN}7.50" in shown
