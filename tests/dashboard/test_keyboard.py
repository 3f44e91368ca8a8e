"""The most used actions by keyboard alone: a person only presses keys and always sees where they are."""

import re
from collections.abc import AsyncIterator
from dataclasses import dataclass

import pytest
import pytest_asyncio
from playwright.async_api import Page, expect

from tests.dashboard.browsing import Served, asking, forget_step_up

pytestmark = pytest.mark.asyncio(loop_scope="session")

#: More presses of Tab than a person would put up with.
_PATIENCE = 120
#: What has the focus: its name, and whether it is seen: where it is, and with an outline.
_FOCUSED = """() => {
  const one = document.activeElement;
  const label = one.labels?.[0]?.textContent ?? one.getAttribute("aria-label") ?? one.textContent;
  const { top, bottom, width } = one.getBoundingClientRect();
  return {
    name: label.trim().replace(/\\s+/g, " "),
    seen: getComputedStyle(one).outlineStyle === "solid" && width > 0 && bottom > 0 && top < innerHeight,
  };
}"""


@dataclass
class Keyboard:
    """A person's only device."""

    page: Page

    async def to(self, name: str) -> None:
        """Press Tab until what has this name, and perhaps the number of its badge, has the focus."""
        wanted = re.compile(rf"{re.escape(name)}( \d+\+? (unread|waiting|disputed))?")
        found: list[str] = []
        for _ in range(_PATIENCE):
            await self.page.keyboard.press("Tab")
            focused = await self.page.evaluate(_FOCUSED)
            found.append(focused["name"])
            if wanted.fullmatch(focused["name"]):
                assert focused["seen"], f"{name} has the focus and does not show it"
                return
        raise AssertionError(f"Tab reaches {found}, not {name}")

    async def press(self, *keys: str) -> None:
        for key in keys:
            await self.page.keyboard.press(key)

    async def write(self, text: str) -> None:
        await self.page.keyboard.type(text)

    async def choose(self, value: str) -> None:
        """Press the arrow until the list that has the focus shows this value."""
        for _ in range(_PATIENCE):
            await self.page.keyboard.press("ArrowDown")
            if await self.page.evaluate("document.activeElement.value") == value:
                return
        raise AssertionError(f"the list has no {value}")

    async def reads(self, text: str) -> None:
        await self.page.get_by_text(text).first.wait_for()


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def person(site: Served) -> AsyncIterator[Keyboard]:
    """An admin, who has made a passkey."""
    async with site.visit("admin") as page:
        keyboard = Keyboard(page)
        await page.goto(f"{site.base}/passkey")
        await keyboard.to("Your name")
        await keyboard.press("Control+A")
        await keyboard.write("Ada")
        await keyboard.to("Make a passkey")
        await keyboard.press("Enter")
        await page.get_by_role("heading", name="People").wait_for()
        yield keyboard


@pytest_asyncio.fixture(loop_scope="session")
async def admin(site: Served, person: Keyboard) -> Keyboard:
    """The admin, who looks at the fleet."""
    await person.page.goto(site.base)
    return person


async def test_first_sign_in_and_passkey_by_keyboard(own_site: Served) -> None:
    async with own_site.visit() as page:
        keyboard = Keyboard(page)
        await page.goto(own_site.base)
        await keyboard.to("Admin key")
        await keyboard.write(own_site.world.keys["admin"])
        await keyboard.press("Enter")
        await page.get_by_role("heading", name="Make a passkey").wait_for()
        await keyboard.to("Your name")
        await keyboard.write("Grace")
        await keyboard.press("Enter")
        await page.get_by_role("heading", name="Vaults").wait_for()
        await keyboard.to("Sign out")
        await keyboard.press("Enter")
        await page.get_by_role("heading", name="Sign in").wait_for()
        await keyboard.to("Sign in with a passkey")
        await keyboard.press("Space")
        await page.get_by_role("heading", name="Vaults").wait_for()


async def test_first_tab_leads_past_the_menu_to_the_content(admin: Keyboard) -> None:
    await admin.to("Skip to the content")
    await admin.press("Enter")
    await admin.to("New vault")


