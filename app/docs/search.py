"""The search in the documents, on an SQLite full-text index in memory."""

import json
import re
import sqlite3
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from html import escape, unescape
from threading import Lock
from weakref import finalize

from app.docs.layout import DocPage
from app.docs.text import source

MAX_WORDS = 12
"""Maximum number of words searched for. Further words of a query are ignored."""
_MOST = 20
"""Maximum number of results."""
_SNIPPET = 24
"""Number of words in a result's excerpt."""
_SAME_MEANING = (
    ("verify", "check", "validate"),
    # The stem of "container" alone would also match "contains".
    ("docker", "container file", "container image", "image"),
    ("retry", "repeat", "idempotency", "duplicate", "twice"),
    ("cost", "fee", "price"),
    ("sdk", "client", "library"),
    ("pagination", "cursor", "next page"),
    ("hsm", "yubikey", "pkcs"),
    ("availability", "failover"),
    ("fund", "deposit", "money"),
    ("notify", "alert"),
    ("expire", "lifetime"),
    ("simulate", "dry run", "preview"),
    ("auto-topup", "top-up", "refill"),
    ("authorization", "authentication"),
    ("attacker", "hacked", "thief"),
    ("history", "list"),
    ("freeze", "frozen", "stop", "block", "pause", "emergency"),
)
#: Weights of a match of a synonym, of a part of a name such as `wallet_frozen`, and of a longer word, relative to a
#: match of the word itself.
_SYNONYM, _PART_OF_NAME, _LONGER = 0.9, 0.5, 0.3
#: Weight of the pages under each path. Guides weigh more, because a guide explains a word that a list only mentions.
#: The name of an error, event or setting still finds its own page first.
_WORTH = (("/docs/guides/", 1.25), ("/docs/api/", 1.1), ("/docs/errors", 0.9), ("/docs/settings", 0.9), ("/docs/", 0.6))
_WORTH_OF_START = 1.25
#: Weight of a page if the query has every word of the page's title, or equals the heading of the page's best section.
_NAMED = 2.0
#: Weight of a page's best section, relative to the score that the page gets for the words in all its sections.
_BEST = 1.5
#: Weight of a word in each further section of a page, relative to the section before. The best section comes first.
_FURTHER = 0.5
_COMMON = (
    "a after am an and any are as at be before by can could do does for from get has have how i if in into is it its "
    "many me much my of on or our should so than that the their them then there this to use using want was we what "
    "when where which who why will with would you your"
)
"""Words that most texts contain. The search ignores them."""
#: Anchors of sections that most pages of operations have. The index leaves these sections out.
_REPEATED = frozenset({"parameters", "errors"})
_SECTION = re.compile(r"(?=<h1|<h[23] id=)")
_HEADING = re.compile(r'<(h[123])(?: id="([^"]*)")?>(.*?)</\1>', re.DOTALL)
_TAG = re.compile(r"<[^>]+>")
_INLINE = re.compile(r"</?(?:a|code|i|strong)\b[^>]*>")
_ENDING = re.compile(r"(?:ing|ied|ies|ed|es|ly|s|y|e)$")
_PART = re.compile(r"\w+")
_MARKS = {"\x02": "<mark>", "\x03": "</mark>"}
_TABLE = (
    "CREATE VIRTUAL TABLE sections USING fts5(address UNINDEXED, path UNINDEXED, title, heading, body, terms, "
    "tokenize = 'porter unicode61', prefix = '2 3')"
)
_RANKED = "SELECT rowid, -bm25(sections, 0, 0, 14, 6, 1, 10) FROM sections WHERE sections MATCH ?"


@dataclass(frozen=True, slots=True)
class Result:
    """The best section of a page for a query. ``excerpt`` is HTML."""

    address: str
    title: str
    heading: str
    excerpt: str


def search_fault() -> str | None:
    """Return the reason why this machine's SQLite cannot search, or None if it can."""
    try:
        with closing(sqlite3.connect(":memory:")) as db:
            db.execute(_TABLE)
    except sqlite3.Error as error:
        return str(error)
    return None


