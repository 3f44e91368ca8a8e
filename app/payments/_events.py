"""Feed events about payments and refusals, appended by the service. The projection appends on-chain events."""

from typing import Any

from sqlalchemy import Connection

from app.core.money import format_usdc
from app.store.attempts import Attempt
from app.store.feed import report_once


def append_pending(conn: Connection, attempt: Attempt) -> None:
    """Report that a payment is about to be sent."""
    fields = {
        "tx_signature": attempt.signature,
        "amount": format_usdc(attempt.amount),
        "recipient": attempt.recipient,
    }
    _append(conn, attempt, "transaction.pending", "sent", fields)


def append_blocked(conn: Connection, attempt: Attempt, approval_id: str | None) -> None:
    """Report that the policy refused a payment, an escrow or an allowance, and the approval requested for it."""
    assert attempt.violation is not None
    fields = {
        "attempted_amount": format_usdc(attempt.amount),
        "recipient": attempt.recipient,
        "violation": attempt.violation,
        "refusals": attempt.refusals,
    }
    if approval_id is not None:
        fields["approval_id"] = approval_id
    times = "" if attempt.refusals == 1 else f" ({attempt.refusals} times)"
    _append(conn, attempt, "transaction.blocked", f"refused by {attempt.violation['rule']}{times}", fields)


def _append(conn: Connection, attempt: Attempt, kind: str, outcome: str, fields: dict[str, Any]) -> None:
    says = f"{format_usdc(attempt.amount)} USDC to {attempt.recipient} {outcome}"
    shown = {"wallet_id": attempt.wallet_id, "tx_id": attempt.tx_id, **fields}
    report_once(conn, kind, attempt.org, attempt.created_at, attempt.tx_id, summary=says, **shown)
