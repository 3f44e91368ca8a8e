"""The numbers of pending work in the menu, and rows that wait for an approval."""

import re

import pytest

from tests.dashboard.browsing import Crafted, Served, findings, overflow, sign_in
from tests.support.escrows import agent, of
from tests.support.service_world import ServiceWorld

pytestmark = pytest.mark.asyncio(loop_scope="session")


def _numbers(text: str) -> dict[str, str]:
    """The numbers in the menu of a page, by the id of their place."""
    found = re.findall(r'<span id="(unread|waiting|disputed)" class="count">(.*?)</span></a>', text, re.DOTALL)
    return {key: re.sub("<[^>]*>", "", shown).strip() for key, shown in found}


async def test_menu_counts_approvals_and_disputes(site: Served) -> None:
    world, (wallet, approval_id) = site.world, await _asked(site.world)
    paying, receiving = await agent(world), await agent(world, funds=None)
    made = await paying.lock(receiving)
    await paying.ok("POST", of(made, "dispute"), {"reason": "late"})
    await world.catch_up()

    async with site.visit("admin") as page:
        await page.goto(f"{site.base}/vaults/{wallet}")
        menu = page.get_by_role("navigation", name="Pages")
        await menu.get_by_role("link", name="Disputes 1 disputed").wait_for()
        await page.get_by_role("cell", name="Waits for approval").wait_for()
        assert await findings(page) == []
        assert await overflow(page) <= 0
        await menu.get_by_role("link", name="Approvals 1 waiting").click()
        await page.get_by_role("button", name="Reject").click()
        await page.get_by_text("No approval is pending").wait_for()
        await menu.get_by_role("link", name="Approvals", exact=True).wait_for()
    assert (await world.ok("GET", f"/v1/approvals/{approval_id}"))["status"] == "rejected"
    await world.ok("POST", of(made, "resolve"), {"decision": "refund"})
    await world.catch_up()
    reader = Crafted(world, sign_in(world, "viewer"))
    shown = _numbers((await reader.client.get("/dashboard/feed")).text)
    assert (shown["waiting"], shown["disputed"]) == ("", "")
    assert site.violations == []


async def test_refused_payment_reads_as_waiting_while_its_approval_is_pending(site: Served) -> None:
    world = site.world
    wallet, approval_id = await _asked(world)
    reader = Crafted(world, sign_in(world, "viewer"))
    waits = '<span class="badge waits_for_approval">Waits for approval</span>'
    vault, feed = f"/dashboard/vaults/{wallet}", f"/dashboard/feed?wallet_id={wallet}&type=transaction.blocked"
    for path in (vault, feed):
        assert (await reader.client.get(path)).text.count(waits) == 1
    # The API keeps the status of its contract.
    [row] = (await world.ok("GET", f"/v1/wallets/{wallet}/transactions?status=blocked"))["data"]
    assert row["status"] == "blocked"

    await world.ok("POST", f"/v1/approvals/{approval_id}/reject", {})
    for path in (vault, feed):
        assert waits not in (await reader.client.get(path)).text


async def _asked(world: ServiceWorld) -> tuple[str, str]:
    """The id of a vault, and the approval that its payment waits for."""
    wallet = await world.wallet((await world.policy(requireCoSign="10"))["policy_id"])
    key, session = world.key("agent", wallet["wallet_id"]), await world.session(wallet)
    refused = await world.pay(wallet, await world.payee(), "20", key=key, session=session)
    return wallet["wallet_id"], refused.json()["error"]["approval_id"]
