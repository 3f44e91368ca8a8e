"""Escrows: terms and outcomes from the chain; the texts behind their hashes from the service."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import cache
from typing import Any

from sqlalchemy import BigInteger, Connection, Row, Select, and_, bindparam, delete, or_, select, update

from app.chain.escrow_instructions import output_commitment
from app.store.columns import upsert
from app.store.paging import Listing, RecordPage, fetch_page, listing, sought
from app.store.read_tables import escrows as table
from app.store.state_tables import attempts
from app.store.state_tables import escrow_details as details

PENDING, LOCKED, DISPUTED = "pending", "locked", "disputed"
RELEASED, REFUNDED, SETTLED = "released", "refunded", "settled"
OPEN = (LOCKED, DISPUTED)
"""Statuses in which the escrow holds money; `pending`: sent, but not seen on the chain; `settled`: it was split."""

UNDECIDED_AFTER = 30 * 24 * 60 * 60
"""Seconds after which a dispute that was not decided is refunded."""


@dataclass(frozen=True, slots=True)
class EscrowRecord:
    """An escrow. Amounts are micro-USDC, times Unix seconds, `created_at` milliseconds; hashes are hex.

    `wallet_id` pays from `vault` to `receiver`, which is the vault of `to_wallet` or an address outside.
    `released` and `refunded` are null until it is settled. The texts come from the service's clients and are null
    where they are not known, or not those whose hashes are on the chain.
    """

    escrow_id: str
    org: str
    address: str
    wallet_id: str
    vault: str
    receiver: str
    to_wallet: str | None
    payer: str
    policy: str
    amount: int
    task_hash: str
    output_commitment: str | None
    proof_kinds: int
    counter: int
    status: str
    deadline: int
    created_at: int
    due_at: int | None = None
    tx_id: str | None = None
    signature: str | None = None
    disputed_at: int | None = None
    disputed_by: str | None = None
    reason_hash: str | None = None
    evidence_hash: str | None = None
    dispute_signature: str | None = None
    released: int | None = None
    refunded: int | None = None
    output_hash: str | None = None
    proof_kind: int | None = None
    settled_at: int | None = None
    settlement_signature: str | None = None
    task_description: str | None = None
    expected_output: str | None = None
    output_url: str | None = None
    dispute_reason: str | None = None
    disputed_for: str | None = None

    @property
    def to(self) -> str:
        """The receiving wallet's id, or the receiving address."""
        return self.to_wallet or self.receiver


@dataclass(frozen=True, slots=True)
class EscrowFilter:
    """What a list of escrows is narrowed to; `wallet_id` pays or receives."""

    wallet_id: str | None = None
    status: str | None = None


@dataclass(frozen=True, slots=True)
class DueEscrow:
    """An escrow that is to be refunded; all are addresses but `escrow_id`."""

    escrow_id: str
    org: str
    address: str
    vault: str
    receiver: str
    payer: str


def escrow(connection: Connection, org: str, escrow_id: str) -> EscrowRecord | None:
    """Return the organisation's escrow with this id."""
    return _one(connection, _BY_ID, org, escrow_id)


def escrow_of_transaction(connection: Connection, org: str, tx_id: str) -> EscrowRecord | None:
    """Return the escrow that this transaction locked, or will lock."""
    return _one(connection, _BY_TRANSACTION, org, tx_id)


def escrows(
    connection: Connection,
    org: str,
    narrowed: EscrowFilter | None = None,
    *,
    limit: int = 20,
    cursor: str | None = None,
) -> RecordPage[EscrowRecord]:
    """Return the organisation's escrows, newest first. Raises `InvalidCursorError`."""
    wanted = narrowed or EscrowFilter()
    given = frozenset(name for name in ("wallet_id", "status") if getattr(wanted, name) is not None)
    chosen = _listing(given)
    parameters = {"org": org, "wallet_id": wanted.wallet_id, "status": wanted.status}
    rows, more, following = fetch_page(connection, chosen, parameters, limit=limit, cursor=cursor)
    return RecordPage([_record(row) for row in rows], more, following)


def due(connection: Connection, now: int) -> list[DueEscrow]:
    """Return all organisations' escrows that are to be refunded at the Unix second `now`, the longest due first.

    These are locked ones whose deadline has come, and disputed ones that were not decided in time.
    """
    return [DueEscrow(**row._mapping) for row in connection.execute(_DUE, {"now": now})]  # noqa: SLF001


def insert_pending_escrow(connection: Connection, new: EscrowRecord) -> None:
    """Add an escrow in the transaction that stores the attempt to make it; what the chain says of one stays."""
    vanished = (table.c.escrow_id == new.escrow_id, table.c.status == PENDING)
    connection.execute(delete(table).where(*vanished))
    upsert(connection, table, {name: getattr(new, name) for name in _COLUMNS}, keys=["escrow_id"], replace=False)


