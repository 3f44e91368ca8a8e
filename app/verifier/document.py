"""Reads exported files row by row."""

import csv
import hashlib
import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

from pydantic import ValidationError

from app.core.transaction_types import MOVEMENTS, TYPES
from app.exports import accounting
from app.exports.layout import COLUMNS, JSON_FIELDS, PARTS, SCOPE_COLUMN, Scope, cells, is_formula, restore

Row = dict[str, str | None]
"""A row as texts by CSV column; None for an empty cell."""

_CHUNK = 1 << 20
_SPACE = " \t\r\n"
_MEMBERS: Mapping[str, type] = {
    **dict.fromkeys(JSON_FIELDS, str),
    **dict.fromkeys(("on_chain_slot", "instruction_index", "inner_index"), int),
    "policy_triggered": bool,
    **dict.fromkeys(PARTS, dict),
}
"""The types of a JSON row's members. Each member may also be null."""


class UnreadableError(ValueError):
    """The file is not an export, or it was cut or damaged."""


@dataclass(frozen=True, slots=True)
class Document:
    """An opened export: its scope, its rows, which can be read once, and the types of rows that it has."""

    scope: Scope
    rows: Iterator[Row]
    types: Collection[str] = TYPES


@contextmanager
def opened(path: Path, manifest: Path | None = None) -> Iterator[Document]:
    """Open an export as JSON or CSV, depending on its first character, or with `manifest` as an accounting file.

    Raises `UnreadableError` if the file is damaged or is not an export. A damaged row raises the error only when it is
    read.
    """
    try:
        with path.open(encoding="utf-8-sig", newline="") as handle:
            first = handle.read(1)
            handle.seek(0)
            if manifest is not None:
                yield _accounting(handle, path, manifest.read_text(encoding="utf-8"))
            else:
                yield _json(handle) if first == "{" else _csv(handle)
    except UnicodeDecodeError:
        raise UnreadableError("the file or its manifest is not UTF-8") from None
    except csv.Error as error:
        raise UnreadableError(f"the file is not CSV: {error}") from None


def _scope(found: Any) -> Scope:
    try:
        return Scope.model_validate(found, by_alias=True, by_name=False)
    except ValidationError:
        raise UnreadableError("the file does not state its scope, or has another version") from None


def _unique(members: list[tuple[str, Any]]) -> dict[str, Any]:
    """Build an object from its members. A duplicate name is refused, because other readers might take either value."""
    found = dict(members)
    if len(found) != len(members):
        raise UnreadableError("an object in the file has two members with the same name")
    return found


_DECODER = json.JSONDecoder(object_pairs_hook=_unique)


def _csv(handle: TextIO) -> Document:
    lines = csv.reader(handle, strict=True)
    head = next(lines, [])
    if head[:-1] != list(COLUMNS) or not head[-1].startswith(SCOPE_COLUMN):
        if tuple(head) == accounting.COLUMNS:
            raise UnreadableError("an accounting file needs its manifest; name it with --manifest")
        raise UnreadableError("the file does not begin with the columns of an export")
    try:
        scope = _DECODER.decode(head[-1].removeprefix(SCOPE_COLUMN))
    except (json.JSONDecodeError, RecursionError):
        raise UnreadableError("the name of the last column does not state the file's scope") from None
    return Document(_scope(scope), _csv_rows(lines))


def _accounting(handle: TextIO, path: Path, manifest: str) -> Document:
    try:
        stated = accounting.AccountingManifest.model_validate_json(manifest)
    except ValidationError:
        raise UnreadableError("the manifest is not one of an accounting file") from None
    with path.open("rb") as content:
        if hashlib.file_digest(content, "sha256").hexdigest() != stated.sha256:
            raise UnreadableError("the manifest belongs to another file, or the file was changed")
    lines = csv.reader(handle, strict=True)
    if next(lines, []) != list(accounting.COLUMNS):
        raise UnreadableError("the file does not begin with the columns of an accounting file")
    return Document(stated.export, map(accounting.claims, _cells(lines, accounting.COLUMNS)), MOVEMENTS)


def _csv_rows(lines: Iterator[list[str]]) -> Iterator[Row]:
    # The last cell belongs to the column that states the scope.
    for number, row in enumerate(_cells(lines, (*COLUMNS, "")), 1):
        if row.pop(""):
            raise UnreadableError(f"row {number} does not have the cells of an export row")
        yield {name: cell or None for name, cell in row.items()}


def _cells(lines: Iterator[list[str]], columns: Sequence[str]) -> Iterator[dict[str, str]]:
    for number, line in enumerate(lines, 1):
        if len(line) != len(columns):
            raise UnreadableError(f"row {number} does not have the cells of an export row")
        if any(map(is_formula, line)):
            raise UnreadableError(f"row {number} has a cell that a spreadsheet would treat as a formula")
        yield dict(zip(columns, map(restore, line), strict=True))


def _json(handle: TextIO) -> Document:
    text = _JsonText(handle)
    text.expect("{")
    text.name("export")
    scope = _scope(text.value())
    text.expect(",")
    text.name("transactions")
    text.expect("[")
    return Document(scope, _json_rows(text))


def _json_rows(text: "_JsonText") -> Iterator[Row]:
    number = 0
    while text.peek() != "]":
        if number:
            text.expect(",")
        number += 1
        row = text.value()
        _check(f"row {number}", row, _MEMBERS)
        for name, parts in PARTS.items():
            if row[name] is not None:
                _check(f"the {name} of row {number}", row[name], dict.fromkeys(parts, str))
        yield {name: cell or None for name, cell in cells(row).items()}
    text.expect("]")
    text.expect("}")
    if text.peek():
        raise UnreadableError("unexpected data after the end of the export")


def _check(what: str, found: Any, members: Mapping[str, type]) -> None:
    """Raise `UnreadableError` unless an object has exactly these members, each of its type or null."""
    if not isinstance(found, dict) or set(found) != set(members):
        raise UnreadableError(f"{what} has missing or unexpected members")
    for name, value in found.items():
        if value is not None and type(value) is not members[name]:
            raise UnreadableError(f"the member {name} of {what} has the wrong type")


class _JsonText:
    """A reader of JSON text that decodes one value at a time."""

    def __init__(self, handle: TextIO) -> None:
        self._handle = handle
        self._held = ""
        self._at = 0

    def peek(self) -> str:
        """Return the next character that is not white space; empty at the end."""
        while True:
            while self._at < len(self._held) and self._held[self._at] in _SPACE:
                self._at += 1
            if self._at < len(self._held) or not self._read():
                return self._held[self._at : self._at + 1]

    def expect(self, character: str) -> None:
        """Skip the next character that is not white space. Raises `UnreadableError` unless it is the expected one."""
        if self.peek() != character:
            raise UnreadableError(f"the file is cut or damaged where {character} should be")
        self._at += 1

    def name(self, expected: str) -> None:
        """Skip the name of a member and its colon. Raises `UnreadableError` unless the name is the expected one."""
        if self.value() != expected:
            raise UnreadableError(f"expected the member {expected}, found something else")
        self.expect(":")

    def value(self) -> Any:
        """Return the next value, such as a string or an object.

        Raises `UnreadableError` if it is malformed or incomplete.
        """
        self.peek()
        while True:
            try:
                found, self._at = _DECODER.raw_decode(self._held, self._at)
            except (json.JSONDecodeError, RecursionError):
                if not self._read():
                    raise UnreadableError("the file is cut or damaged") from None
            else:
                return found

    def _read(self) -> bool:
        more = self._handle.read(_CHUNK)
        self._held, self._at = self._held[self._at :] + more, 0
        return bool(more)
