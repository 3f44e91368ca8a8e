"""The meaning of every field, read from the reference document, so that OpenAPI and the reference cannot differ."""

import re
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path

_CODE = re.compile(r"`([^`]+)`")
_AS_IN = re.compile(r"As in (\w+)\.")
_SECTIONS = ("Requests", "Fields")

#: Fields that many schemas share. The tables do not repeat them.
EVERYWHERE: Mapping[str, str] = {
    "idempotencyKey": "A random key chosen by the client. Within 24 hours, a replay of a successful request gets the "
    "stored response and has no effect. A refused request that is repeated is judged again.",
    "has_more": "True if there is a next page.",
    "next_cursor": "The value of `cursor` for the next page; null on the last page.",
    "data": "The rows of the page.",
    "error": "The error: its code, a message for people, and further members of this code.",
}


@cache
def meanings() -> Mapping[str, Mapping[str, str]]:
    """Return the meaning of each field by table. A table is a schema's name, or method and path for query parameters.

    The table `*` has the fields that many operations share.
    """
    found: dict[str, dict[str, str]] = {"*": dict(EVERYWHERE)}
    for table, names, meaning in _rows():
        for name in names:
            found.setdefault(table, {})[name] = meaning
    for fields in found.values():
        for name, meaning in fields.items():
            if elsewhere := _AS_IN.fullmatch(meaning):
                fields[name] = found[elsewhere[1]][name]
    return found


def _rows() -> Iterator[tuple[str, list[str], str]]:
    section = table = ""
    titles: list[str] = []
    text = (Path(__file__).parent / "reference.md").read_text(encoding="utf-8")
    for line in text.splitlines():
        if line.startswith("## "):
            section = line.removeprefix("## ")
        elif line.startswith("### "):
            table = line.removeprefix("### ")
        elif line.startswith("| ") and section in _SECTIONS:
            cells = [cell.strip() for cell in line.strip("|").split("|")]
            if cells[-1] == "Test":
                titles = cells
            else:
                yield table, _CODE.findall(cells[0]), cells[titles.index("Meaning")]
