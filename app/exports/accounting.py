"""The layout of accounting files: one row for each movement of a vault's money, with debits and credits.

An accounting file is plain CSV. Its manifest, a JSON file of its own, states the scope and the hash of the CSV file.
The offline verifier needs both.
"""

from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, ConfigDict

from app.chain.rules import CATEGORIES
from app.core.transaction_types import DEBITS, FUNDING, WITHDRAWAL
from app.exports.layout import Scope

COLUMNS = (
    *("date", "time", "vault", "agent", "tags", "budget", "counterparty_name", "counterparty_address", "category"),
    *("memo", "debit", "credit", "fee", "currency", "status", "reference", "type", "vault_id", "signature"),
)
_CLAIMS = {"reference": "tx_id", "vault_id": "wallet_id", "signature": "tx_signature"}
"""The columns that the other export formats name differently, with those names. The columns in `_SAME` have the same
name in all formats.
"""
_SAME = ("memo", "type", "currency", "status")
_NO_FEE = "0.00"
"""The fee in every row is zero: the service charges none, and it pays the chain's fees in SOL."""


class AccountingManifest(BaseModel):
    """The manifest of an accounting file. `sha256` is the hash of the whole CSV file in hexadecimal."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)

    export: Scope
    sha256: str


def cells(row: Mapping[str, Any]) -> list[str]:
    """Return the cells of a confirmed transaction. They are not yet neutralised for spreadsheets.

    The row is that of a JSON file, together with the names and labels of the transaction.
    """
    out, moved = row["type"] in DEBITS, row["type"] in {FUNDING, WITHDRAWAL}
    category = CATEGORIES[int(row["category"])] if "category" in row else None
    payee = "Reserve" if moved else row.get("payee") if out else "Escrow or allowance"
    who = (*row["timestamp"].split("T"), row.get("vault"), row.get("agent"), row.get("tag"), row.get("budget"))
    whom = (payee, row["recipient_address"] if out else None, category, row["memo"])
    money = (row["amount"] if out else None, None if out else row["amount"], _NO_FEE, row["currency"], row["status"])
    reference = (row["tx_id"], row["type"], row["wallet_id"], row["tx_signature"])
    return [cell or "" for cell in (*who, *whom, *money, *reference)]


def claims(found: Mapping[str, str]) -> dict[str, str | None]:
    """Return the cells that the chain can prove, under the column names of the other export formats.

    An amount in the wrong column, or in both, counts as empty.
    """
    side, other = ("debit", "credit") if found["type"] in DEBITS else ("credit", "debit")
    proved = {_CLAIMS.get(name, name): found[name] or None for name in (*_CLAIMS, *_SAME)}
    proved |= {"timestamp": f"{found['date']}T{found['time']}", "amount": None if found[other] else found[side] or None}
    paid = found["counterparty_address"] or None
    return proved | (dict.fromkeys(("recipient", "recipient_address"), paid) if side == "debit" else {})
