"""Two people at once, each in a browser of their own."""

import asyncio

import pytest
from playwright.async_api import Page, expect

from tests.dashboard.browsing import Served, asking, log

pytestmark = pytest.mark.asyncio(loop_scope="session")


async def test_two_decisions_at_once_leave_one_that_both_see(site: Served) -> None:
    world = site.world
    await asking(world, "6")
    async with site.visit("operator") as one, site.visit("admin") as other:
        for page in (one, other):
            await page.goto(f"{site.base}/approvals")
        await asyncio.gather(_decide(one, "Approve"), _decide(other, "Reject"))
        [decided] = (await world.ok("GET", "/v1/approvals"))["data"]
        assert decided["status"] in {"approved", "rejected"}
        for page in (one, other):
            await page.goto(f"{site.base}/approvals")
            await page.locator(f".badge.{decided['status']}").wait_for()
            await expect(page.get_by_role("button", name="Approve")).to_have_count(0)
    assert site.violations == []


async def test_two_freezes_at_once_both_succeed(site: Served) -> None:
    wallet = await site.world.wallet(label="Runaway")
    async with site.visit("operator") as one, site.visit("admin") as other:
        for page in (one, other):
            await page.goto(f"{site.base}/vaults/{wallet['wallet_id']}")
        await asyncio.gather(_press(one, "Freeze"), _press(other, "Freeze"))
        for page in (one, other):
            await page.get_by_text("Frozen. The chain refuses the vault's payments").wait_for()
    assert len({entry.actor for entry in log(site.world, "wallet.freeze")}) == 2


async def test_removed_persons_open_page_changes_nothing_more(site: Served) -> None:
    wallet = await site.world.wallet(label="Contested")
    async with site.visit("operator", name="Leaver") as leaver, site.visit("admin") as admin:
        await leaver.goto(f"{site.base}/vaults/{wallet['wallet_id']}")
        await admin.goto(f"{site.base}/people")
        row = admin.get_by_role("row").filter(has_text="Leaver")
        await row.get_by_role("button", name="Remove").click()
        await admin.get_by_text("The person was removed").wait_for()
        await _press(leaver, "Freeze")
        await leaver.get_by_text("Your session has ended.").wait_for()
    assert site.world.wallet_record(wallet["wallet_id"]).frozen == 0


async def _decide(page: Page, name: str) -> None:
    """Press a button and wait for the answer: that of the slower one may be a refusal."""
    async with page.expect_navigation():
        await _press(page, name)
    await page.locator(".notice").first.wait_for()


async def _press(page: Page, name: str) -> None:
    await page.get_by_role("button", name=name, exact=True).click()
