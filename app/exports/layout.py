"""What an exported file looks like: its writer and the offline verifier share it.

Either form names the scope, what the file claims to hold, before the first row. A CSV file stays plain CSV with one
header line: the scope is the name of its last column, whose cells are empty.
"""

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from app.models.payments import Transaction

SCOPE_COLUMN = "agent-vault-export "
"""With this, and then the scope as JSON, begins the name of a CSV file's last column."""

CHAIN_FIELDS = ("recipient_address", "instruction_index", "inner_index")
"""What a row has beside the fields of the transaction: who was paid, and where in the chain's transaction it stands.

The indexes are those of which `tx_id` is made; both are empty for a row that never had a signature.
"""
_VIOLATION = ("rule", "limit", "attempted")
JSON_FIELDS = (*Transaction.model_fields, *CHAIN_FIELDS)
"""Names of a row's members in JSON."""
COLUMNS = tuple(
    column
    for name in JSON_FIELDS
    for column in ([f"violation_{part}" for part in _VIOLATION] if name == "violation" else [name])
)
"""Names of the columns in CSV, where a violation takes three."""

# What a spreadsheet takes for a formula, also in full width or after a control character; and the quote itself, so
# that what is taken off on reading is only what was put on.
_DANGEROUS = frozenset("=+-@\t\r\n＝＋－＠'")  # noqa: RUF001 - those of full width
_GUARD = "'"


class Scope(BaseModel):
    """What a file claims to hold: the transactions of a wallet, or of all, whose `timestamp` lies in a range.

    `from` is inclusive and `to` exclusive; null is open. Up to `slot` every transaction of the chain is in it.
    `vault` is the wallet's address, `version` that of the layout.
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
    slot: int
    generated_at: str
    rows: int


def neutralise(cell: str) -> str:
    """Return a cell that no spreadsheet runs: what looks like a formula gets an apostrophe before it."""
    return _GUARD + cell if cell[:1] in _DANGEROUS else cell


def restore(cell: str) -> str:
    """Return what `neutralise` was given."""
    return cell[1:] if cell[:1] == _GUARD and cell[1:2] in _DANGEROUS else cell
