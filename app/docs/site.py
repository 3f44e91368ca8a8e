"""All documentation pages of a service, and the search in them."""

import re
from collections.abc import Iterator, Mapping, Sequence
from difflib import get_close_matches
from functools import cached_property
from html import escape
from typing import Any
from urllib.parse import urlsplit

from starlette.routing import Route

from app.core.errors import CATALOGUE
from app.core.http_api import VERSION
from app.docs.interface import Interface
from app.docs.layout import GUIDES, DocPage, footer, framed
from app.docs.render import (
    error_page,
    errors_page,
    events_page,
    guide_page,
    reference_page,
    settings_page,
    start_page,
)
from app.docs.search import Result, SearchIndex, search_fault

MAX_QUERY = 100
"""Maximum number of characters in a search."""
_SIMILAR = 0.8
"""Minimum similarity, from 0 to 1, of a wrong path to the path of the page that is suggested instead."""
_SEPARATOR = re.compile(r"\W|_")
_ABOUT = "AI agents pay USDC from vaults on Solana, within limits that a program on the chain enforces."


class DocumentSite:
    """The pages of one service, made from its OpenAPI document and its other routes."""

    def __init__(self, document: Mapping[str, Any], others: Sequence[Route], base_url: str) -> None:
        self._interface = Interface(document, others)
        self._base_url = base_url

    def page(self, path: str) -> DocPage | None:
        """Return the page at a path, or None if no page has this path."""
        return self._pages.get(path)

    def shown(self, page: DocPage) -> str:
        """Return a page as HTML, with the menu and with links to the pages before and after it."""
        paths = list(self._pages)
        place = paths.index(page.path)
        before, after = paths[place - 1] if place else "", paths[place + 1] if place + 1 < len(paths) else ""
        end = footer(page, self._pages.get(before), self._pages.get(after))
        return self._framed(page.title, page.body + end, page.path)

    def results(self, query: str) -> str:
        """Return the search results as HTML: the best section of each page with any word of the query."""
        if self._index is None:
            found = "<p>The search is off, because SQLite lacks FTS5 on this machine. Choose a page in the list.</p>"
        elif not query.strip():
            found = "<p>Enter one or more words.</p>"
        else:
            items = "".join(_result(one) for one in self._index.results(query[:MAX_QUERY]))
            found = f'<ol class="results">{items}</ol>' if items else "<p>Nothing was found. Try other words.</p>"
        return self._framed("Search", f"<h1>Search</h1>{found}", query=query)

    def missing(self, likely: str | None) -> str:
        """Return the page for a wrong path, as HTML. It links to ``likely``, or to the start page if that is None."""
        there = escape(likely or "/docs")
        return self._framed("Page not found", f'<h1>Page not found</h1><p>Try <a href="{there}">{there}</a>.</p>')

    def likely(self, path: str) -> str | None:
        """Return the path of the page that a wrong path probably means, or None if no page is similar."""
        if similar := get_close_matches(path.removesuffix(".md"), self._pages, n=1, cutoff=_SIMILAR):
            return similar[0]
        words = _SEPARATOR.sub(" ", path.removeprefix("/docs"))[:MAX_QUERY]
        found = self._index.results(words) if self._index is not None else []
        return found[0].address if found else None

    def list_for_models(self) -> str:
        """Return `llms.txt`, which links to the Markdown version of every page."""
        lines = [f"- [{one.title}]({self._base_url}{one.path}.md)" for one in self._pages.values()]
        return "\n".join(["# Agent Vault", "", f"> {_ABOUT}", "", "## Pages", "", *lines, ""])

    def registration(self) -> dict[str, Any]:
        """Return `server.json`, which describes `/mcp` to a registry of MCP servers."""
        host = urlsplit(self._base_url).hostname or "localhost"
        key = {"name": "Authorization", "description": "`Bearer` and the agent's API key.", "isRequired": True}
        token = {"name": "Session-Token", "description": "The wallet's session token.", "isRequired": False}
        return {
            "$schema": "https://static.modelcontextprotocol.io/schemas/2025-12-11/server.schema.json",
            "name": f"{'.'.join(reversed(host.split('.')))}/agent-vault",
            "title": "Agent Vault",
            "description": _ABOUT,
            "version": VERSION,
            "websiteUrl": f"{self._base_url}/docs",
            "remotes": [
                {
                    "type": "streamable-http",
                    "url": f"{self._base_url}/mcp",
                    "headers": [one | {"isSecret": True} for one in (key, token)],
                }
            ],
        }

    @cached_property
    def _pages(self) -> Mapping[str, DocPage]:
        return {page.path: page for page in self._made()}

    def _made(self) -> Iterator[DocPage]:
        """Yield the pages in a reader's order."""
        yield start_page(self._base_url)
        yield from map(guide_page, GUIDES)
        yield from self._interface.pages()
        yield from (reference_page(), errors_page())
        yield from (error_page(kind, self._base_url) for kind in CATALOGUE.values())
        yield from (events_page(), settings_page())

    @cached_property
    def _index(self) -> SearchIndex | None:
        return None if search_fault() else SearchIndex(self._pages.values())

    def _framed(self, title: str, body: str, path: str = "", query: str = "") -> str:
        return framed(title, body, path, operations=self._interface.operations, query=query)


def _result(one: Result) -> str:
    page = "" if one.title == one.heading else f' <span class="muted">{escape(one.title)}</span>'
    return f'<li><a href="{escape(one.address)}">{escape(one.heading)}</a>{page}<br>{one.excerpt}</li>'
