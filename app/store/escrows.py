"""Escrows. Their terms and outcomes come from the chain; the texts behind the hashes come from requests."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import cache
from typing import Any

from sqlalchemy import (
    BigInteger,
    ColumnElement,
    Connection,
    Integer,
    Select,
    and_,
    bindparam,
    delete,
    func,
    or_,
    select,
    update,
)

from app.chain.escrow_instructions import output_commitment
from app.core.pages import RecordPage
from app.database.columns import upsert
from app.database.paging import Listing, fetch_page, listing, unindexed
from app.database.records import fetch_all, fetch_one
from app.store.attempts import table as attempts
from app.store.read_tables import EscrowRow
from app.store.read_tables import escrows as table
from app.store.state_tables import escrow_details as details

PENDING, LOCKED, DISPUTED = "pending", "locked", "disputed"
RELEASED, REFUNDED, SETTLED = "released", "refunded", "settled"
OPEN = (LOCKED, DISPUTED)
"""Statuses of an escrow that holds its full amount.

An escrow is `pending` until its creation is seen on the chain, and `settled` if the arbiter split its amount.
"""

UNDECIDED_AFTER = 30 * 24 * 60 * 60
"""Seconds after the start of a dispute until the escrow can be refunded without a decision of the arbiter."""
DECIDED_WITHIN = 24 * 60 * 60
"""Seconds within which the arbiter should decide a dispute."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EscrowRecord(EscrowRow):
    """An escrow with the texts behind its hashes, which come from the service's clients.

    `wallet_id` pays from `vault` to `receiver`, the vault of `to_wallet` or an outside address. `released` and
    `refunded` are null until settlement. A text is null if it is unknown or does not match its hash on the chain.
    """

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
    """Narrows a list of escrows; `wallet_id` pays or receives."""

    wallet_id: str | None = None
    status: str | None = None


@dataclass(frozen=True, slots=True)
class DueEscrow:
    """An escrow that must be refunded or, if `settled`, still holds a share to pay out.

    `org` and all later fields are addresses.
    """

    escrow_id: str
    status: str
    org: str
    address: str
    vault: str
    receiver: str
    payer: str


def escrow(connection: Connection, org: str, escrow_id: str) -> EscrowRecord | None:
    """Return the organisation's escrow with this id, or None."""
    return fetch_one(connection, _record, _BY_ID, {"org": org, "key": escrow_id})


def escrow_of_transaction(connection: Connection, org: str, tx_id: str) -> EscrowRecord | None:
    """Return the escrow that this transaction locked or will lock, or None."""
    return fetch_one(connection, _record, _BY_TRANSACTION, {"org": org, "key": tx_id})


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
    chosen = _listing(of_wallet=wanted.wallet_id is not None, with_status=wanted.status is not None)
    parameters = {"org": org, "wallet_id": wanted.wallet_id, "status": wanted.status}
    return fetch_page(connection, _record, chosen, parameters, limit=limit, cursor=cursor)


def receives(connection: Connection, wallet_id: str) -> bool:
    """Return True if an open escrow pays this wallet."""
    return connection.scalar(_INCOMING, {"wallet_id": wallet_id}) is not None


def disputes(connection: Connection, org: str, *, limit: int) -> list[EscrowRecord]:
    """Return the organisation's disputed escrows, longest waiting first."""
    return fetch_all(connection, _record, _DISPUTES, {"org": org, "most": limit})


def count_disputes(connection: Connection, org: str, most: int) -> int:
    """Return the number of the organisation's disputed escrows, at most `most`."""
    return connection.scalar(_DISPUTED, {"org": org, "most": most}) or 0


def due(connection: Connection, now: int) -> list[DueEscrow]:
    """Return all organisations' escrows to refund or collect at the Unix second `now`, longest due first.

    These escrows are locked past their deadline, disputed without a decision in time, or split with a share still owed.
    """
    return fetch_all(connection, DueEscrow, _DUE, {"now": now})


def insert_pending_escrow(connection: Connection, new: EscrowRecord) -> None:
    """Add an escrow in the transaction that stores the attempt to create it, unless the chain already has it."""
    connection.execute(delete(table).where(table.c.escrow_id == new.escrow_id, table.c.status == PENDING))
    upsert(connection, table, {name: getattr(new, name) for name in _COLUMNS}, keys=["escrow_id"], replace=False)


def delete_pending_escrow(connection: Connection, tx_id: str) -> None:
    """Delete the pending escrow of a creation that has failed."""
    connection.execute(delete(table).where(table.c.tx_id == tx_id, table.c.status == PENDING))


