"""The frame of pages: title, search, and the list of the main pages, in the order that readers need them."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256
from html import escape

from app.docs.assets import icon_link, script
from app.docs.text import markdown, source

_SECTIONS: Mapping[str, Mapping[str, str]] = {
    "Begin": {
        "authentication": "Authentication",
        "clients": "Clients",
        "testing": "Testing",
        "retries": "Retries and idempotency",
        "dashboard": "Dashboard",
    },
    "Build": {
        "mcp": "Tools for agents (MCP)",
        "x402": "Paid resources (x402 and MPP)",
        "recipients": "Recipients",
        "approvals": "Approvals",
        "webhooks": "Webhooks",
        "receivers": "Receive webhooks",
        "alerts": "Alerts",
        "exports": "Exports",
        "audit": "Audit log",
        "escrow": "Escrow",
        "allowances": "Allowances",
        "direct-use": "Direct use",
    },
    "Operate": {
        "deploy": "Deploy",
        "clusters": "Clusters",
        "command-line": "Command line",
        "operations": "Operations",
        "upgrading": "Upgrading",
        "keys": "Keys",
        "tokens": "Keys in a token",
        "nodes": "Several nodes",
    },
    "Trust": {
        "costs": "Costs",
        "limits": "Limits and figures",
        "threat-model": "Threat model",
        "leaked-keys": "Leaked keys",
        "risks": "Accepted risks",
    },
}
"""Titles of the guides, by section and by the guide's name in file names and paths, in a newcomer's reading order."""
GUIDES: Mapping[str, str] = {name: title for guides in _SECTIONS.values() for name, title in guides.items()}
_LISTS: Mapping[str, str] = {
    "/docs/errors": "Errors",
    "/docs/events": "Events",
    "/docs/settings": "Settings",
    "/docs/reference": "Conventions and values",
}
#: For the path of each object's page: the titles of its operations, by the path of the operation's page.
Operations = Mapping[str, Mapping[str, str]]


@dataclass(frozen=True)
class DocPage:
    """A page: its path, its title, and its content in Markdown.

    ``samples`` are shown next to the text on a wide screen. ``file`` is the page's source file in `app/docs`. It is
    empty if no file contains the page's text.
    """

    path: str
    title: str
    text: str
    samples: str = ""
    file: str = ""

    @cached_property
    def body(self) -> str:
        """The content as HTML."""
        if not self.samples:
            return markdown(self.text)
        samples = f'<div class="samples">{markdown(self.samples)}</div>'
        return f'<div class="pair"><div>{markdown(self.text)}</div>{samples}</div>'

    @cached_property
    def edited(self) -> str | None:
        """The date of the last change of the file, or None if it is unknown."""
        digest, date = json.loads(source("edited.json")).get(self.file, ("", None))
        return date if self.file and digest == digest_of(self.file) else None


def digest_of(file: str) -> str:
    """Return a file's digest. A date in `edited.json` is valid only while the file has the digest stored with it."""
    return sha256(source(file).encode()).hexdigest()[:16]


def object_title(tag: str) -> str:
    """Return the title of an object's page."""
    # `x402` is the name of a protocol and begins with a small letter.
    return tag if tag == "x402" else tag.replace("-", " ").capitalize()


def framed(title: str, body: str, path: str = "", *, operations: Operations, query: str = "") -> str:
    """Return a complete HTML page: a header with the search, the ``body``, and the menu of all pages."""
    # In browser tabs and search engines, the product's name follows the title of the page.
    shown = escape(f"{title} · Agent Vault")
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{shown}</title>'
        f'<meta name="viewport" content="width=device-width, initial-scale=1"><style>{source("style.css")}</style>'
        f'{icon_link()}{script("docs.js")}</head><body><header><a class="product" href="/docs">Agent Vault</a>'
        f"{_search_form(query)}"
        f'<a class="to-menu" href="#menu">All pages</a></header><div class="columns">'
        f"<main>{body}</main>{_menu(path, operations)}</div></body></html>"
    )


def footer(page: DocPage, before: DocPage | None, after: DocPage | None) -> str:
    """Return the end of a page: links to the pages before and after it, its date, and its Markdown."""
    links = [
        f'<a rel="{rel}" href="{one.path}">{words}: {escape(one.title)}</a>'
        for rel, words, one in (("prev", "Previous", before), ("next", "Next", after))
        if one is not None
    ]
    date = [f'Edited on <time datetime="{page.edited}">{page.edited}</time>'] if page.edited else []
    about = " · ".join([*date, f'<a href="{page.path}.md">Markdown</a>'])
    return f'<footer><p class="row">{"".join(links)}</p><p class="muted">{about}</p></footer>'


def _search_form(query: str) -> str:
    return (
        '<form action="/docs/search" role="search"><input type="search" name="q" aria-label="Search the documents" '
        f'placeholder="Search (/)" maxlength="100" autocomplete="off" value="{escape(query)}"> '
        "<button>Search</button></form>"
    )


def _menu(current: str, operations: Operations) -> str:
    guides = {
        section: {f"/docs/guides/{name}": title for name, title in found.items()}
        for section, found in _SECTIONS.items()
    }
    objects = {path: object_title(path.rpartition("/")[2]) for path in operations}
    lists = {
        "Begin": {"/docs": "Quick start", **guides.pop("Begin"), "/dashboard": "Open the dashboard"},
        "Build": guides.pop("Build"),
        "Look up": {"/docs/api": "API reference", **objects, **_LISTS},
        **guides,
    }
    shown = (
        f"<h2>{escape(title)}</h2><ul>{''.join(_entry(*one, current, operations) for one in pages.items())}</ul>"
        for title, pages in lists.items()
    )
    return f'<nav id="menu" aria-label="All pages">{"".join(shown)}</nav>'


def _entry(path: str, name: str, current: str, operations: Operations) -> str:
    """Return a page's entry. The entry of the current object has its operations below it."""
    inner = operations.get(path, {})
    shown = inner if current in (path, *inner) else {}
    below = "".join(_entry(*one, current, {}) for one in shown.items())
    mark = ' aria-current="page"' if path == current else ""
    return f'<li><a href="{path}"{mark}>{escape(name)}</a>{f"<ul>{below}</ul>" if below else ""}</li>'
