"""The page of a request for approval: its facts, the decision on a phone, and requests that changed or were decided."""

from typing import Any

import pytest
from playwright.async_api import Page, expect

from tests.dashboard.browsing import Crafted, Served, findings, forget_step_up, log, overflow, sign_in
from tests.dashboard.test_approvals_by_people import Person, Team
from tests.support.service_world import Json, ServiceWorld

pytestmark = pytest.mark.asyncio(loop_scope="session")

_PHONE: dict[str, Any] = {"viewport": {"width": 390, "height": 844}, "has_touch": True}
_SMALL = """[...document.querySelectorAll("main :is(a, button, summary, textarea)")]
  .filter((one) => one.checkVisibility()).map((one) => [one.textContent, one.getBoundingClientRect()])
  .filter(([, box]) => box.height < 44 || box.width < 44).map(([text]) => text)"""


async def _requested(world: ServiceWorld, approval_id: str) -> Json:
    found = (await world.ok("GET", "/v1/events?type=approval.requested&limit=100"))["data"]
    event: Json = next(one for one in found if one["approval_id"] == approval_id)
    return event


async def _page(world: ServiceWorld, approval_id: str) -> str:
    reader = Crafted(world, sign_in(world, "viewer"))
    answer = await reader.client.get(f"/dashboard/approvals/{approval_id}")
    assert answer.status_code == 200
    return answer.text


async def _open(page: Page, site: Served, approval_id: str) -> None:
    await page.goto(f"{site.base}/approvals/{approval_id}")
    assert await overflow(page) <= 0
    assert await page.evaluate(_SMALL) == []
    assert await findings(page) == []


async def _ask(world: ServiceWorld, wallet: Json, to: str, amount: str, memo: str | None = None) -> str:
    body = {} if memo is None else {"memo": memo}
    key, session = world.key("agent", wallet["wallet_id"]), await world.session(wallet)
    answer = await world.pay(wallet, to, amount, body=body, key=key, session=session)
    return str(answer.json()["error"]["approval_id"])


@pytest.mark.proves("GET /dashboard/approvals/{approval_id}")
async def test_payment_is_approved_on_a_phone_by_passkey(site: Served) -> None:
    world = site.world
    team = await Team.of(world)
    approval_id = await team.refused()
    assert await team.people[0].approve(approval_id) == 303
    async with site.visit("operator", name="Jean", **_PHONE) as page:
        await page.goto(f"{site.base}/passkey")
        await page.get_by_role("button", name="Make a passkey").click()
        await page.get_by_role("heading", name="People").wait_for()
        forget_step_up(world)
        await page.goto(f"{site.base}/approvals")
        await page.get_by_role("row").filter(has_text=team.to).get_by_role("link", name="20.00").click()
        await page.get_by_role("heading", name="Payment of 20.00 USDC").wait_for()
        await _open(page, site, approval_id)
        await page.get_by_text("1 of 2 approvals").wait_for()
        await page.get_by_role("button", name="Approve").click()
        await page.get_by_role("button", name="Confirm").click()
        await page.get_by_text("Approved. The agent may repeat the refused request").wait_for()
        await page.get_by_text("2 of 2 approvals").wait_for()
        assert page.url.partition("?")[0].endswith(f"/approvals/{approval_id}")
        assert (await team.pay()).status_code == 200
        await world.catch_up()
        await _open(page, site, approval_id)
        await page.get_by_text("The agent has made this payment").wait_for()
    assert log(world, "approval.approve")[0].details["approvals"] == 2
    assert site.violations == []


async def test_link_in_an_e_mail_survives_the_sign_in(site: Served) -> None:
    world = site.world
    approval_id = await (await Team.of(world)).refused()
    there = f"{site.base}/approvals/{approval_id}"
    async with site.visit("operator", name="Jean", **_PHONE) as page:
        await page.goto(f"{site.base}/passkey")
        await page.get_by_role("button", name="Make a passkey").click()
        await page.get_by_role("heading", name="People").wait_for()
        # A planted place outside the dashboard is ignored.
        for planted, lands in ((None, there), (None, site.base), ("//evil.example/dashboard/", site.base)):
            await page.get_by_role("button", name="Sign out", exact=True).click()
            await page.get_by_role("button", name="Sign in with a passkey").wait_for()
            if lands == there:
                await page.goto(there)
            if planted is not None:
                cookie = {"name": "agent-vault-session-requested", "value": planted, "url": site.base}
                await page.context.add_cookies([cookie])  # type: ignore[list-item]
            await page.get_by_role("button", name="Sign in with a passkey").click()
            await page.wait_for_url(lands)
    assert site.violations == []


async def test_first_of_two_approvals_says_that_more_are_needed(world: ServiceWorld) -> None:
    team = await Team.of(world)
    approval_id = await team.refused()
    answer = await team.people[0].post(f"approvals/{approval_id}/approve", stay="1")
    assert answer.headers["location"].endswith(f"/approvals/{approval_id}?done=approval-counted")