def reset_escrows(connection: Connection, mine: ColumnElement[bool]) -> None:
    """Undo the projection of the escrows matched by `mine`.

    Rows with a pending creation become pending again; all other rows are deleted.
    """
    pending = select(attempts.c.tx_id).where(attempts.c.status == PENDING)
    connection.execute(delete(table).where(mine, or_(table.c.tx_id.is_(None), table.c.tx_id.not_in(pending))))
    connection.execute(update(table).where(mine).values(_AS_PENDING))


def remember_task(connection: Connection, escrow_id: str, description: str, expected_output: str | None) -> None:
    """Store the text of an escrow's task, and the required hash of its output."""
    _remember(connection, escrow_id, {"task_description": description, "expected_output": expected_output})


def remember_output(connection: Connection, escrow_id: str, output_hash: str, url: str) -> None:
    """Store the URL of the output with this hash."""
    _remember(connection, escrow_id, {"output_hash": output_hash, "output_url": url})


def remember_dispute(connection: Connection, escrow_id: str, reason: str, wallet_id: str) -> None:
    """Store the text of a dispute's reason, and the wallet that the dispute is raised for."""
    _remember(connection, escrow_id, {"dispute_reason": reason, "disputed_by": wallet_id})


def _remember(connection: Connection, escrow_id: str, values: Mapping[str, Any]) -> None:
    upsert(connection, details, {"escrow_id": escrow_id, **values}, keys=["escrow_id"])


def _query(org: ColumnElement[Any]) -> Select[Any]:
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
        .where(org == bindparam("org"))
    )


@cache
def _listing(*, of_wallet: bool, with_status: bool) -> Listing:
    query = _query(unindexed(table.c.org) if of_wallet else table.c.org)
    if with_status:
        query = query.where(table.c.status == bindparam("status"))
    either = _WALLETS if of_wallet else ()
    return listing(query, time=table.c.created_at, key=table.c.escrow_id, either=either)


# Built once: building a statement takes longer than executing it.
_ESCROWS = _query(table.c.org)
_BY_ID = _ESCROWS.where(table.c.escrow_id == bindparam("key"))
_BY_TRANSACTION = _ESCROWS.where(table.c.tx_id == bindparam("key"))
_DISPUTES = (
    _ESCROWS.where(table.c.status == DISPUTED)
    .order_by(table.c.disputed_at, table.c.escrow_id)
    .limit(bindparam("most", type_=Integer))
)
_SOME = select(table.c.escrow_id).where(table.c.org == bindparam("org"), table.c.status == DISPUTED)
_DISPUTED = select(func.count()).select_from(_SOME.limit(bindparam("most", type_=Integer)).subquery())
_INCOMING = (
    select(table.c.escrow_id).where(table.c.to_wallet == bindparam("wallet_id"), table.c.status.in_(OPEN)).limit(1)
)
_DUE = (
    select(*(table.c[field.name] for field in fields(DueEscrow)))
    .where(table.c.due_at <= bindparam("now", type_=BigInteger))
    .order_by(table.c.due_at, table.c.escrow_id)
)
_COLUMNS = [column.name for column in table.columns]
# Matches the receiver only if it is not the paying wallet, so that each escrow is found once.
_WALLETS = (
    table.c.wallet_id == bindparam("wallet_id"),
    and_(table.c.to_wallet == bindparam("wallet_id"), table.c.to_wallet != table.c.wallet_id),
)
FROM_LATER_EVENTS = (
    "due_at",
    *("disputed_at", "disputed_by", "reason_hash", "evidence_hash", "dispute_signature", "dispute_sequence"),
    *("released", "refunded", "surplus", "output_hash", "proof_kind", "settled_at", "settlement_signature"),
    *("settlement_sequence", "receiver_owed", "vault_owed"),
)
_AS_PENDING = {"status": PENDING, **dict.fromkeys(FROM_LATER_EVENTS)}


def _record(*, output_of: str | None, **values: Any) -> EscrowRecord:
    """Return an escrow without the texts that do not match their hashes on the chain."""
    if output_of != values["output_hash"]:
        values["output_url"] = None
    if not _is_hash(values["task_hash"], values["task_description"]):
        values["task_description"] = None
    expected = values["expected_output"]
    if expected is None or commitment_to(expected) != values["output_commitment"]:
        values["expected_output"] = None
    if not _is_hash(values["reason_hash"], values["dispute_reason"]):
        values["dispute_reason"] = values["disputed_for"] = None
    return EscrowRecord(**values)


def commitment_to(expected_output: str) -> str:
    """Return the on-chain commitment to the required hash of an output, both in hex."""
    return output_commitment(bytes.fromhex(expected_output)).hex()


def _is_hash(digest: str | None, text: str | None) -> bool:
    return text is not None and hashlib.sha256(text.encode()).hexdigest() == digest
