"""Opens the documents in a browser: in light and dark colors, on a phone, with and without scripts."""

import re
from collections.abc import Mapping
from typing import Literal

import pytest
from playwright.async_api import Browser, Page, ViewportSize

from tests.dashboard.browsing import findings
from tests.docs.browser import opened
from tests.support.http import served
from tests.support.service_world import ServiceWorld

pytestmark = pytest.mark.asyncio(loop_scope="module")

#: One page of each kind, and the pages with wide tables and code. Only `--full` checks all pages, which takes minutes.
_PAGES = (
    *("/docs", "/docs/search?q=freeze", "/docs/errors/policy_violation", "/docs/settings"),
    *("/docs/guides/escrow", "/docs/guides/operations", "/docs/guides/direct-use", "/docs/guides/threat-model"),
    *("/docs/api", "/docs/api/wallets", "/docs/api/create_payment"),
)
#: Color scheme and size of the window.
_LOOKS: Mapping[str, tuple[Literal["light", "dark"], ViewportSize]] = {
    "light": ("light", {"width": 1280, "height": 800}),
    "dark": ("dark", {"width": 1280, "height": 800}),
    "phone": ("light", {"width": 360, "height": 740}),
}
#: Returns the beginnings of texts that are cut off: the page or a block of code is wider than its visible area.
_CUT = """() => [document.documentElement, ...document.querySelectorAll("main pre")]
  .filter((one) => one.scrollWidth > one.clientWidth + 1).map((one) => one.textContent.slice(0, 60))"""
#: Returns the words of table cells and headings that are broken across lines.
_BROKEN = """() => {
  const found = [];
  const cells = document.querySelectorAll("main td, main th, main h1, main h2");
  for (const cell of cells) {
    const texts = document.createTreeWalker(cell, NodeFilter.SHOW_TEXT);
    for (let text = texts.nextNode(); text; text = texts.nextNode()) {
      if (text.parentElement.closest("details")) continue;
      for (const word of text.data.matchAll(/[A-Za-z_]+/g)) {
        const range = document.createRange();
        range.setStart(text, word.index);
        range.setEnd(text, word.index + word[0].length);
        const lines = new Set([...range.getClientRects()].map((one) => Math.round(one.top)));
        if (lines.size > 1) found.push(word[0]);
      }
    }
  }
  return found;
}"""


async def test_pages_are_whole_and_accessible_in_light_dark_and_on_a_phone(
    world: ServiceWorld, browser: Browser, request: pytest.FixtureRequest
) -> None:
    paths = list(_PAGES)
    if request.config.getoption("--full"):
        paths += re.findall(r"\(http[^)]*?(/docs[^)]*)\.md\)", (await world.client.get("/llms.txt")).text)
    faults = {}
    async with served(world) as base, opened(browser, base) as page:
        for path in paths:
            await page.goto(path)
            for look, (scheme, size) in _LOOKS.items():
                await page.emulate_media(color_scheme=scheme)
                await page.set_viewport_size(size)
                faults[path, look] = [*await findings(page), *await page.evaluate(_CUT), *await page.evaluate(_BROKEN)]

    assert {where: found for where, found in faults.items() if found} == {}


async def _shown(page: Page) -> list[str]:
    captions = page.locator(".tabs").first.locator("figure:visible")
    return [await one.get_attribute("data-language") or "" for one in await captions.all()]


async def test_one_language_is_shown_at_a_time_and_remembered(world: ServiceWorld, browser: Browser) -> None:
    async with served(world) as base, opened(browser, base, permissions=["clipboard-read", "clipboard-write"]) as page:
        await page.goto("/docs/api/create_payment")
        assert await _shown(page) == ["sh"]

        await page.get_by_role("button", name="Python").first.click()
        assert await _shown(page) == ["python"]
        await page.reload()
        assert await _shown(page) == ["python"]

        group = page.locator(".tabs").first
        await group.locator("button.copy:visible").click()
        copied = await page.evaluate("navigator.clipboard.readText()")
        assert copied == await group.locator("figure:visible pre").text_content()


async def test_every_language_is_shown_without_scripts(world: ServiceWorld, browser: Browser) -> None:
    async with served(world) as base, opened(browser, base, java_script_enabled=False) as page:
        await page.goto("/docs/api/create_payment")

        assert await _shown(page) == ["sh", "python", "ts"]
        await page.get_by_role("searchbox").fill("freeze")
        await page.get_by_role("button", name="Search").click()
        assert await page.locator(".results li").count() > 3


async def test_former_link_to_an_operation_leads_to_its_page(world: ServiceWorld, browser: Browser) -> None:
    async with served(world) as base, opened(browser, base) as page:
        await page.goto("/docs/api#update_wallet")
        await page.wait_for_url("**/docs/api/update_wallet")
        await page.goto("/docs/api#object-RuleVerdict")
        await page.wait_for_url("**#object-RuleVerdict")
        assert await page.locator("h2[id='object-RuleVerdict']").is_visible()


async def test_slash_focuses_the_search_and_results_appear_while_typing(world: ServiceWorld, browser: Browser) -> None:
    async with served(world) as base, opened(browser, base) as page:
        await page.goto("/docs/guides/escrow")
        await page.keyboard.press("/")
        await page.keyboard.type("webhook sig")

        first = page.locator(".found li a").first
        await first.wait_for()
        assert await first.get_attribute("href")
        assert await page.locator(".found mark").count() > 0
        assert await findings(page) == []
        await page.keyboard.press("Escape")
        assert not await page.locator(".found").is_visible()


@pytest.mark.parametrize("answer", ["Promise.reject(new TypeError())", "new Response('', { status: 429 })"])
async def test_search_while_typing_says_that_it_fails(world: ServiceWorld, browser: Browser, answer: str) -> None:
    async with served(world) as base, opened(browser, base) as page:
        await page.goto("/docs")
        await page.evaluate(f"() => {{ window.fetch = async () => {answer}; }}")
        await page.get_by_role("searchbox").fill("freeze")

        await page.get_by_text("Press Enter to try it on its own page").wait_for()
