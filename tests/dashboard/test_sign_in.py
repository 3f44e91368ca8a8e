"""Signing in: by the admin key, by passkey, by invitation."""

import pytest
from playwright.async_api import expect

from app.access.keyring import system
from app.core.timestamps import now_ms
from app.people.service import invite
from tests.dashboard.browsing import Served, findings, forget_step_up, log, overflow

pytestmark = pytest.mark.asyncio(loop_scope="session")


@pytest.mark.proves(
    "GET /dashboard/sign-in",
    "POST /dashboard/sign-in",
    "POST /dashboard/sign-in/options",
    "POST /dashboard/sign-in/passkey",
    "GET /dashboard/passkey",
    "POST /dashboard/passkey/options",
    "POST /dashboard/passkey",
    "POST /dashboard/sign-out",
    "GET /dashboard/static/{path}",
    "action person.sign_in",
)
async def test_admin_key_signs_in_until_there_is_a_person(site: Served) -> None:
    world = site.world
    async with site.visit() as page:
        await page.goto(site.base.replace("localhost", "127.0.0.1"))
        assert page.url == f"{site.base}/sign-in"
        await page.get_by_label("Admin key").fill("avk_test_wrong")
        await page.get_by_role("button", name="Sign in", exact=True).click()
        await expect(page.locator("#admin_key-says")).to_contain_text("is unknown")
        await expect(page.get_by_label("Admin key")).to_have_value("")
        assert await findings(page) == []

        await page.get_by_label("Admin key").fill(world.keys["admin"])
        await page.get_by_role("button", name="Sign in", exact=True).click()
        await page.get_by_role("heading", name="Make a passkey").wait_for()
        assert await findings(page) == []
        await page.get_by_role("link", name="Later").click()
        await page.get_by_role("heading", name="Vaults").wait_for()

        # Nobody may join before there is an admin who can sign in again.
        await page.goto(f"{site.base}/people")
        await expect(page.get_by_role("button", name="Invite")).to_have_count(0)
        await page.get_by_role("link", name="make a passkey of your own").click()
        await page.get_by_label("Your name").fill("Grace")
        await page.get_by_role("button", name="Make a passkey").click()
        await page.get_by_role("heading", name="Vaults").wait_for()
        await expect(page.locator("header")).to_contain_text("Grace")

        await page.get_by_role("button", name="Sign out").click()
        await page.get_by_role("button", name="Sign in with a passkey").click()
        await page.get_by_role("heading", name="Vaults").wait_for()
    assert [entry.details["way"] for entry in log(world, "person.sign_in")] == ["passkey", "passkey", "admin_key"]
    assert log(world, "person.sign_in")[0].actor.type == "person"

    async with site.visit() as other:
        await other.goto(f"{site.base}/sign-in")
        await expect(other.get_by_label("Admin key")).to_have_count(0)
    assert site.violations == []


@pytest.mark.proves("GET /dashboard/join", "POST /dashboard/join", "action person.join")
async def test_invited_person_joins_with_a_passkey_once(site: Served) -> None:
    world = site.world
    made = world.service.db.write_now(
        lambda conn: invite(conn, system(world.org, "command_line"), "Linus", "viewer", now_ms())
    )
    link = f"{site.base}/join#{made.token}&name=Linus+T."
    async with site.visit() as page:
        await page.goto(link)
        await expect(page.get_by_label("Your name")).to_have_value("Linus T.")
        assert "#" not in page.url
        assert await findings(page) == []
        await page.get_by_label("Your name").fill("Linus")
        await page.get_by_role("button", name="Join with a passkey").click()
        await page.get_by_role("heading", name="Vaults").wait_for()
        await expect(page.locator("header")).to_contain_text("viewer")
        await expect(page.get_by_role("button", name="Pause all")).to_have_count(0)

    async with site.visit() as thief:
        await thief.goto(link)
        await thief.get_by_label("Your name").fill("Eve")
        await thief.get_by_role("button", name="Join with a passkey").click()
        await thief.get_by_text("This invitation is not valid").wait_for()
    assert site.violations == []


@pytest.mark.proves("GET /dashboard/people", "POST /dashboard/people/invite", "action person.invite")
async def test_admin_invites_from_the_dashboard_after_a_step_up(site: Served) -> None:
    async with site.visit("admin") as page:
        await page.goto(f"{site.base}/people")
        assert await findings(page) == []
        await page.get_by_label("Name").fill("<b>Bob</b>")
        await page.get_by_label("Role").select_option("operator")
        await page.get_by_role("button", name="Invite").click()
        link = await page.get_by_label("Invitation link").input_value()
        await expect(page.locator("main")).to_contain_text("Invitation for <b>Bob</b>")
        assert link.startswith(f"{site.base}/join#")
        assert await overflow(page) <= 0


@pytest.mark.proves(
    "POST /dashboard/step-up/options", "POST /dashboard/step-up", "action person.add_passkey", "action person.step_up"
)
async def test_step_up_by_passkey_sends_the_form_again(site: Served) -> None:
    world = site.world
    made = world.service.db.write_now(
        lambda conn: invite(conn, system(world.org, "command_line"), "Admin", "admin", now_ms())
    )
    async with site.visit() as page:
        await page.goto(f"{site.base}/join#{made.token}")
        await page.get_by_label("Your name").fill("Radia")
        await page.get_by_role("button", name="Join with a passkey").click()
        await page.get_by_role("heading", name="Vaults").wait_for()
        forget_step_up(world)
        await page.goto(f"{site.base}/people")
        await page.get_by_label("Name").fill("Barbara")
        await page.get_by_role("button", name="Invite").click()
        await page.get_by_role("heading", name="Confirm that it is you").wait_for()
        assert await findings(page) == []
        await page.get_by_role("button", name="Confirm").click()
        await page.get_by_text("Invitation for Barbara").wait_for()
        # The confirmation counts for five minutes.
        await page.get_by_label("Name").fill("Frances")
        await page.get_by_role("button", name="Invite").click()
        await page.get_by_text("Invitation for Frances").wait_for()
    assert log(world, "person.step_up")[0].actor.type == "person"
    assert site.violations == []


@pytest.mark.proves("GET /dashboard/passkey")
async def test_another_passkey_waits_for_a_step_up_and_goes_on_after_it(site: Served) -> None:
    world = site.world
    made = world.service.db.write_now(
        lambda conn: invite(conn, system(world.org, "command_line"), "Viewer", "viewer", now_ms())
    )
    async with site.visit() as page:
        await page.goto(f"{site.base}/join#{made.token}")
        await page.get_by_label("Your name").fill("Edith")
        await page.get_by_role("button", name="Join with a passkey").click()
        await page.get_by_role("heading", name="Vaults").wait_for()
        await page.goto(f"{site.base}/passkey")
        await page.get_by_role("heading", name="Make a passkey").wait_for()
        # Five minutes pass, before the page is opened or while it is open.
        for opened in (False, True):
            forget_step_up(world)
            if opened:
                await page.get_by_role("button", name="Make a passkey").click()
            else:
                await page.reload()
            await page.get_by_role("heading", name="Confirm that it is you").wait_for()
            assert await findings(page) == []
            await page.get_by_role("button", name="Confirm").click()
            await page.get_by_role("heading", name="Make a passkey").wait_for()
            assert "csrf" not in page.url
    assert site.violations == []
