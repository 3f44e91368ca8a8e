"""What the service tried to do on the chain: stored before it is sent, settled when its outcome is known.

Attempts that move money also show in the list of transactions, from the moment they are stored.
"""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, Literal

from sqlalchemy import Connection, Select, bindparam, func, insert, select, update

from app.store.columns import columns_of, upsert
from app.store.prepared import execute
from app.store.read_tables import transactions, wallets
from app.store.state_tables import attempts as table
from app.store.transactions import ROW_TYPES

Status = Literal["pending", "confirmed", "blocked", "failed"]

# Built once: to build a statement takes longer than to execute it.
_INSERT = insert(table)
_BY_ID = select(table).where(table.c.tx_id == bindparam("key"))


@dataclass(frozen=True, slots=True)
class Attempt:
    """One attempt. `recipient` is as the client gave it; `raw` is the signed transaction; `amount` is micro-USDC."""

    tx_id: str
    org: str
    type: str
    status: str
    created_at: int
    wallet_id: str | None = None
    recipient: str | None = None
    recipient_address: str | None = None
    amount: int = 0
    policy_id: str | None = None
    policy_triggered: bool = False
    memo: str | None = None
    reference: bytes | None = None
    signature: str | None = None
    raw: bytes | None = None
    last_valid_block_height: int | None = None
    attestation_hash: str | None = None
    violation: dict[str, Any] | None = None
    error: str | None = None
    slot: int | None = None
    settled_at: int | None = None


def insert_attempt(connection: Connection, attempt: Attempt) -> None:
    """Store an attempt: a pending one before it is sent, or one that was blocked."""
    execute(connection, _INSERT, columns_of(attempt))
    if attempt.type not in ROW_TYPES or attempt.wallet_id is None:
        return
    put_row(connection, row_of(attempt))
    if attempt.status == "blocked":
        blocked = update(wallets).where(wallets.c.wallet_id == attempt.wallet_id)
        connection.execute(blocked.values(blocked_at=attempt.created_at))


def attempt(connection: Connection, tx_id: str) -> Attempt | None:
    """Return the attempt with this id."""
    return _one(connection, _BY_ID, tx_id)


def pending_attempts(connection: Connection, *, created_before: int | None = None) -> list[Attempt]:
    """Return the attempts whose outcome is unknown, oldest first."""
    query = select(table).where(table.c.status == "pending").order_by(table.c.created_at)
    if created_before is not None:
        query = query.where(table.c.created_at < created_before)
    return [Attempt(**row._mapping) for row in connection.execute(query)]  # noqa: SLF001


def pending_changes(
    connection: Connection, org: str, types: Collection[str], wallet_id: str | None = None
) -> list[Attempt]:
    """Return the organisation's attempts of these types, of one wallet if given, whose outcome is unknown."""
    query = select(table).where(table.c.status == "pending", table.c.org == org, table.c.type.in_(types))
    if wallet_id is not None:
        query = query.where(table.c.wallet_id == wallet_id)
    return [Attempt(**row._mapping) for row in connection.execute(query.order_by(table.c.created_at))]  # noqa: SLF001


def settle_attempt(
    connection: Connection,
    tx_id: str,
    status: Status,
    *,
    now: int,
    slot: int | None = None,
    error: str | None = None,
) -> bool:
    """Give a pending attempt its outcome; false, and nothing changed, when it has one.

    A row that the chain has confirmed stays confirmed.
    """
    values = {"status": status, "slot": slot, "error": error, "settled_at": now}
    settled = update(table).where(table.c.tx_id == tx_id, table.c.status == "pending").values(values)
    if connection.execute(settled).rowcount == 0:
        return False
    values.pop("settled_at")
    row = update(transactions).where(transactions.c.tx_id == tx_id, transactions.c.status == "pending")
    connection.execute(row.values(values))
    return True


def last_blocked(connection: Connection, wallet_id: str) -> int | None:
    """Return when the wallet's last refused payment or escrow was tried."""
    mine = (table.c.wallet_id == wallet_id, table.c.status == "blocked")
    moment: int | None = connection.scalar(select(func.max(table.c.created_at)).where(*mine))
    return moment


def row_of(attempt: Attempt) -> dict[str, Any]:
    """Return the row of the transaction list that shows an attempt."""
    return {
        "tx_id": attempt.tx_id,
        "org": attempt.org,
        "wallet_id": attempt.wallet_id,
        "type": attempt.type,
        "recipient": attempt.recipient,
        "recipient_address": attempt.recipient_address,
        "amount": attempt.amount,
        "status": attempt.status,
        "signature": attempt.signature,
        "slot": attempt.slot,
        "policy_id": attempt.policy_id,
        "policy_triggered": attempt.policy_triggered,
        "memo": attempt.memo,
        "attestation_hash": attempt.attestation_hash,
        "violation": attempt.violation,
        "error": attempt.error,
        "timestamp": attempt.created_at,
    }


def put_row(connection: Connection, row: dict[str, Any]) -> None:
    """Insert a row of the transaction list, or replace the one with its id."""
    upsert(connection, transactions, row, keys=["tx_id"])


def _one(connection: Connection, query: Select[Any], key: str) -> Attempt | None:
    row = connection.execute(query, {"key": key}).one_or_none()
    return None if row is None else Attempt(**row._mapping)  # noqa: SLF001
