"""What other people's open pages show of a change that no event of the feed reports."""

import asyncio

import pytest
from playwright.async_api import expect

from app.dashboard.live import FeedHub, Message
from tests.dashboard.browsing import Served, asking, listening
from tests.support.service_world import ServiceWorld

pytestmark = pytest.mark.asyncio(loop_scope="session")


@pytest.mark.parametrize(("button", "status"), [("Approve", "Approved"), ("Reject", "Rejected")])
async def test_decision_is_seen_in_somebody_elses_open_page(site: Served, button: str, status: str) -> None:
    amount = "6" if button == "Approve" else "7"
    await asking(site.world, amount)
    async with site.visit("admin", name="Ada") as one, site.visit("viewer", name="Grace") as other:
        for page in (one, other):
            await page.goto(f"{site.base}/approvals")
            await expect(page.get_by_role("region", name="Waiting")).to_contain_text(f"{amount}.00")
        row = one.get_by_role("region", name="Waiting").get_by_role("row").filter(has_text=f"{amount}.00")
        await row.get_by_role("button", name=button).click()
        decided = other.get_by_role("region", name="Decided").get_by_role("row").filter(has_text=f"{amount}.00")
        await expect(decided).to_contain_text(status)
        await expect(other.get_by_role("region", name="Waiting")).to_have_count(0)
        await expect(other).to_have_title("Approvals · Agent Vault")
    assert site.violations == []


async def test_hint_reaches_the_organisations_own_pages_alone(own_world: ServiceWorld) -> None:
    hub = own_world.service.part(FeedHub)
    with listening(own_world, hub) as mine, listening(own_world, hub, "other") as theirs:
        async with asyncio.timeout(30):
            began = [await queue.get() for queue in (mine, theirs)]
            await own_world.ok("PUT", "/v1/organization/key-restrictions", {"required": True})
            told = await mine.get()
        assert isinstance(told, Message)
        assert told.event is None
        assert [told.reached - 1] == began[:1]
        assert theirs.empty()
