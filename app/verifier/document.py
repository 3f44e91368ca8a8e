"""Reads exported files, row by row."""

import csv
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

from pydantic import ValidationError

from app.exports.layout import COLUMNS, JSON_FIELDS, SCOPE_COLUMN, VIOLATION_FIELDS, Scope, is_formula, restore

Row = dict[str, str | None]
"""A row as texts, by the names of the CSV columns; `None` for what is empty."""

_CHUNK = 1 << 20
_SPACE = " \t\r\n"
_KINDS = {"on_chain_slot": int, "instruction_index": int, "inner_index": int, "policy_triggered": bool}
"""Kinds of a row's members in JSON that are no texts."""


class UnreadableError(ValueError):
    """The file is no export, or one that somebody cut or broke."""


@dataclass(frozen=True, slots=True)
class Document:
    """An opened export: what it claims to hold, and its rows, to be read once."""

    scope: Scope
    rows: Iterator[Row]


@contextmanager
def opened(path: Path) -> Iterator[Document]:
    """Open an export; whether it is CSV or JSON shows its first character. Raises `UnreadableError`, also later."""
    try:
        with path.open(encoding="utf-8", newline="") as handle:
            form = handle.read(1)
            handle.seek(0)
            yield _json(handle) if form == "{" else _csv(handle)
    except UnicodeDecodeError:
        raise UnreadableError("the file is not UTF-8") from None
    except csv.Error as error:
        raise UnreadableError(f"the file is not CSV: {error}") from None


def _scope(found: Any) -> Scope:
    try:
        return Scope.model_validate(found, by_alias=True, by_name=False)
    except ValidationError:
        raise UnreadableError("the file does not say what it holds, or is of another version") from None


def _once(members: list[tuple[str, Any]]) -> dict[str, Any]:
    """Make an object of its members; of two with one name, readers of the file would take one or the other."""
    found = dict(members)
    if len(found) != len(members):
        raise UnreadableError("an object in the file has a member twice")
    return found


_DECODER = json.JSONDecoder(object_pairs_hook=_once)


def _csv(handle: TextIO) -> Document:
    lines = csv.reader(handle, strict=True)
    head = next(lines, [])
    if head[:-1] != list(COLUMNS) or not head[-1].startswith(SCOPE_COLUMN):
        raise UnreadableError("the file does not begin with the columns of an export")
    try:
        scope = _DECODER.decode(head[-1].removeprefix(SCOPE_COLUMN))
    except (json.JSONDecodeError, RecursionError):
        raise UnreadableError("the last column's name does not say what the file holds") from None
    return Document(_scope(scope), _cells(lines))


def _cells(lines: Iterator[list[str]]) -> Iterator[Row]:
    for number, cells in enumerate(lines, 1):
        if len(cells) != len(COLUMNS) + 1 or cells[-1]:
            raise UnreadableError(f"row {number} has not the cells of an export")
        if any(map(is_formula, cells)):
            raise UnreadableError(f"row {number} has a cell that a spreadsheet would take for a formula")
        yield {name: restore(cell) or None for name, cell in zip(COLUMNS, cells[:-1], strict=True)}


def _json(handle: TextIO) -> Document:
    text = _Text(handle)
    text.expect("{")
    text.name("export")
    scope = _scope(text.value())
    text.expect(",")
    text.name("transactions")
    text.expect("[")
    return Document(scope, _members(text))


def _members(text: "_Text") -> Iterator[Row]:
    number = 0
    while text.peek() != "]":
        if number:
            text.expect(",")
        number += 1
        found = text.value()
        if not isinstance(found, dict) or set(found) != set(JSON_FIELDS):
            raise UnreadableError(f"row {number} has not the members of an export's")
        violation = _violation(found.pop("violation"))
        yield dict.fromkeys(COLUMNS) | {name: _text(name, value) for name, value in found.items()} | violation
    text.expect("]")
    text.expect("}")
    if text.peek():
        raise UnreadableError("something follows the export's end")


def _violation(found: Any) -> Row:
    if found is None:
        return {}
    if not isinstance(found, dict) or set(found) != set(VIOLATION_FIELDS):
        raise UnreadableError("a violation has not the members of an export's")
    return {f"violation_{name}": _text(name, value) for name, value in found.items()}


def _text(name: str, value: Any) -> str | None:
    if value is None:
        return None
    kind = _KINDS.get(name, str)
    if type(value) is not kind:
        raise UnreadableError(f"the member {name} is of another kind than an export's")
    return ("true" if value else "false") if kind is bool else str(value) or None


class _Text:
    """JSON, of which at most one value is held at a time."""

    def __init__(self, handle: TextIO) -> None:
        self._handle = handle
        self._held = ""
        self._at = 0

    def peek(self) -> str:
        """Return the next character that is no space; nothing at the end."""
        while True:
            while self._at < len(self._held) and self._held[self._at] in _SPACE:
                self._at += 1
            if self._at < len(self._held) or not self._read():
                return self._held[self._at : self._at + 1]

    def expect(self, character: str) -> None:
        """Pass over a character."""
        if self.peek() != character:
            raise UnreadableError(f"the file is cut or broken where {character} should be")
        self._at += 1

    def name(self, expected: str) -> None:
        """Pass over a member's name."""
        if self.value() != expected:
            raise UnreadableError(f"the file has something else where the member {expected} should be")
        self.expect(":")

    def value(self) -> Any:
        """Return the next value, a text or an object."""
        self.peek()
        while True:
            try:
                found, self._at = _DECODER.raw_decode(self._held, self._at)
            except (json.JSONDecodeError, RecursionError):
                if not self._read():
                    raise UnreadableError("the file is cut or broken") from None
            else:
                return found

    def _read(self) -> bool:
        more = self._handle.read(_CHUNK)
        self._held, self._at = self._held[self._at :] + more, 0
        return bool(more)
