"""Turns the documents' Markdown into HTML with anchors, code tabs and diagrams, and folds the names of tests."""

import re
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from hashlib import sha256
from html import escape
from importlib.resources import files
from itertools import pairwise

from markdown_it import MarkdownIt
from markdown_it.token import Token

LANGUAGES = {"sh": "curl", "python": "Python", "ts": "TypeScript"}
"""Title of each language in a group of tabs, by the language name after the opening fence of a code block."""
_MARKDOWN = MarkdownIt("commonmark", {"html": False}).enable("table")
#: Pattern of the suffix of a document's file name, before an anchor if there is one.
_FILE = re.compile(r"\.md(?=#|$)")
_UNSAFE = re.compile(r"[^a-z0-9]+")


@cache
def source(name: str) -> str:
    """Return the text of a file of the documents."""
    return files("app.docs").joinpath(name).read_text(encoding="utf-8")


def inline(text: str) -> str:
    """Return text as HTML. Text between backquotes becomes code."""
    parts = escape(text).split("`")
    return "".join(f"<code>{part}</code>" if index % 2 else part for index, part in enumerate(parts))


_TABLE = '<div class="table" role="group" aria-label="Table" tabindex="0">'
"""The element around a table. It scrolls on its own, also by keyboard, if the table is too wide."""


def table(titles: Sequence[str], rows: Iterable[str]) -> str:
    """Return an HTML table. ``titles`` and ``rows`` are HTML."""
    head = "".join(f"<th>{title}</th>" for title in titles)
    return f"{_TABLE}<table><thead><tr>{head}</tr></thead><tbody>{''.join(rows)}</tbody></table></div>"


def slug(text: str) -> str:
    """Return a heading's anchor."""
    return _UNSAFE.sub("-", text.lower()).strip("-")


def diagram_file(text: str) -> str:
    """Return the file name of the picture for a diagram's source. A changed source gets a new name."""
    return f"diagrams/{sha256(text.encode()).hexdigest()[:16]}.svg"


def markdown(text: str) -> str:
    """Return Markdown as HTML."""
    tokens = _MARKDOWN.parse(text)
    _anchor(tokens)
    _lead_to_pages(tokens)
    return str(_MARKDOWN.renderer.render(list(_dressed(tokens)), _MARKDOWN.options, {}))


def _anchor(tokens: Sequence[Token]) -> None:
    taken: set[str] = set()
    for opening, title in pairwise(tokens):
        if opening.type == "heading_open" and opening.tag != "h1":
            anchor = wanted = slug(title.content)
            number = 1
            while anchor in taken:
                number += 1
                anchor = f"{wanted}-{number}"
            taken.add(anchor)
            opening.attrSet("id", anchor)


def _lead_to_pages(tokens: Sequence[Token]) -> None:
    """Change links to the documents' files, which work in the repository, into links to their pages."""
    for link in (child for token in tokens for child in token.children or () if child.type == "link_open"):
        address = str(link.attrs["href"])
        if "://" not in address:
            link.attrs["href"] = _FILE.sub("", address)


def _dressed(tokens: Sequence[Token]) -> Iterator[Token]:
    """Yield the tokens with HTML for diagrams, groups of code tabs, scrolling tables and folded names of tests."""
    tests_apart = in_tabs = False
    for index, token in enumerate(tokens):
        after = tokens[index + 1] if index + 1 < len(tokens) else None
        if token.type == "fence" and token.info == "mermaid":
            yield _raw(_diagram(token.content))
        elif token.type == "fence" and token.info in LANGUAGES and (in_tabs or _is_tab(after)):
            start = "" if in_tabs else '<div class="tabs">'
            in_tabs = _is_tab(after)
            yield _raw(f"{start}{_tab(token)}{'' if in_tabs else '</div>'}\n")
        elif token.type == "table_open":
            tests_apart = _has_tests(tokens[index:])
            yield _raw(_TABLE)
            yield token
        elif token.type == "table_close":
            yield token
            yield _raw("</div>\n")
        elif tests_apart and token.type == "inline" and _ends_row(tokens[index:]) and tokens[index - 1].tag == "td":
            yield _raw("<details><summary>shown by</summary>")
            yield token
            yield _raw("</details>")
        else:
            yield token


def _raw(html: str) -> Token:
    return Token("html_block", "", 0, content=html)


def _is_tab(token: Token | None) -> bool:
    return token is not None and token.type == "fence" and token.info in LANGUAGES


def _tab(token: Token) -> str:
    return (
        f'<figure data-language="{token.info}"><figcaption>{LANGUAGES[token.info]}</figcaption>'
        f'<pre><code class="language-{token.info}">{escape(token.content)}</code></pre></figure>'
    )


def _diagram(text: str) -> str:
    return (
        f'<figure class="diagram"><img src="/docs/{diagram_file(text)}" alt="Diagram; its text follows."></figure>'
        f"<details><summary>The diagram as text</summary><pre>{escape(text)}</pre></details>\n"
    )


def _has_tests(tokens: Sequence[Token]) -> bool:
    """Return True if the last column of the table that begins here lists tests."""
    end = next(index for index, token in enumerate(tokens) if token.type == "thead_close")
    return [token.content for token in tokens[:end] if token.type == "inline"][-1] == "Test"


def _ends_row(tokens: Sequence[Token]) -> bool:
    """Return True if the first token is the content of the last cell in its row."""
    return [token.type for token in tokens[1:3]] == ["td_close", "tr_close"]