async def test_vault_is_searched_opened_frozen_and_unfrozen_by_keyboard(site: Served, admin: Keyboard) -> None:
    world = site.world
    wallet, _ = await world.wallet(label="Ad buyer"), await world.wallet(label="Other")
    await admin.to("Search")
    await admin.write("ad buy")
    await admin.press("Enter")
    await admin.page.wait_for_url("**q=ad+buy**")
    await admin.to("Ad buyer")
    await admin.press("Enter")
    await admin.page.get_by_role("heading", name="Ad buyer").wait_for()
    await admin.to("Freeze")
    await admin.press("Enter")
    await admin.reads("Frozen. The chain refuses the vault's payments")
    assert world.wallet_record(wallet["wallet_id"]).frozen == 1

    forget_step_up(world)
    await admin.to("Unfreeze")
    await admin.press("Space")
    await admin.page.get_by_role("heading", name="Confirm that it is you").wait_for()
    await admin.to("Confirm")
    await admin.press("Enter")
    await admin.reads("The vault is active again.")
    assert world.wallet_record(wallet["wallet_id"]).frozen == 0


async def test_vaults_are_selected_and_frozen_by_keyboard(site: Served, admin: Keyboard) -> None:
    wallet = await site.world.wallet(label="Chosen")
    await admin.page.get_by_label("Select Chosen").wait_for()
    await admin.to("Select Chosen")
    await admin.press("Space")
    await admin.to("Freeze selected")
    await admin.press("Enter")
    await admin.reads("The selected vaults are frozen.")
    assert site.world.wallet_record(wallet["wallet_id"]).frozen == 1


async def test_all_is_paused_and_resumed_by_keyboard(admin: Keyboard) -> None:
    await admin.to("Pause all")
    await admin.press("Enter")
    await admin.reads("All vaults are paused: the chain refuses")
    await admin.to("End the pause")
    await admin.press("Enter")
    await admin.reads("The pause has ended.")


async def test_payments_are_approved_and_rejected_by_one_key(site: Served, admin: Keyboard) -> None:
    await asking(site.world, "61", "62", "63")
    await admin.to("Approvals")
    await admin.press("Enter")
    await admin.page.get_by_role("heading", name="Waiting for a decision").wait_for()
    for keys, said in (("a", "Approved. The agent may repeat"), ("r", "The request for approval was rejected")):
        await admin.to("Spender")
        await admin.press(keys)
        await admin.reads(said)
    # And by the buttons.
    await admin.to("Reject")
    await admin.press("Enter")
    await admin.reads("No approval is pending.")
    shown = (await site.world.ok("GET", "/v1/approvals"))["data"]
    assert sorted(one["status"] for one in shown) == ["approved", "rejected", "rejected"]


async def test_keys_decide_nothing_outside_their_row(site: Served, admin: Keyboard) -> None:
    await asking(site.world, "64")
    await admin.page.goto(f"{site.base}/approvals")
    await admin.press("a", "r")
    await admin.to("Vaults")
    await admin.press("a", "r")
    await admin.to("Spender")
    await admin.press("Control+r")
    assert len((await site.world.ok("GET", "/v1/approvals?status=pending"))["data"]) == 1


async def test_person_is_invited_by_keyboard(admin: Keyboard) -> None:
    await admin.to("People")
    await admin.press("Enter")
    await admin.page.get_by_role("heading", name="Invite", exact=True).wait_for()
    await admin.to("Name")
    await admin.write("Barbara")
    await admin.to("Role")
    await admin.press("o")
    await admin.to("Invite")
    await admin.press("Enter")
    await admin.reads("Invitation for Barbara")
    await admin.reads("Open invitations")
    await admin.to("Withdraw")
    await admin.press("Enter")
    await admin.reads("The invitation was withdrawn.")


async def test_feed_is_filtered_and_read_by_keyboard(site: Served, admin: Keyboard) -> None:
    await site.world.wallet(label="In the feed", funds=None)
    await admin.to("Feed")
    await admin.press("Enter")
    await admin.page.get_by_role("heading", name="Feed").wait_for()
    await admin.to("Type")
    await admin.choose("wallet.created")
    await admin.to("Show")
    await admin.press("Enter")
    await admin.page.wait_for_url("**type=wallet.created**")
    await admin.to("In the feed")
    await admin.to("Details")
    await admin.press("Space")
    await admin.reads('"event": "wallet.created"')


async def test_slash_searches_and_question_mark_lists_the_shortcuts(site: Served, admin: Keyboard) -> None:
    await admin.page.goto(f"{site.base}/policies")
    await admin.press("/")
    await admin.page.wait_for_url(f"{site.base}#q")
    await admin.write("ad ?buyer")
    await expect(admin.page.get_by_label("Search")).to_have_value("ad ?buyer")
    await admin.page.goto(f"{site.base}/policies")
    await admin.press("?")
    await admin.page.get_by_role("dialog", name="Shortcuts").wait_for()
    await admin.press("Escape")
    await expect(admin.page.get_by_role("dialog")).to_have_count(0)
