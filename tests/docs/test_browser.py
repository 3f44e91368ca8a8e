"""What a browser makes of the documents: on a phone, with and without scripts."""

from typing import Any

import pytest
from playwright.async_api import Browser, Page

from tests.dashboard.browsing import findings
from tests.docs.browser import PHONE, opened
from tests.support.http import served
from tests.support.service_world import ServiceWorld

pytestmark = pytest.mark.asyncio(loop_scope="module")

_PAGES = (
    "/docs",
    "/docs/api",
    "/docs/reference",
    "/docs/errors/policy_violation",
    "/docs/settings",
    "/docs/guides/escrow",
    "/docs/guides/operations",
    "/docs/guides/direct-use",
    "/docs/guides/limits",
    "/docs/guides/threat-model",
    "/docs/search?q=freeze",
)
#: One of each kind: on the largest alone, axe takes half a minute. With `--full`, all.
_KINDS = ("/docs", "/docs/errors/policy_violation", "/docs/settings", "/docs/guides/escrow", "/docs/search?q=freeze")
_SMALL = ("/docs", "/docs/errors/policy_violation", "/docs/guides/direct-use")
#: What is cut: the page or a block of code that is wider than what shows it.
_CUT = """() => [document.documentElement, ...document.querySelectorAll("main pre")]
  .filter((one) => one.scrollWidth > one.clientWidth + 1).map((one) => one.textContent.slice(0, 60))"""
#: Words of table cells and headings that are on more than one line, but for examples, which are no words.
_BROKEN = """() => {
  const found = [];
  const cells = document.querySelectorAll("main td:not(.example), main th, main h1, main h2");
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


async def test_nothing_is_cut_and_no_word_is_broken_on_a_phone(world: ServiceWorld, browser: Browser) -> None:
    async with served(world) as base, opened(browser, base, **PHONE) as page:
        for path in _PAGES:
            await page.goto(path)
            assert await page.evaluate(_CUT) == [], path
            assert await page.evaluate(_BROKEN) == [], path


async def _shown(page: Page) -> list[str]:
    captions = page.locator(".tabs").first.locator("figure:visible")
    return [await one.get_attribute("data-language") or "" for one in await captions.all()]


async def test_one_language_is_shown_at_a_time_and_remembered(world: ServiceWorld, browser: Browser) -> None:
    async with served(world) as base, opened(browser, base, permissions=["clipboard-read", "clipboard-write"]) as page:
        await page.goto("/docs")
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
        await page.goto("/docs")

        assert await _shown(page) == ["sh", "python", "ts"]
        await page.get_by_role("searchbox").fill("freeze")
        await page.get_by_role("button", name="Search").click()
        assert await page.locator(".results li").count() > 3


@pytest.mark.parametrize(
    ("options", "paths"),
    [({}, _KINDS), ({"color_scheme": "dark"}, _SMALL), (PHONE, _SMALL)],
    ids=["light", "dark", "phone"],
)
async def test_accessibility_has_no_serious_findings(
    world: ServiceWorld,
    browser: Browser,
    request: pytest.FixtureRequest,
    options: dict[str, Any],
    paths: tuple[str, ...],
) -> None:
    every = ("/docs/events", *_PAGES) if request.config.getoption("--full") else paths
    async with served(world) as base, opened(browser, base, **options) as page:
        for path in every:
            await page.goto(path)
            assert await findings(page) == [], path
