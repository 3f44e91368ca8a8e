"""The frame of pages: title, search, and the list of the main pages, in the order that readers need them."""

from collections.abc import Mapping
from dataclasses import dataclass
from html import escape

from app.docs.assets import icon_link, script
from app.docs.text import source

GUIDES: Mapping[str, str] = {
    "authentication": "Authentication",
    "dashboard": "Dashboard",
    "escrow": "Escrow",
    "recipients": "Recipients",
    "allowances": "Allowances",
    "approvals": "Approvals",
    "alerts": "Alerts",
    "webhooks": "Webhooks",
    "exports": "Exports",
    "audit": "Audit log",
    "mcp": "Tools for agents (MCP)",
    "x402": "Paid resources (x402)",
    "direct-use": "Direct use",
    "command-line": "Command line",
    "clusters": "Clusters",
    "nodes": "Several nodes",
    "operations": "Operations",
    "keys": "Keys",
    "tokens": "Keys in a token",
    "threat-model": "Threat model",
    "leaked-keys": "Leaked keys",
    "risks": "Accepted risks",
    "limits": "Limits and figures",
}
"""Title of each guide, by its name in file names and paths."""

_SECTIONS: Mapping[str, Mapping[str, str]] = {
    "Begin": {
        "/docs": "Quick start",
        **{f"/docs/guides/{name}": GUIDES[name] for name in ("authentication", "dashboard")},
        "/docs/explorer": "Explorer",
        "/dashboard": "Open the dashboard",
    },
    "Build": {
        f"/docs/guides/{name}": GUIDES[name]
        for name in (
            *("recipients", "escrow", "allowances", "approvals", "alerts", "webhooks", "exports", "audit"),
            *("mcp", "x402", "direct-use"),
        )
    },
    "Look up": {
        "/docs/api": "API reference",
        "/docs/errors": "Errors",
        "/docs/events": "Events",
        "/docs/reference": "Promises and their tests",
    },
    "Operate": {
        **{
            f"/docs/guides/{name}": GUIDES[name]
            for name in ("command-line", "clusters", "nodes", "operations", "keys", "tokens")
        },
        "/docs/settings": "Settings",
    },
    "Trust": {f"/docs/guides/{name}": GUIDES[name] for name in ("threat-model", "leaked-keys", "risks", "limits")},
}


@dataclass(frozen=True, slots=True)
class DocPage:
    """A page: its path, its title, and its content as HTML."""

    path: str
    title: str
    body: str


def framed(page: DocPage, query: str = "") -> str:
    """Return a page as HTML."""
    # In browser tabs and search engines, the product's name follows the title of the page.
    title = escape(f"{page.title} · Agent Vault")
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{title}</title>'
        f'<meta name="viewport" content="width=device-width, initial-scale=1"><style>{source("style.css")}</style>'
        f'{icon_link()}{script("docs.js")}</head><body><header><a class="product" href="/docs">Agent Vault</a>'
        f"{_search_form(query)}"
        f'<a class="to-menu" href="#menu">All pages</a></header><div class="columns">'
        f"<main>{page.body}</main>{_menu(page.path)}</div></body></html>"
    )


def _search_form(query: str) -> str:
    return (
        '<form action="/docs/search" role="search"><input type="search" name="q" aria-label="Search the documents" '
        f'placeholder="Search" maxlength="100" value="{escape(query)}"> <button>Search</button></form>'
    )


def _menu(current: str) -> str:
    sections = "".join(
        f"<h2>{escape(title)}</h2><ul>{''.join(_entry(path, name, current) for path, name in pages.items())}</ul>"
        for title, pages in _SECTIONS.items()
    )
    return f'<nav id="menu" aria-label="All pages">{sections}</nav>'


def _entry(path: str, name: str, current: str) -> str:
    mark = ' aria-current="page"' if path == current else ""
    return f'<li><a href="{path}"{mark}>{escape(name)}</a></li>'
