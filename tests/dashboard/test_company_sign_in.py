"""The company's sign-in in a browser, by the certified provider of the public packages."""

from collections.abc import AsyncIterator
from urllib.parse import urlsplit

import pytest
import pytest_asyncio
from playwright.async_api import Browser, Page, expect

from app.access.keyring import system
from app.access.recorder import Recorder
from app.core.timestamps import now_ms
from app.people.service import invite
from app.store.audit import SERVICE, LogEntry, LogFilter, log_entries
from tests.dashboard.browsing import Served, add_person, findings, forget_step_up, log, overflow
from tests.dashboard.providers import CLIENT_ID, CLIENT_SECRET, settings
from tests.support.http import served
from tests.support.node import started
from tests.support.processes import free_ports
from tests.support.service_world import ServiceWorld

pytestmark = pytest.mark.asyncio(loop_scope="session")


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def company(tmp_path_factory: pytest.TempPathFactory, browser: Browser) -> AsyncIterator[Served]:
    """A served dashboard and its provider, which are two sites to a browser."""
    port, _ = free_ports()
    given = settings(f"http://127.0.0.1:{port}")
    async with (
        ServiceWorld(tmp_path_factory.mktemp("service"), **given) as world,
        served(world) as address,
    ):
        base = address.replace("127.0.0.1", "localhost") + "/dashboard"
        client = {"CLIENT_ID": CLIENT_ID, "CLIENT_SECRET": CLIENT_SECRET, "REDIRECT_URI": f"{base}/openid/return"}
        async with started("oidc", "provider.mjs", port, **client):
            add_person(world, "admin")
            yield Served(world, browser, base)


def _link(site: Served, role: str) -> str:
    by = system(site.world.org, "test")
    made = site.world.service.db.write_now(lambda conn: invite(conn, by, "Guest", role, now_ms()))  # type: ignore[arg-type]
    return f"{site.base}/join#{made.token}"


async def _at_the_company(page: Page, account: str) -> None:
    await page.get_by_label("Account").fill(account)
    await page.get_by_role("button", name="Log in").click()


async def _join(site: Served, page: Page, account: str, role: str) -> None:
    await page.goto(_link(site, role))
    await page.get_by_label("Your name").fill(account.title())
    await page.get_by_role("button", name="Continue with Acme").click()
    await _at_the_company(page, account)
    await page.get_by_text("Welcome. From now on you sign in with your company's account.").wait_for()


@pytest.mark.proves("POST /dashboard/sign-in/openid", "POST /dashboard/openid/return")
async def test_invited_person_signs_in_with_the_companys_account(company: Served) -> None:
    async with company.visit() as page:
        await page.goto(_link(company, "viewer"))
        assert await findings(page) == []
        await _join(company, page, "grace", "viewer")
        await expect(page.locator("header")).to_contain_text("Grace (viewer)")

        await page.get_by_role("button", name="Sign out").click()
        await page.get_by_text("You are signed out.").wait_for()
        await page.goto(company.base)
        assert urlsplit(page.url).path == "/dashboard/sign-in"
        assert await findings(page) == []

        # The company still knows the browser, and asks nothing.
        await page.get_by_role("button", name="Continue with Acme").click()
        await page.get_by_role("heading", name="Vaults").wait_for()
        await expect(page.locator("header")).to_contain_text("Grace (viewer)")
        assert "code=" not in await page.evaluate("document.referrer + location.href")
    assert log(company.world, "person.sign_in")[0].details["way"] == "openid"
    assert company.violations == []


async def test_account_without_an_invitation_stays_outside(company: Served) -> None:
    async with company.visit(viewport={"width": 360, "height": 740}) as page:
        await page.goto(f"{company.base}/sign-in")
        await page.get_by_role("button", name="Continue with Acme").click()
        await page.get_by_role("button", name="Cancel").click()
        await page.get_by_text("did not sign you in, or you cancelled it").wait_for()
        await expect(page.get_by_role("button", name="Continue")).not_to_be_visible()
        await page.get_by_role("link", name="Back to the sign-in").click()

        await page.get_by_role("button", name="Continue with Acme").click()
        await _at_the_company(page, "mallory")
        await page.get_by_text("is not linked to anyone").wait_for()
        assert "code=" not in page.url
        assert await findings(page) == []
        assert await overflow(page) <= 0
        await page.get_by_role("link", name="Back to the sign-in").click()
        await page.get_by_role("button", name="Continue with Acme").wait_for()
    world = company.world
    for _ in range(2):
        await world.service.part(Recorder).tick()
    refusals = LogFilter(action="access.refused")
    entries = world.service.db.read_now(lambda conn: log_entries(conn, SERVICE, refusals, limit=5))
    reasons = {one.details["reason"] for one in entries.data if isinstance(one, LogEntry)}
    assert reasons == {"not_invited", "error:access_denied"}


@pytest.mark.proves("POST /dashboard/step-up/openid")
async def test_step_up_signs_in_again_and_sends_the_form_again(company: Served) -> None:
    async with company.visit() as page:
        await _join(company, page, "radia", "admin")
        forget_step_up(company.world)
        await page.goto(f"{company.base}/people")
        await page.get_by_label("Name").fill("Barbara")
        await page.get_by_role("button", name="Invite").click()
        await page.get_by_role("heading", name="Confirm that it is you").wait_for()
        assert await findings(page) == []
        await expect(page.get_by_role("button", name="Confirm", exact=True)).to_have_count(0)
        await page.get_by_role("button", name="Confirm with Acme").click()
        # Although the company knows the browser, it asks again.
        await _at_the_company(page, "radia")
        await page.get_by_text("Invitation for Barbara").wait_for()
        await page.get_by_label("Name").fill("Frances")
        await page.get_by_role("button", name="Invite").click()
        await page.get_by_text("Invitation for Frances").wait_for()
    assert log(company.world, "person.step_up")[0].actor.type == "person"
    assert company.violations == []


@pytest.mark.proves("GET /dashboard/passkey")
async def test_step_up_for_a_page_leads_back_to_it(company: Served) -> None:
    async with company.visit() as page:
        await _join(company, page, "edith", "viewer")
        forget_step_up(company.world)
        await page.goto(f"{company.base}/passkey")
        await page.get_by_role("button", name="Confirm with Acme").click()
        await _at_the_company(page, "edith")
        await page.get_by_role("heading", name="Make a passkey").wait_for()
        assert page.url == f"{company.base}/passkey"
    assert company.violations == []


async def test_step_up_as_somebody_else_sends_nothing(company: Served) -> None:
    async with company.visit() as page:
        await _join(company, page, "hedy", "admin")
        forget_step_up(company.world)
        await page.goto(f"{company.base}/people")
        await page.get_by_label("Name").fill("Nobody")
        await page.get_by_role("button", name="Invite").click()
        await page.get_by_role("button", name="Confirm with Acme").click()
        await _at_the_company(page, "colleague")
        await page.get_by_text("This account does not belong to the person who is signed in.").wait_for()
        await page.get_by_role("link", name="Back to the fleet").click()
        await page.goto(f"{company.base}/people")
        await expect(page.locator("main")).not_to_contain_text("Nobody")
    assert company.violations == []
