"""The meaning of every field, read from the reference, so that OpenAPI and the reference cannot differ."""

import re
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path

_CODE = re.compile(r"`([^`]+)`")
_AS_IN = re.compile(r"As in (\w+)\.")
_SECTIONS = ("Requests", "Fields")

#: Fields of many schemas, which the tables do not repeat.
EVERYWHERE: Mapping[str, str] = {
    "idempotencyKey": "Chosen by the client, at random: within 24 hours, a repetition of what succeeded gets its "
    "answer and does nothing; what was refused is judged anew.",
    "has_more": "Whether there is a next page.",
    "next_cursor": "Asks for the next page as `cursor`; null on the last one.",
    "data": "The rows of the page.",
    "error": "What was wrong: its code, a message for people, and what else the code has.",
}


@cache
def meanings() -> Mapping[str, Mapping[str, str]]:
    """Return the meaning of each field by table: a schema's name, or method and path for query parameters.

    Under `*` are those of fields that many operations have.
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