async def test_payment_is_rejected_on_a_phone_with_a_reason(site: Served) -> None:
    world = site.world
    wallet = await world.wallet((await world.policy(requireCoSign="5"))["policy_id"], label="Travel agent")
    approval_id = await _ask(world, wallet, await world.payee(), "6", "Hotel")
    async with site.visit("operator", name="Jean", **_PHONE, color_scheme="dark") as page:
        await _open(page, site, approval_id)
        await page.locator("main summary").click()
        assert await page.evaluate(_SMALL) == []
        assert await findings(page) == []
        await page.get_by_label("Reason").fill("<b>Use</b> the other supplier")
        await page.get_by_role("button", name="Reject").click()
        await page.get_by_text("Reason: “<b>Use</b> the other supplier”").wait_for()
        await expect(page.locator(".badge.rejected")).to_have_count(1)
        await expect(page.get_by_role("button", name="Approve")).to_have_count(0)
    found = await world.ok("GET", f"/v1/approvals/{approval_id}")
    assert (found["status"], found["reason"]) == ("rejected", "<b>Use</b> the other supplier")
    assert site.violations == []


async def test_decision_made_elsewhere_is_shown(site: Served) -> None:
    world = site.world
    wallet = await world.wallet((await world.policy(requireCoSign="5"))["policy_id"])
    approval_id = await _ask(world, wallet, await world.payee(), "6")
    async with site.visit("operator", name="Jean", **_PHONE) as page:
        await _open(page, site, approval_id)
        # The open page shows another decision as soon as it is made, and a later one is refused.
        await world.ok("POST", f"/v1/approvals/{approval_id}/reject", {"reason": "No"})
        await page.get_by_text("Rejected or withdrawn by API key").wait_for()
        await page.get_by_role("button", name="Approve").click()
        await page.get_by_text("The approval is rejected.").wait_for()
    assert site.violations == []


async def test_request_under_an_earlier_policy_says_so(world: ServiceWorld) -> None:
    team = await Team.of(world)
    approval_id = await team.refused()
    assert "The policy or the vault has changed" not in await _page(world, approval_id)
    path = f"/v1/policies/{team.policy['policy_id']}"
    await world.ok("PATCH", path, {"approvals": {"required": 3, "above": "10"}})
    assert "The policy or the vault has changed since the request" in await _page(world, approval_id)
    answer = await team.people[0].post(f"approvals/{approval_id}/approve", stay="1")
    assert answer.status_code == 422
    assert "The policy or the vault has changed since the request" in answer.text
    # Another amount is another request.
    other = await team.refused(amount="21")
    assert "Payment of 21.00 USDC" in await _page(world, other)


@pytest.mark.proves("event approval.requested")
async def test_facts_name_payee_history_and_headroom(own_world: ServiceWorld) -> None:
    world = own_world
    policy = await world.policy(requireCoSign="5", maxPerDay="50", maxPerMonth="5000")
    wallet, payee = await world.wallet(policy["policy_id"], label="Ad buyer"), await world.payee()
    first = await _requested(world, await _ask(world, wallet, payee, "6"))
    assert (first["agent"], first["threshold"], first["history"]) == ("Ad buyer", "5.00", "First payment")
    assert (first["payee_name"], first["payee_category"]) == (None, "uncategorized")
    assert first["headroom"] == "50.00 USDC for the vault"

    company = await world.ok("POST", "/v1/budgets", {"name": "Company", "maxPerDay": "30", "maxTotal": "19.75"})
    limits = {"name": "Ads", "maxPerDay": "20", "parentId": company["budget_id"]}
    budget = await world.ok("POST", "/v1/budgets", limits)
    await world.ok("PATCH", f"/v1/wallets/{wallet['wallet_id']}", {"budgetId": budget["budget_id"]})
    await world.ok("PUT", "/v1/recipients/flights.example.net", {"address": payee, "category": "marketplace"})
    for _ in range(2):
        assert (await world.pay(wallet, payee, "4")).status_code == 200
    await world.catch_up()
    memo = "<img src=x onerror=alert(1)> *pay* <!channel> \u202egnp.exe\r\nTime: never"
    approval_id = await _ask(world, wallet, payee, "11.5", memo)
    second = await _requested(world, approval_id)
    assert (second["payee_name"], second["payee_category"]) == ("flights.example.net", "marketplace")
    assert second["history"] == "2 payments, 8.00 USDC this month"
    levels = "42.00 USDC for the vault, 12.00 USDC for its budget Ads, 11.75 USDC for the parent budget Company"
    assert second["headroom"] == f"11.75 USDC ({levels})"
    text = await _page(world, approval_id)
    for name in ("agent", "history", "headroom", "recipient_address"):
        assert second[name] in text
    assert "Payment of 11.50 USDC" in text
    assert "<img src=x" not in text
    assert "the 5.00 co-sign threshold" in text
    own = await world.wallet(label="Office", funds=None)
    assert (await _requested(world, await _ask(world, wallet, own["wallet_id"], "7")))["payee_name"] == "Vault Office"
    assert "<strong>flights.example.net</strong>" in text
    assert "Marketplace" in text
    await world.later(40 * 86_400)
    assert "No payment this month, but earlier ones" in await _page(world, approval_id)


async def test_facts_without_the_chain_say_so(own_world: ServiceWorld) -> None:
    world = own_world
    wallet = await world.wallet((await world.policy(requireCoSign="5"))["policy_id"])
    approval_id = await _ask(world, wallet, await world.payee(), "6")
    world.line.lose_requests = lambda method: method == "getMultipleAccounts"
    assert "Unknown, because the chain does not answer" in await _page(world, approval_id)


async def test_other_organisations_see_nothing(world: ServiceWorld) -> None:
    reader = Crafted(world, Person(world, "Ada", "viewer").browser.token)
    assert (await reader.client.get("/dashboard/approvals/apr_none")).status_code == 404
