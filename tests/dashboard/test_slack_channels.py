"""The Slack channels on the page of alert rules."""

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from playwright.async_api import expect

from tests.dashboard.browsing import Crafted, Served, findings, forget_step_up, log, overflow, sign_in
from tests.support.service_world import ServiceWorld
from tests.support.slack import checked
from tests.support.webhooks import Receiver, broken

pytestmark = pytest.mark.asyncio(loop_scope="session")


@pytest_asyncio.fixture(loop_scope="session")
async def receiver() -> AsyncIterator[Receiver]:
    async with Receiver() as opened:
        yield opened


@pytest.mark.proves(
    "POST /dashboard/alerts/slack",
    "POST /dashboard/alerts/slack/{channel_id}/test",
    "POST /dashboard/alerts/slack/{channel_id}/remove",
    "action slack.save",
    "action slack.test",
    "action slack.remove",
)
async def test_channel_is_added_tested_and_removed(site: Served, receiver: Receiver) -> None:
    async with site.visit("admin", viewport={"width": 390, "height": 844}, color_scheme="dark") as page:
        await page.goto(f"{site.base}/alerts")
        await page.get_by_label("Name").fill("<!channel> *Finance*")
        await page.get_by_label("URL of the incoming webhook").fill("http://10.0.0.1/hook")
        await page.get_by_role("button", name="Save channel").click()
        await page.locator("#url[aria-invalid]").wait_for()
        await page.get_by_label("URL of the incoming webhook").fill(receiver.url)
        await page.get_by_role("button", name="Save channel").click()
        await page.get_by_text("The Slack channel is saved.").wait_for()
        row = page.get_by_role("row").filter(has_text="<!channel> *Finance*")
        await expect(row).to_contain_text("127.0.0.1")
        assert receiver.url not in await page.content()
        assert await findings(page) == []
        assert await overflow(page) <= 0

        await row.get_by_role("button", name="Test").click()
        await page.get_by_text("Slack accepted the test message.").wait_for()
        assert [checked(one.body)[0] for one in receiver.received] == ["Test"]
        receiver.behave = broken
        await row.get_by_role("button", name="Test").click()
        await page.get_by_text("The test message was not delivered: status 500.").wait_for()
        await row.get_by_role("button", name="Remove").click()
        await page.get_by_text("The Slack channel was removed.").wait_for()
        await page.get_by_text("No Slack channel yet.").wait_for()
    saved, tests, removed = (log(site.world, f"slack.{one}") for one in ("save", "test", "remove"))
    assert saved[0].details == {"name": "<!channel> *Finance*", "host": "127.0.0.1"}
    assert [one.details["error"] for one in tests] == ["status 500", None]
    assert removed[0].object == saved[0].object
    assert site.violations == []


async def test_only_an_admin_changes_channels_and_only_after_a_step_up(
    own_world: ServiceWorld, receiver: Receiver
) -> None:
    world, fields = own_world, {"name": "Finance", "url": receiver.url}
    admin, operator, viewer = (Crafted(world, sign_in(world, role)) for role in ("admin", "operator", "viewer"))
    path = "/dashboard/alerts/slack"
    for other in (operator, viewer):
        assert (await other.post(path, fields)).status_code == 403
        assert "Save channel" not in (await other.client.get("/dashboard/alerts")).text
    assert (await admin.post(path, fields)).status_code == 303
    place = f"{path}/{log(world, 'slack.save')[0].object}"
    stranger = Crafted(world, sign_in(world, "admin", org=await world.organisation("elsewhere")))
    for what in ("test", "remove"):
        assert (await operator.post(f"{place}/{what}")).status_code == 403
        assert (await stranger.post(f"{place}/{what}")).status_code == 404
    forget_step_up(world)
    for form in ((path, {**fields, "url": f"{receiver.url}/other"}), (f"{place}/remove", {})):
        answer = await admin.post(*form)
        assert (answer.status_code, "Confirm that it is you" in answer.text) == (403, True)
    assert (await admin.post(f"{place}/test")).status_code == 303
    assert [one.line.split()[1] for one in receiver.received] == ["/hook"]
    assert "Finance" in (await viewer.client.get("/dashboard/alerts")).text
