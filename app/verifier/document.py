"""Reads exported files, row by row."""

import csv
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

from pydantic import ValidationError

from app.exports.layout import COLUMNS, JSON_FIELDS, SCOPE_COLUMN, Scope, restore

Row = dict[str, str | None]
"""A row as texts, by the names of the CSV columns; `None` for what is empty."""

_CHUNK = 1 << 20
_SPACE = " \t\r\n"


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


def _scope(text: str) -> Scope:
    try:
        return Scope.model_validate_json(text)
    except ValidationError:
        raise UnreadableError("the file does not say what it holds, or is of another version") from None


def _csv(handle: TextIO) -> Document:
    lines = csv.reader(handle, strict=True)
    head = next(lines, [])
    if head[:-1] != list(COLUMNS) or not head[-1].startswith(SCOPE_COLUMN):
        raise UnreadableError("the file does not begin with the columns of an export")
    return Document(_scope(head[-1].removeprefix(SCOPE_COLUMN)), _cells(lines))


def _cells(lines: Iterator[list[str]]) -> Iterator[Row]:
    for number, cells in enumerate(lines, 1):
        if len(cells) != len(COLUMNS) + 1 or cells[-1]:
            raise UnreadableError(f"row {number} has not the cells of an export")
        yield {name: restore(cell) or None for name, cell in zip(COLUMNS, cells[:-1], strict=True)}


def _json(handle: TextIO) -> Document:
    text = _Text(handle)
    text.expect("{")
    text.name("export")
    scope = _scope(json.dumps(text.value()))
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
        violation = found.pop("violation") or {}
        yield dict.fromkeys(COLUMNS) | {name: _text(value) for name, value in found.items()} | _violation(violation)
    text.expect("]")
    text.expect("}")
    if text.peek():
        raise UnreadableError("something follows the export's end")


def _violation(found: Any) -> Row:
    if not isinstance(found, dict):
        raise UnreadableError("a violation is no object")
    return {f"violation_{name}": _text(value) for name, value in found.items()}


def _text(value: Any) -> str | None:
    match value:
        case None | "":
            return None
        case bool():
            return "true" if value else "false"
        case str() | int():
            return str(value)
    raise UnreadableError("a value is neither text nor number")


class _Text:
    """JSON, of which at most one value is held at a time."""

    def __init__(self, handle: TextIO) -> None:
        self._handle = handle
        self._decoder = json.JSONDecoder()
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
                found, self._at = self._decoder.raw_decode(self._held, self._at)
            except (json.JSONDecodeError, RecursionError):
                if not self._read():
                    raise UnreadableError("the file is cut or broken") from None
            else:
                return found

    def _read(self) -> bool:
        more = self._handle.read(_CHUNK)
        self._held, self._at = self._held[self._at :] + more, 0
        return bool(more)
