"""What holds on every page: no text becomes markup, nothing moves by itself, few queries, no serious finding."""

import re
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote

import pytest
import pytest_asyncio
from playwright.async_api import Page

from tests.dashboard.browsing import Crafted, Served, findings, overflow, sign_in, statements
from tests.dashboard.corpus import CORPUS
from tests.dashboard.estate import Places, furnish
from tests.dashboard.every_page import PAGES, ListedPage, served
from tests.support.service_world import ServiceWorld

pytestmark = pytest.mark.asyncio(loop_scope="session")

_PAGES = pytest.mark.parametrize("listed", PAGES, ids=lambda one: one.name)
#: Queries of every page: who is signed in, how many alerts they have not read, and the organisation.
_SESSION = 4
_FROM = re.compile(r"\bFROM (\w+)")
_INNER = re.compile(r"\([^()]*\)")
#: What shows rows of the database.
_SHOWN = re.compile(r"<(?:table|dl|ol|ul|section)\b")
#: Pages of a list that are visited one after the other.
_MOST = 8
#: Rows and items that are made as the eight before them: for each text axe looks at all that may cover it.
_ALIKE = "main :is(tr, li, option):nth-child(n + 9)"
#: What a text of the corpus has become part of, apart from places where it is only text.
_MADE = """(root) => {
  const found = [];
  const texts = /^(value|title|content|placeholder|label|aria-.*|data-copy)$/;
  const addresses = /^(href|action|hx-get)$/;
  for (const one of (root ?? document).querySelectorAll("*")) {
    if (one.localName === "script" && (!one.src || one.textContent)) found.push(one.outerHTML);
    for (const { name, value } of one.attributes)
      if (/alert[(`]/.test(value) && !texts.test(name) && !(addresses.test(name) && /^(\\/|http)/.test(value)))
        found.push(`${one.localName} ${name}=${value}`);
  }
  return found;
}"""
#: The same of what the filter of a page answers for each of these texts.
_FILTERED = f"""async ([number, texts]) => {{
  const form = document.querySelectorAll("main form")[number];
  const found = [];
  for (const text of texts) {{
    const query = new URLSearchParams();
    for (const one of form.elements) if (one.name) query.set(one.name, one.localName === "input" ? text : one.value);
    const answer = await fetch(`${{form.getAttribute("action").split("?")[0]}}?${{query}}`);
    found.push(...({_MADE})(new DOMParser().parseFromString(await answer.text(), "text/html")));
  }}
  return found;
}}"""
#: All that can be read on a page, in fields, too.
_READ = """() => document.documentElement.textContent +
  [...document.querySelectorAll("input, textarea")].map((one) => "\\n" + one.value).join("")"""
#: Types a text into every field of a form and sends it, whatever the fields demand.
_SEND = """([number, text]) => {
  const form = document.querySelectorAll("main form")[number];
  for (const one of form.elements) {
    if (one.type === "hidden" || one.localName === "button") continue;
    if (one.localName === "select") one.add(new Option(text, text, true, true));
    if (one.localName === "input") one.type = "text";
    one.value = text;
  }
  HTMLFormElement.prototype.submit.call(form);
}"""
#: The forms that have a field, apart from those that a script sends; of those of a list's rows, the first.
_FORMS = """() => {
  const found = new Map();
  [...document.querySelectorAll("main form")].forEach((form, number) => {
    const fields = [...form.elements].filter((one) =>
      one.localName !== "button" && !["hidden", "checkbox"].includes(one.type));
    const kind = [form.getAttribute("action").replace(/[a-z]+_\\w{20,}/, ""), ...fields.map((one) => one.name)].join();
    if (!("fetch" in form.dataset) && fields.length && !found.has(kind)) found.set(kind, [number, form.method]);
  });
  return [...found.values()];
}"""


#: By whether they have a session.
Visitors = dict[bool, Page]


@dataclass
class Shown:
    """What a page and those after it in its list show."""

    text: str = ""
    markup: list[str] = field(default_factory=list)


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def places(world: ServiceWorld) -> Places:
    return await furnish(world, CORPUS)


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def visitors(site: Served) -> AsyncIterator[Visitors]:
    """An admin's browser, one of many that call themselves by the texts, and that of somebody without a session."""
    async with site.visit("admin", browsers=(*CORPUS, "test")) as admin, site.visit() as nobody:
        yield {True: admin, False: nobody}


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def phones(site: Served) -> AsyncIterator[Visitors]:
    """The same on phones, in the dark."""
    options: dict[str, Any] = {"viewport": {"width": 390, "height": 844}, "color_scheme": "dark"}
    async with site.visit("admin", **options) as admin, site.visit(**options) as nobody:
        yield {True: admin, False: nobody}