def delete_pending_escrow(connection: Connection, tx_id: str) -> None:
    """Forget an escrow whose making failed."""
    connection.execute(delete(table).where(table.c.tx_id == tx_id, table.c.status == PENDING))


def reset_escrows(connection: Connection) -> None:
    """Forget what the chain says of escrows; those whose making is pending stay, as such."""
    pending = select(attempts.c.tx_id).where(attempts.c.status == PENDING)
    connection.execute(delete(table).where(or_(table.c.tx_id.is_(None), table.c.tx_id.not_in(pending))))
    connection.execute(update(table).values(_AS_PENDING))


def remember_task(connection: Connection, escrow_id: str, description: str, expected_output: str | None) -> None:
    """Keep the text of an escrow's task, and the hash that its output must have."""
    _remember(connection, escrow_id, {"task_description": description, "expected_output": expected_output})


def remember_output(connection: Connection, escrow_id: str, output_hash: str, url: str) -> None:
    """Keep where the output with this hash is."""
    _remember(connection, escrow_id, {"output_hash": output_hash, "output_url": url})


def remember_dispute(connection: Connection, escrow_id: str, reason: str, wallet_id: str) -> None:
    """Keep the text of a dispute's reason, and for which wallet it is raised."""
    _remember(connection, escrow_id, {"dispute_reason": reason, "disputed_by": wallet_id})


def _remember(connection: Connection, escrow_id: str, values: Mapping[str, Any]) -> None:
    upsert(connection, details, {"escrow_id": escrow_id, **values}, keys=["escrow_id"])


def _query(*, sought_by_org: bool = True) -> Select[Any]:
    texts = (
        details.c.task_description,
        details.c.expected_output,
        details.c.output_url,
        details.c.output_hash.label("output_of"),
        details.c.dispute_reason,
        details.c.disputed_by.label("disputed_for"),
    )
    return (
        select(table, *texts)
        .outerjoin(details, details.c.escrow_id == table.c.escrow_id)
        .where(sought(table.c.org, there=sought_by_org) == bindparam("org"))
    )


@cache
def _listing(given: frozenset[str]) -> Listing:
    """Return the list for the members of the filter that are given."""
    of_wallet = "wallet_id" in given
    query = _query(sought_by_org=not of_wallet)
    if "status" in given:
        query = query.where(table.c.status == bindparam("status"))
    either = _WALLETS if of_wallet else ()
    return listing(query, time=table.c.created_at, key=table.c.escrow_id, either=either)


# Built once: to build a statement takes longer than to execute it.
_ESCROWS = _query()
_BY_ID = _ESCROWS.where(table.c.escrow_id == bindparam("key"))
_BY_TRANSACTION = _ESCROWS.where(table.c.tx_id == bindparam("key"))
_DUE = (
    select(*(table.c[field.name] for field in fields(DueEscrow)))
    .where(table.c.due_at <= bindparam("now", type_=BigInteger))
    .order_by(table.c.due_at, table.c.escrow_id)
)
_COLUMNS = [column.name for column in table.columns]
# An escrow is found by its receiver only where that is another wallet than the one that pays: so it is found once.
_WALLETS = (
    table.c.wallet_id == bindparam("wallet_id"),
    and_(table.c.to_wallet == bindparam("wallet_id"), table.c.to_wallet != table.c.wallet_id),
)
FROM_LATER_EVENTS = (
    *("due_at", "disputed_at", "disputed_by", "reason_hash", "evidence_hash", "dispute_signature", "released"),
    *("refunded", "output_hash", "proof_kind", "settled_at", "settlement_signature"),
)
_AS_PENDING = {"status": PENDING, **dict.fromkeys(FROM_LATER_EVENTS)}


def _one(connection: Connection, query: Select[Any], org: str, key: str) -> EscrowRecord | None:
    row = connection.execute(query, {"org": org, "key": key}).one_or_none()
    return None if row is None else _record(row)


def _record(row: Row[Any]) -> EscrowRecord:
    values = dict(row._mapping)  # noqa: SLF001
    if values.pop("output_of") != row.output_hash:
        values["output_url"] = None
    if not _is_hash(row.task_hash, row.task_description):
        values["task_description"] = None
    if row.expected_output is None or commitment_to(row.expected_output) != row.output_commitment:
        values["expected_output"] = None
    if not _is_hash(row.reason_hash, row.dispute_reason):
        values["dispute_reason"] = values["disputed_for"] = None
    return EscrowRecord(**values)


def commitment_to(expected_output: str) -> str:
    """Return what the chain holds of the hash that an output must have, both in hex."""
    return output_commitment(bytes.fromhex(expected_output)).hex()


def _is_hash(digest: str | None, text: str | None) -> bool:
    return text is not None and hashlib.sha256(text.encode()).hexdigest() == digest
