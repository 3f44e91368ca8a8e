"""What an exported file looks like: its writer and the offline verifier share it.

Either form names the scope, what the file claims to hold, before the first row. A CSV file stays plain CSV with one
header line: the scope is the name of its last column, whose cells are empty.
"""

import re
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from app.api.fields import Violation
from app.transactions.models import Transaction

SCOPE_COLUMN = "agent-vault-export "
"""With this, and then the scope as JSON, begins the name of a CSV file's last column."""

CHAIN_FIELDS = ("recipient_address", "instruction_index", "inner_index")
"""What a row has beside the fields of the transaction: who was paid, and where in the chain's transaction it stands.

The indexes are those of which `tx_id` is made; both are empty for a row that never had a signature.
"""
VIOLATION_FIELDS = tuple(Violation.model_fields)
"""What a row says of the rule that refused it."""
JSON_FIELDS = (*Transaction.model_fields, *CHAIN_FIELDS)
"""Names of a row's members in JSON."""
COLUMNS = tuple(
    column
    for name in JSON_FIELDS
    for column in ([f"violation_{part}" for part in VIOLATION_FIELDS] if name == "violation" else [name])
)
"""Names of the columns in CSV, where a violation takes three."""

_FORMULA = "-=+@\t\r\n＝＋－＠"  # noqa: RUF001 - those of full width
"""With what begins what a spreadsheet takes for a formula, also in full width or after a control character."""
_GUARD = "'"
# Where the list separator is a semicolon or a tab, a spreadsheet does not heed the quotes of a cell that commas
# enclose: there begins a cell after each separator and line break, and before that cell's own quotes. The guard itself
# is guarded, too, so that what is taken off on reading is only what was put on.
_FIRST = frozenset(_FORMULA + _GUARD)
_BEGINS = re.compile(rf"([;\t\r\n])(?=[{_FORMULA}{_GUARD}\"])")
_GUARDED = re.compile(rf"([;\t\r\n]){_GUARD}(?=[{_FORMULA}{_GUARD}\"])")


class Scope(BaseModel):
    """What a file claims to hold: the transactions of a wallet, or of all, whose `timestamp` lies in a range.

    `from` is inclusive and `to` exclusive; null is open. Every transaction of slots before `slot` is in it,
    of `slot` itself those that had landed by then, and none of later slots. `vault` is the wallet's address, `version`
    that of the layout.
    """

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True, validate_by_name=True, serialize_by_alias=True)

    version: Literal[1] = 1
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


def neutralise(cell: str) -> str:
    """Return a cell that no spreadsheet runs: what looks like a formula gets an apostrophe before it."""
    guard = _GUARD if cell[:1] in _FIRST else ""
    # Hardly any cell has a separator; to see that takes a tenth of the time of the search for what follows one.
    if ";" in cell or "\t" in cell or "\r" in cell or "\n" in cell:
        cell = _BEGINS.sub(rf"\1{_GUARD}", cell)
    return guard + cell


def restore(cell: str) -> str:
    """Return what `neutralise` was given."""
    guarded = cell[:1] == _GUARD and cell[1:2] in _FIRST
    return _GUARDED.sub(r"\1", cell[guarded:])


def is_formula(cell: str) -> bool:
    """Whether a spreadsheet would take a cell for a formula; none of an export is one."""
    return cell.startswith(tuple(_FORMULA))
