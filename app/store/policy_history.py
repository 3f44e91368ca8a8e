"""Past payments and refusals of wallets, for replaying them against other rules."""

from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, and_, func, or_, select

from app.core.transaction_types import REFUSED, SPENT
from app.database.records import fetch_all
from app.store.allowances import table as allowances
from app.store.read_tables import escrows
from app.store.read_tables import transactions as table


@dataclass(frozen=True, slots=True)
class PastPayment:
    """A wallet's payment, escrow or allowance: confirmed, or blocked by the policy at that time.

    `amount` is micro-USDC, `timestamp` Unix milliseconds. `attestation_hash` is set if the session key signed.
    `violation` describes the refusal. `allowance` is true for a granted allowance. `settled_at` (Unix seconds) is set
    once an escrow or an allowance has ended; `released` is then the amount that was paid out of it.
    """

    tx_id: str
    wallet_id: str
    type: str
    recipient: str | None
    recipient_address: str
    amount: int
    status: str
    policy_triggered: bool
    attestation_hash: str | None
    violation: dict[str, Any] | None
    timestamp: int
    refusals: int | None
    allowance: bool
    settled_at: int | None
    released: int | None


def past_payments(
    connection: Connection, wallet_id: str, *, charged_from: int, judged_from: int, limit: int
) -> list[PastPayment]:
    """Return a wallet's oldest payments since `charged_from` and refusals since `judged_from`, up to `limit`.

    Both are Unix milliseconds.
    """
    spent = and_(table.c.status == "confirmed", table.c.type.in_(SPENT))
    refused = and_(table.c.status == "blocked", table.c.type.in_(REFUSED), table.c.timestamp >= judged_from)
    columns = [table.c[name] for name in PastPayment.__dataclass_fields__ if name not in _OF_SETTLEMENT]
    query = (
        select(
            *columns,
            allowances.c.allowance_id.is_not(None).label("allowance"),
            func.coalesce(escrows.c.settled_at, allowances.c.settled_at).label("settled_at"),
            func.coalesce(escrows.c.released, allowances.c.spent).label("released"),
        )
        .outerjoin(escrows, escrows.c.tx_id == table.c.tx_id)
        .outerjoin(allowances, allowances.c.tx_id == table.c.tx_id)
        .where(table.c.wallet_id == wallet_id, table.c.timestamp >= charged_from, or_(spent, refused))
        .order_by(table.c.timestamp, table.c.tx_id)
        .limit(limit)
    )
    return fetch_all(connection, PastPayment, query)


_OF_SETTLEMENT = {"allowance", "settled_at", "released"}
