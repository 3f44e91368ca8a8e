"""Attempts: transactions stored before they are sent or handed out, and blocked payments, with their outcomes.

Attempts at payments, escrows, allowances, and fundings and withdrawals of one wallet also appear in the list of
transactions as soon as they are stored.
"""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

from sqlalchemy import Connection, Index, Integer, UniqueConstraint, bindparam, func, insert, select, text, update

from app.core.actors import Actor
from app.core.transaction_types import ROW_OF, SPENT, TransactionStatus
from app.database.columns import U64, upsert_later
from app.database.record_tables import table_of
from app.database.records import columns_of, fetch_all, fetch_one
from app.database.statements import execute_later, scalar
from app.store.read_tables import transactions, wallets
from app.store.spending import count, label_attempt


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """One attempt. `recipient` is as given by the client, `raw` the transaction, `amount` in micro-USDC.

    While the transaction awaits a signature, `raw` is unsigned and `signature` is None. `signature` is also None while
    a third party has the transaction to send, and in a blocked attempt. `actor` requested the attempt, and `subject` is
    the object of the request's entry in the audit log; payments have neither. `stopped_by` is the kind of the brake
    that was engaged while the attempt was pending; the transaction is then not resent. With a `nonce`, the attempt can
    land until the `nonce_account` is advanced. A blocked attempt stands for a number of `refusals`. Until the event
    about these refusals is sent, `ended_at` is None.
    """

    currency: ClassVar = "USDC"
    tx_id: str
    org: str
    wallet_id: str | None = None
    type: str
    status: str
    """The status: `awaiting_signature`, `pending`, `confirmed`, `blocked` or `failed`."""
    recipient: str | None = None
    """The recipient as given by the client: an address, a wallet or a domain."""
    recipient_address: str | None = None
    amount: Annotated[int, U64()] = 0
    policy_id: str | None = None
    policy_triggered: bool = False
    memo: str | None = None
    actor: Actor | None = None
    """Actor who requested the attempt, if the policy history or the audit log needs this information."""
    subject: str | None = None
    """Object of the request's entry in the audit log, if any."""
    reference: bytes | None = None
    signature: str | None = None
    """Signature of the transaction; null if the attempt is blocked, unsigned or sent by a third party."""
    message_hash: str | None = None
    """Hash of the signed message. The events of the transaction are stored with the same hash."""
    instruction_index: Annotated[int | None, Integer()] = None
    """Index of the instruction. The id of the attempt is derived from this instruction's event."""
    inner_index: Annotated[int | None, Integer()] = None
    """Index of the instruction's event among the inner instructions."""
    raw: bytes | None = None
    """Bytes of the transaction, stored before the transaction is signed or sent."""
    last_valid_block_height: int | None = None
    attestation_hash: str | None = None
    violation: dict[str, Any] | None = None
    error: str | None = None
    stopped_by: str | None = None
    """Kind of the brake that was engaged while the attempt was pending; the transaction is then not resent."""
    slot: int | None = None
    created_at: int
    ended_at: int | None = None
    nonce_account: str | None = None
    """Account with the nonce that replaces a blockhash."""
    nonce: str | None = None
    refusals: Annotated[int | None, Integer()] = None
    """Number of refusals that a blocked attempt stands for; null in attempts stored by older code."""

    @property
    def message(self) -> str:
        """The hash of the signed message, used to find its events. A blocked attempt has no hash; do not ask for it."""
        assert self.message_hash is not None
        return self.message_hash


_UNREPORTED = text("refusals IS NOT NULL AND ended_at IS NULL")
table = table_of(
    "attempts",
    Attempt,
    UniqueConstraint("signature"),
    UniqueConstraint("message_hash"),
    Index("attempts_by_status", "status", "created_at"),
    Index("attempts_unreported", "created_at", sqlite_where=_UNREPORTED, postgresql_where=_UNREPORTED),
    Index("attempts_by_wallet", "wallet_id", "created_at"),
    key=["tx_id"],
)
# Built once: building a statement takes longer than executing it.
_INSERT = insert(table)
_BY_ID = select(table).where(table.c.tx_id == bindparam("key"))
_BY_MESSAGES = select(table).where(table.c.message_hash.in_(bindparam("keys", expanding=True)))
_PENDING = select(table).where(table.c.status == "pending").order_by(table.c.created_at)
_STOPPED = select(table.c.stopped_by).where(table.c.tx_id == bindparam("key"))
SHARED_COLUMNS = [column.name for column in transactions.columns if column.name in table.columns]
"""Columns that a transaction row copies from its attempt. The row's `timestamp` is the attempt's `created_at`."""


def insert_attempt(connection: Connection, attempt: Attempt) -> None:
    """Store an attempt: a pending one before it is sent, one that awaits a signature, or a blocked one."""
    columns = columns_of(attempt)
    execute_later(connection, _INSERT, [columns], tuple(columns))
    row_type = ROW_OF.get(attempt.type)
    if row_type is None or attempt.wallet_id is None:
        return
    row = {name: getattr(attempt, name) for name in SHARED_COLUMNS}
    row |= {"type": row_type, "timestamp": attempt.created_at}
    upsert_later(connection, transactions, [row], keys=["tx_id"])
    if row_type in SPENT or attempt.status == "blocked":
        label_attempt(connection, row, (attempt.violation or {}).get("rule"))
    if attempt.status == "blocked":
        count(connection, "tx_id", [attempt.tx_id])
        _note_refusal(connection, attempt)