async def test_every_page_is_on_the_list() -> None:
    assert served() == {one.route for one in PAGES}


@_PAGES
async def test_texts_with_markup_are_only_text(
    site: Served, visitors: Visitors, places: Places, listed: ListedPage
) -> None:
    page, shown = visitors[listed.session], Shown()
    address: str | None = site.base + listed.path(places)
    for _ in range(_MOST):
        if address is not None:
            await page.goto(address)
            shown.text += await page.evaluate(_READ)
            shown.markup += await page.evaluate(_MADE)
            address = await page.evaluate("document.querySelector('a[rel=next]')?.href")
    if listed.names:
        assert [text for text in CORPUS if text not in shown.text] == []
    assert shown.markup == []
    assert site.violations == []


@_PAGES
async def test_what_was_typed_comes_back_as_text(
    site: Served, visitors: Visitors, places: Places, listed: ListedPage
) -> None:
    page, address = visitors[listed.session], site.base + listed.path(places)
    await page.goto(address)
    for earlier, (number, method) in enumerate(await page.evaluate(_FORMS)):
        if earlier:
            await page.goto(address)
        if method == "get":
            assert await page.evaluate(_FILTERED, [number, list(_some(100))]) == []
        # One long text, which every form refuses and shows again.
        async with page.expect_navigation():
            await page.evaluate(_SEND, [number, " ".join(CORPUS)])
        assert await page.evaluate(_MADE) == [], (address, number)
    assert site.violations == []


async def test_texts_in_addresses_and_searches_are_only_text(site: Served, visitors: Visitors) -> None:
    root, page = site.base.removesuffix("/dashboard"), visitors[True]
    for text in _some(100):
        await page.goto(f"{root}/docs/search?q={quote(text)}")
        assert await page.evaluate(_MADE) == [], text
        assert text in await page.evaluate(_READ)
    for path in ("?done=", "?q=&sort=", "/vaults/", "/feed?cursor=", "/nothing/"):
        await page.goto(f"{site.base}{path}{quote(''.join(CORPUS), safe='')}")
        assert await page.evaluate(_MADE) == [], path
    assert site.violations == []


@_PAGES
async def test_nothing_moves_by_itself_on_a_phone_in_the_dark(
    request: pytest.FixtureRequest, site: Served, phones: Visitors, places: Places, listed: ListedPage
) -> None:
    page, alike = phones[listed.session], () if request.config.getoption("--full") else (_ALIKE,)
    await page.goto(site.base + listed.path(places))
    await page.wait_for_function("!document.querySelector('time:not([data-local])')")
    # A tenth is what people notice; a busy machine makes Chromium see less than a hundredth.
    assert await page.evaluate("new Promise(requestAnimationFrame).then(() => window.shifted)") < 0.01
    assert await overflow(page) <= 0
    assert await findings(page, *alike) == []


@_PAGES
async def test_page_needs_few_queries(world: ServiceWorld, places: Places, listed: ListedPage) -> None:
    visitor = Crafted(world, sign_in(world, "admin") if listed.session else None)
    runs: list[list[str]] = []
    for _ in range(3):
        with statements() as executed:
            answer = await visitor.client.get("/dashboard" + listed.path(places))
        assert f"<h1>{listed.heading}" in answer.text
        runs.append([found[1] for one in executed if (found := _FROM.search(_outer(one)))])
    # Work in the background may have come between, but hardly each time.
    fewest: list[str] = min(runs, key=len)
    tables = Counter(fewest)
    assert not [name for name, times in tables.items() if times > 3], tables
    assert tables.total() - _SESSION <= 3 * max(len(_SHOWN.findall(answer.text)), 1), tables


def _outer(statement: str) -> str:
    """A statement without what it has in parentheses."""
    while (shorter := _INNER.sub("", statement)) != statement:
        statement = shorter
    return statement


def _some(length: int) -> Iterator[str]:
    """The corpus in as few texts as possible that are, if they can, no longer than this."""
    text = ""
    for one in CORPUS:
        if text and len(text) + len(one) > length:
            yield text
            text = ""
        text += one
    yield text