class SearchIndex:
    """An index of the sections of pages."""

    def __init__(self, pages: Iterable[DocPage]) -> None:
        # Each search runs in a worker thread, and SQLite otherwise accepts only the thread that opened the database.
        self._db = sqlite3.connect(":memory:", check_same_thread=False)
        finalize(self, self._db.close)
        self._lock = Lock()
        self._db.execute(_TABLE)
        terms: Mapping[str, str] = json.loads(source("search_terms.json"))
        rows = [row for page in pages for row in _sections(page, terms.get(page.path, ""))]
        self._db.executemany("INSERT INTO sections VALUES (?, ?, ?, ?, ?, ?)", rows)
        self._paths = {number: row[1] for number, row in enumerate(rows, 1)}
        #: The stems of the title of each page, and of the heading of each section.
        self._titles: dict[str | int, set[str]] = {row[1]: _stems(row[2]) for row in rows}
        self._titles |= {number: _stems(row[3]) for number, row in enumerate(rows, 1)}

    def results(self, query: str) -> list[Result]:
        """Return the best section of each page that contains a word of the query. The best page comes first."""
        words = _words(query)
        with self._lock:
            found = [self._scores(word) for word in words]
            sections: dict[int, float] = defaultdict(float)
            for scores in found:
                for row, score in scores.items():
                    sections[row] += score
            # A page's score for a word adds up its sections. Each further section counts half as much as the last one.
            pages: dict[str, float] = defaultdict(float)
            for scores in found:
                ranks: dict[str, int] = defaultdict(int)
                for row in sorted(scores, key=lambda one: -scores[one]):
                    pages[self._paths[row]] += scores[row] * _FURTHER ** ranks[self._paths[row]]
                    ranks[self._paths[row]] += 1
            chosen: dict[str, int] = {}
            for row in sorted(sections, key=lambda one: -sections[one]):
                chosen.setdefault(self._paths[row], row)
            asked = " OR ".join(match for word in words for match in _matches(word))
            exact, names = _stems(" ".join(words)), _stems(f"{query} {asked}")
            worth = {
                path: _worth(path) * (_NAMED if self._titles[path] <= names or self._titles[row] == exact else 1.0)
                for path, row in chosen.items()
            }
            ranked = sorted(chosen, key=lambda path: -worth[path] * (pages[path] + _BEST * sections[chosen[path]]))
            return [self._result(chosen[path], asked) for path in ranked[:_MOST]]

    def _scores(self, word: str) -> Mapping[int, float]:
        """Return the score of each section that matches a word."""
        scores: dict[int, float] = defaultdict(float)
        for match, weight in _matches(word).items():
            for row, score in self._db.execute(_RANKED, (match,)):
                scores[row] += weight * score
        return scores

    def _result(self, row: int, match: str) -> Result:
        shown = "SELECT address, title, heading, snippet(sections, 4, ?, ?, '…', ?) FROM sections"
        found = self._db.execute(f"{shown} WHERE sections MATCH ? AND rowid = ?", (*_MARKS, _SNIPPET, match, row))
        address, title, heading, excerpt = found.fetchone()
        excerpt = escape(excerpt)
        for mark, element in _MARKS.items():
            excerpt = excerpt.replace(mark, element)
        return Result(address, title, heading, excerpt)


def _sections(page: DocPage, terms: str) -> Iterator[tuple[str, str, str, str, str, str]]:
    """Yield the rows of a page. Text under a heading without an anchor belongs to the section before it.

    One more row covers the whole page. It also has the ``terms``: words that people search for, even if the page's text
    does not contain them.
    """
    body, kept = page.body.partition('<div class="samples">')[0], []
    for part in _SECTION.split(body):
        heading = _HEADING.search(part)
        if heading and not (heading[2] in _REPEATED and page.samples):
            kept.append(_plain(part))
            address = f"{page.path}#{heading[2]}" if heading[2] else page.path
            yield address, page.path, page.title, _plain(heading[3]), _plain(part[heading.end() :]), ""
    yield page.path, page.path, page.title, page.title, " ".join(kept), terms


def _worth(path: str) -> float:
    return next((worth for start, worth in _WORTH if path.startswith(start)), _WORTH_OF_START)


def _plain(html: str) -> str:
    """Return the text content of HTML on one line."""
    return " ".join(unescape(_TAG.sub(" ", _INLINE.sub("", html))).split())


def _words(query: str) -> list[str]:
    """Return the words to search for. Common words are left out, unless the query has no other words."""
    words = [word for word in query.replace("\0", " ").lower().split() if _PART.search(word)]
    return ([word for word in words if word not in _COMMON.split()] or words)[:MAX_WORDS]


def _quoted(word: str) -> str:
    # FTS5 does not read a quoted word such as "OR" as an operator. The tokenizer turns a word such as `wallet_frozen`
    # into a phrase.
    return '"' + word.replace('"', '""') + '"'


def _matches(word: str) -> Mapping[str, float]:
    """Return the FTS5 expressions that match a word, each with its weight."""
    parts = _PART.findall(word)
    found = {_quoted(word): 1.0, f"{_quoted(word)}*": _LONGER}
    if len(parts) > 1:
        found |= {_quoted(part): _PART_OF_NAME for part in parts}
    if "_" in word:
        # Requests spell the field in camelCase. The index stores a name such as `walletId` as one word.
        found[_quoted(word.replace("_", ""))] = 1.0
    for group in _SAME_MEANING:
        if _stem(word) in {_stem(one) for one in group}:
            found |= {_quoted(one): _SYNONYM for one in group if _stem(one) != _stem(word)}
    return found


def _stems(text: str) -> set[str]:
    return {_stem(word) for word in _PART.findall(text.lower().replace("_", " "))}


def _stem(word: str) -> str:
    return _ENDING.sub("", word)
