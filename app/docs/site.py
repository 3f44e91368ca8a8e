"""All documentation pages of a service, and the search in them."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from html import escape, unescape
from typing import Any

from starlette.routing import Route

from app.core.errors import CATALOGUE
from app.docs.assets import icon_link, script, style_link
from app.docs.interface import interface_page
from app.docs.layout import GUIDES, DocPage
from app.docs.render import (
    error_page,
    errors_page,
    events_page,
    guide_page,
    reference_page,
    settings_page,
    start_page,
)

MAX_QUERY = 100
"""Maximum number of characters in a search."""
_MOST = 30
"""Maximum number of results that are shown."""
_MOST_COUNTED = 5
"""Maximum number of occurrences of a word that raise a text's rank."""
_AROUND = 160
"""Number of characters in a result's excerpt."""
_SECTION = re.compile(r"(?=<h1|<h[23] id=)")
_HEADING = re.compile(r'<h[123](?: id="([^"]*)")?>(.*?)</h[123]>', re.DOTALL)
#: Pattern of an HTML tag, or of a whole folded element such as the names of tests.
_TAG = re.compile(r"<details>.*?</details>|<[^>]+>", re.DOTALL)
_WORD = re.compile(r"[\w./{}-]+")

EXPLORER = (
    '<!doctype html><html lang="en"><head><meta charset="utf-8"><title>Explorer · Agent Vault</title>'
    '<meta name="viewport" content="width=device-width, initial-scale=1">'
    f"{icon_link()}{style_link('swagger-ui.css')}{style_link('explorer.css')}"
    f"{script('swagger-ui-bundle.js')}{script('explorer.js')}"
    '</head><body><p class="way-back"><a href="/docs">Documents</a> Calls go to this service and take effect. '
    "Press Authorize and enter an API key.</p>"
    '<div id="explorer"><noscript>The explorer needs JavaScript; <a href="/docs/api">the API reference</a> does not.'
    "</noscript></div></body></html>"
)
"""The page of Swagger UI."""


@dataclass(frozen=True, slots=True)
class _Section:
    """The text under one heading."""

    address: str
    page: str
    heading: str
    text: str


class DocumentSite:
    """The pages of one service, made from its OpenAPI document and its other routes."""

    def __init__(self, document: Mapping[str, Any], others: Sequence[Route], base_url: str) -> None:
        made: dict[str, Callable[[], DocPage]] = {
            "/docs": partial(start_page, base_url),
            **{f"/docs/guides/{name}": partial(guide_page, name) for name in GUIDES},
            "/docs/api": partial(interface_page, document, others),
            "/docs/errors": errors_page,
            "/docs/events": events_page,
            "/docs/reference": reference_page,
            "/docs/settings": settings_page,
            **{f"/docs/errors/{kind.code}": partial(error_page, kind, base_url) for kind in CATALOGUE.values()},
        }
        self._made = made
        self._pages: dict[str, DocPage] = {}

    def page(self, path: str) -> DocPage | None:
        """Return the page at a path, or None if no page has this path."""
        if path in self._made and path not in self._pages:
            self._pages[path] = self._made[path]()
        return self._pages.get(path)

    def results(self, query: str) -> DocPage:
        """Return the page of search results: sections with every word of the query. Matches in headings count most."""
        words = [word.lower() for word in _WORD.findall(query[:MAX_QUERY])]
        ranked = [(rank, one) for one in self._sections if words and (rank := _rank(one, words)) is not None]
        ranked.sort(key=lambda found: -found[0])
        items = "".join(_result(one, words) for _, one in ranked[:_MOST])
        if not words:
            found = "<p>Enter one or more words.</p>"
        elif not ranked:
            found = "<p>No section has all of these words. Try fewer words, or a page in the list.</p>"
        else:
            more = f" The first {_MOST} are shown." if len(ranked) > _MOST else ""
            found = f'<p>{len(ranked)} found.{more}</p><ol class="results">{items}</ol>'
        return DocPage("/docs/search", "Search", f"<h1>Search</h1>{found}")

    @cached_property
    def _sections(self) -> list[_Section]:
        found = []
        for path in self._made:
            page = self.page(path)
            assert page is not None
            # Text under a heading without an anchor belongs to the section before it.
            for part in _SECTION.split(page.body):
                if heading := _HEADING.search(part):
                    address = f"{path}#{heading[1]}" if heading[1] else path
                    found.append(_Section(address, page.title, _plain(heading[2]), _plain(part[heading.end() :])))
        return found


def _plain(html: str) -> str:
    """Return the text content of HTML on one line."""
    return " ".join(unescape(_TAG.sub(" ", html)).split())


def _rank(section: _Section, words: Sequence[str]) -> int | None:
    heading, page, text = section.heading.lower(), section.page.lower(), section.text.lower()
    rank = 0
    for word in words:
        worth = 10 * (word in heading) + 4 * (word in page) + min(text.count(word), _MOST_COUNTED)
        if worth == 0:
            return None
        rank += worth
    return rank


def _result(section: _Section, words: Sequence[str]) -> str:
    places = [place for word in words if (place := section.text.lower().find(word)) >= 0]
    start = max(min(places, default=0) - _AROUND // 3, 0)
    excerpt = ("… " if start else "") + section.text[start : start + _AROUND]
    return (
        f'<li><a href="{escape(section.address)}">{escape(section.heading)}</a> '
        f'<span class="muted">{escape(section.page)}</span><br>{escape(excerpt)}</li>'
    )
