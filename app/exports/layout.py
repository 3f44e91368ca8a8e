"""The layout of an exported file, shared by its writer and the offline verifier.

Both formats state the scope before the first row. A CSV file stays plain CSV with one header line. There, the scope is
the name of the last column, and the cells of this column are empty.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from app.api.error_bodies import Violation
from app.core.text import EMOJI_FORM, HIDDEN, HIDDEN_BEYOND_PATTERNS
from app.transactions.models import PaidRequest, Transaction

SCOPE_COLUMN = "agent-vault-export "
"""Prefix of the name of a CSV file's last column. The scope follows as JSON."""

CHAIN_FIELDS = ("recipient_address", "instruction_index", "inner_index")
"""Fields that only a row of a file has, not a transaction of the API: the paid address, and the row's position in the
on-chain transaction.

`tx_id` is derived from the transaction's message, the two indexes and the row's type. Both indexes are empty in a row
that never had a signature.
"""
PARTS: Mapping[str, Sequence[str]] = {"violation": ("rule", "limit", "attempted"), "paid_request": ("protocol",)}
"""Fields of the objects in a row, by the object's name. In a CSV file, each of these fields is a column."""
LEFT_OUT: Mapping[str, Any] = {
    **dict.fromkeys(("x402", "refusals"), True),
    "violation": Violation.model_fields.keys() - PARTS["violation"],
    "paid_request": PaidRequest.model_fields.keys() - PARTS["paid_request"],
}
"""Transaction fields left out of files: claims of the service, not verifiable against the chain."""
JSON_FIELDS = (*(name for name in Transaction.model_fields if LEFT_OUT.get(name) is not True), *CHAIN_FIELDS)
COLUMNS = tuple(
    column
    for name in JSON_FIELDS
    for column in ([f"{name}_{part}" for part in PARTS[name]] if name in PARTS else [name])
)
"""Columns of a CSV file, followed by the column of the scope."""

_FORMULA = "-=+@\t\r\n＝＋－＠"  # noqa: RUF001 - full-width characters
"""Characters that make a spreadsheet treat a cell as a formula, also behind blanks and invisible characters."""
# Lazy, because a greedy pattern would read a run of line breaks to its end again after each line break.
_UNSEEN = rf"[\s{HIDDEN}{HIDDEN_BEYOND_PATTERNS}{EMOJI_FORM}]*?"
_GUARD = "'"
# Where the list separator is a semicolon or a tab, a spreadsheet ignores the quotes around a comma-separated cell and
# starts a new cell after each separator and line break, before any quotes of that cell. An apostrophe that the original
# cell already had in such a place gets another one in front of it, so that `restore` removes only characters that
# `neutralise` added.
_IS_FORMULA = re.compile(f"{_UNSEEN}[{_FORMULA}]")
_FIRST = re.compile(f"{_GUARD}|{_UNSEEN}[{_FORMULA}]")
_BEGINS = re.compile(rf"([;\t\r\n])(?={_GUARD}|{_UNSEEN}[{_FORMULA}\"])")
_GUARDED = re.compile(rf"([;\t\r\n]){_GUARD}(?={_GUARD}|{_UNSEEN}[{_FORMULA}\"])")


class Scope(BaseModel):
    """The claimed content of a file: the transactions of one wallet, or of all wallets, in a range of `timestamp`.

    `from` is inclusive and `to` exclusive; null means an open end. The file has all transactions of the slots before
    `slot`, those transactions of `slot` itself that the service had read, and none of later slots. `vault` is the
    wallet's address and `version` the version of the layout.
    """

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True, validate_by_name=True, serialize_by_alias=True)

    version: Literal[2] = 2
    export_id: str
    org: str
    program_id: str
    wallet_id: str | None
    vault: str | None
    from_: Annotated[str | None, Field(alias="from")]
    to: str | None
    slot: Annotated[int, Field(ge=0)]
    generated_at: str
    rows: Annotated[int, Field(ge=0)]


def cells(row: Mapping[str, Any]) -> dict[str, str]:
    """Return a JSON row as texts by CSV column, not yet neutralised. Null becomes an empty text."""
    inner = {f"{name}_{part}": (row[name] or {}).get(part) for name, parts in PARTS.items() for part in parts}
    flat = {**row, **inner}
    return {name: _text(flat[name]) for name in COLUMNS}


def _text(value: Any) -> str:
    # Checked first, because most values are texts.
    if isinstance(value, str):
        return value
    if value is None:
        return ""
    return ("true" if value else "false") if isinstance(value, bool) else str(value)


def neutralise(cell: str) -> str:
    """Return a cell that no spreadsheet executes. An apostrophe is put before text that looks like a formula."""
    guard = _GUARD if _FIRST.match(cell) else ""
    # Few cells have a separator, and this search takes a tenth of the time of the pattern.
    if ";" in cell or "\t" in cell or "\r" in cell or "\n" in cell:
        cell = _BEGINS.sub(rf"\1{_GUARD}", cell)
    return guard + cell


def restore(cell: str) -> str:
    """Return the original cell of a cell returned by `neutralise`."""
    guarded = cell[:1] == _GUARD and _FIRST.match(cell, 1) is not None
    return _GUARDED.sub(r"\1", cell[guarded:])


def is_formula(cell: str) -> bool:
    """Return True if a spreadsheet would treat a cell as a formula. In a genuine export, no cell is a formula."""
    return _IS_FORMULA.match(cell) is not None
