"""Turns the documents' Markdown into HTML with anchors, highlighted code, code tabs and diagrams."""

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
#: Pattern of a heading's own anchor, written after its text as `{#anchor}`.
_ANCHOR = re.compile(r" \{#([\w.-]+)\}$")
#: A bar in a table's cell. Without the backslash, the bar would end the cell.
_BAR = "\\|"
_SYNTAX = re.compile(
    r"""(?P<comment>(?:(?<=\s)|^)(?:\#|//)[^\n]*)|(?P<string>"(?:\\.|[^"\\])*"|'[^']*'|`[^`]*`)|"""
    r"(?P<keyword>\b(?:as|async|await|class|const|def|except|export|for|from|function|if|import|in|let|new|not|null|"
    r"of|print|return|true|false|None|True|try|catch|with)\b)",
    re.MULTILINE,
)


@cache
def source(name: str) -> str:
    """Return the text of a file of the documents."""
    return files("app.docs").joinpath(name).read_text(encoding="utf-8")


def table(titles: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table in Markdown, or an empty text if it has no rows."""
    lines = [f"| {' | '.join(one.replace('|', _BAR) for one in row)} |" for row in rows]
    return "\n".join([f"| {' | '.join(titles)} |", "|---" * len(titles) + "|", *lines, ""]) if lines else ""


def fence(language: str, code: str) -> str:
    """Return a block of code in Markdown."""
    return f"```{language}\n{code}\n```\n"


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
            own = _ANCHOR.search(title.content)
            if own and title.children:
                title.children[-1].content = _ANCHOR.sub("", title.children[-1].content)
            anchor = wanted = own[1] if own else slug(title.content)
            number = 1
            while anchor in taken:
                number += 1
                anchor = f"{wanted}-{number}"
            taken.add(anchor)
            opening.attrSet("id", anchor)


def _lead_to_pages(tokens: Sequence[Token]) -> None:
    """Change each link to a document's file, such as `limits.md`, into a link to its page.

    The sources link to files, because only those links work in the repository.
    """
    for link in (child for token in tokens for child in token.children or () if child.type == "link_open"):
        address = str(link.attrs["href"])
        if "://" not in address:
            link.attrs["href"] = _FILE.sub("", address)


def _dressed(tokens: Sequence[Token]) -> Iterator[Token]:
    """Yield the tokens with HTML for diagrams, code, groups of code tabs and scrolling tables."""
    in_tabs = False
    for index, token in enumerate(tokens):
        after = tokens[index + 1] if index + 1 < len(tokens) else None
        if token.type == "fence" and token.info == "mermaid":
            yield _raw(_diagram(token.content))
        elif token.type == "fence" and token.info in LANGUAGES and (in_tabs or _is_tab(after)):
            start = "" if in_tabs else '<div class="tabs">'
            in_tabs = _is_tab(after)
            yield _raw(f"{start}{_tab(token)}{'' if in_tabs else '</div>'}\n")
        elif token.type == "fence":
            yield _raw(f"{_code(token)}\n")
        elif token.type == "table_open":
            # A table that is too wide scrolls on its own, also by keyboard.
            yield _raw('<div class="table" role="group" aria-label="Table" tabindex="0">')
            yield token
        elif token.type == "table_close":
            yield token
            yield _raw("</div>\n")
        else:
            yield token


def _raw(html: str) -> Token:
    return Token("html_block", "", 0, content=html)


def _is_tab(token: Token | None) -> bool:
    return token is not None and token.type == "fence" and token.info in LANGUAGES


def _tab(token: Token) -> str:
    return (
        f'<figure data-language="{token.info}"><figcaption>{LANGUAGES[token.info]}</figcaption>{_code(token)}</figure>'
    )


def _code(token: Token) -> str:
    shown = _highlighted(token.content) if token.info in {*LANGUAGES, "json"} else escape(token.content)
    return f'<pre><code class="language-{escape(token.info) or "text"}">{shown}</code></pre>'


def _highlighted(code: str) -> str:
    """Return code as HTML with marked comments, strings and keywords."""
    parts, place = [], 0
    for found in _SYNTAX.finditer(code):
        parts.append(escape(code[place : found.start()], quote=False))
        parts.append(f'<i class="{found.lastgroup}">{escape(found[0], quote=False)}</i>')
        place = found.end()
    return "".join([*parts, escape(code[place:], quote=False)])


def _diagram(text: str) -> str:
    return (
        f'<figure class="diagram"><img src="/docs/{diagram_file(text)}" alt="Diagram; its text follows."></figure>'
        f"<details><summary>The diagram as text</summary><pre>{escape(text)}</pre></details>\n"
    )