def add_refusal(connection: Connection, refused: Attempt) -> None:
    """Add one refusal to the count of the blocked attempt with the same id.

    The first refusal is stored as that attempt.
    """
    count(connection, "tx_id", [refused.tx_id], sign=-1)
    for rows in (table, transactions):
        more = update(rows).where(rows.c.tx_id == refused.tx_id).values(refusals=rows.c.refusals + 1)
        if connection.execute(more).rowcount == 0:
            insert_attempt(connection, refused)
            return
    count(connection, "tx_id", [refused.tx_id])
    _note_refusal(connection, refused)


def take_unreported(connection: Connection, before: int, *, most: int) -> list[Attempt]:
    """Return up to `most` attempts that count refusals and have no event yet, oldest first, and mark them as ended.

    Only attempts created before the Unix millisecond `before` are returned.
    """
    waiting = select(table).where(table.c.refusals.is_not(None), table.c.ended_at.is_(None))
    chosen = waiting.where(table.c.created_at < before).order_by(table.c.created_at).limit(most)
    found = fetch_all(connection, Attempt, chosen)
    ids = [one.tx_id for one in found]
    if ids:
        connection.execute(update(table).where(table.c.tx_id.in_(ids)).values(ended_at=before))
    return found


def _note_refusal(connection: Connection, refused: Attempt) -> None:
    blocked = update(wallets).where(wallets.c.wallet_id == refused.wallet_id)
    connection.execute(blocked.values(blocked_at=refused.created_at))


def attempt(connection: Connection, tx_id: str) -> Attempt | None:
    """Return the attempt with this id, or None."""
    return fetch_one(connection, Attempt, _BY_ID, {"key": tx_id})


def attempts_of(connection: Connection, messages: Collection[str]) -> list[Attempt]:
    """Return the attempts with one of these hashes of the signed message."""
    return fetch_all(connection, Attempt, _BY_MESSAGES, {"keys": list(messages)})


def pending_attempts(connection: Connection) -> list[Attempt]:
    """Return the attempts without a known outcome, oldest first."""
    return fetch_all(connection, Attempt, _PENDING, {})


def count_pending(connection: Connection) -> int:
    """Return the number of attempts without a known outcome."""
    return connection.execute(select(func.count()).where(table.c.status == "pending")).scalar_one()


def pending_changes(
    connection: Connection, org: str, types: Collection[str], wallet_id: str | None = None
) -> list[Attempt]:
    """Return the pending attempts of these types, of an organisation or of one of its wallets."""
    query = select(table).where(table.c.status == "pending", table.c.org == org, table.c.type.in_(types))
    if wallet_id is not None:
        query = query.where(table.c.wallet_id == wallet_id)
    return fetch_all(connection, Attempt, query.order_by(table.c.created_at))


def mark_braked(
    connection: Connection,
    org: str,
    kind: str,
    types: Collection[str],
    *,
    wallet_id: str | None = None,
    attested: bool = False,
) -> None:
    """Mark the pending attempts of these types as stopped by a brake of this kind.

    `wallet_id` limits the change to one wallet. `attested` limits it to attempts signed by a session authority.
    """
    query = update(table).where(table.c.status == "pending", table.c.org == org, table.c.type.in_(types))
    if wallet_id is not None:
        query = query.where(table.c.wallet_id == wallet_id)
    if attested:
        query = query.where(table.c.attestation_hash.is_not(None))
    connection.execute(query.values(stopped_by=kind))


def stopped_by(connection: Connection, tx_id: str) -> str | None:
    """Return the kind of the brake that stopped an attempt, or None."""
    found: str | None = scalar(connection, _STOPPED, {"key": tx_id})
    return found


def record_outcome(
    connection: Connection,
    tx_id: str,
    status: TransactionStatus,
    *,
    now: int,
    slot: int | None = None,
    error: str | None = None,
) -> bool:
    """Store the outcome of a pending attempt. If the attempt already has one, change nothing and return False.

    A transaction row that the chain has confirmed stays confirmed.
    """
    values = {"status": status, "slot": slot, "error": error, "ended_at": now}
    outcome = update(table).where(table.c.tx_id == tx_id, table.c.status == "pending").values(values)
    if connection.execute(outcome).rowcount == 0:
        return False
    values.pop("ended_at")
    row = update(transactions).where(transactions.c.tx_id == tx_id, transactions.c.status == "pending")
    connection.execute(row.values(values))
    return True


def last_blocked(connection: Connection, wallet_id: str) -> int | None:
    """Return the Unix millisecond of the wallet's latest refused expense, or None."""
    mine = (table.c.wallet_id == wallet_id, table.c.status == "blocked")
    moment: int | None = connection.scalar(select(func.max(table.c.created_at)).where(*mine))
    return moment
