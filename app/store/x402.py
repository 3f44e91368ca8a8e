"""Issued payments for resources, and the settlement paths that facilitators are known to accept."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Annotated

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    ColumnElement,
    Connection,
    Index,
    Integer,
    String,
    Table,
    and_,
    bindparam,
    case,
    or_,
    select,
    update,
)

from app.core.transaction_types import ALLOWANCE, ENFORCED, MPP_SCHEME, ProtocolName, SettlementPath
from app.database.columns import metadata, upsert
from app.database.record_tables import table_of
from app.database.records import columns_of, fetch_all, fetch_one
from app.store.allowances import OUTSTANDING, SETTLED
from app.store.allowances import table as allowances
from app.store.attempts import table as attempts


@dataclass(frozen=True, slots=True, kw_only=True)
class IssuedPayment:
    """A payment issued for a resource. Times are Unix milliseconds."""

    tx_id: str
    """Id of the payment's attempt."""
    org: str
    wallet_id: str
    url: str
    host: str
    """Host of the URL, for finding payments by host."""
    scheme: str
    network: str
    pay_to: str
    facilitator: str
    """Address that pays the fee and sends the payment."""
    version: Annotated[int, Integer()]
    lane: SettlementPath
    """The settlement path: `enforced` or `allowance`. For `allowance`, the attempt is the grant."""
    header: str
    """Value of the payment header. Every request with this payment sends the same value."""
    resource_status: Annotated[int | None, Integer()] = None
    """The resource's response status; null without a response."""
    fetched: bool
    """True if the service itself sends the header to the resource."""
    last_valid_block_height: int | None = None
    """Last valid block height of the delegate's transfer; null in the settlement path `enforced`."""
    signature: str | None = None
    """Signature of the delegate's transfer, once the transfer is known to have landed."""
    slot: int | None = None
    """Slot of the delegate's transfer."""
    created_at: int
    closed_at: int | None = None
    """Time when the payment's outcome was processed; null until then."""

    @property
    def protocol(self) -> ProtocolName:
        """The protocol of the resource."""
        return protocol_of(self.header)

    @property
    def received(self) -> bool:
        """True if the service got the resource in return."""
        return is_success(self.resource_status)


def is_success(status: int | None) -> bool:
    """Return True if the status of a resource's response means that it was delivered."""
    return status is not None and 200 <= status < 300


def protocol_of(header: str) -> ProtocolName:
    """Return the protocol of a payment header. Credentials of MPP begin with their authentication scheme."""
    return "mpp" if header.startswith(f"{MPP_SCHEME} ") else "x402"


payloads = table_of(
    "x402_payloads",
    IssuedPayment,
    Index("x402_payloads_open", "closed_at", "created_at"),
    # A payload has the creation time of its transaction, so that lists of transactions read these indexes in order.
    Index("x402_payloads_by_org", "org", "created_at", "tx_id"),
    Index("x402_payloads_by_host", "org", "host", "created_at", "tx_id"),
    Index("x402_payloads_by_wallet", "wallet_id", "created_at", "tx_id"),
    Index("x402_payloads_by_wallet_host", "wallet_id", "host", "created_at", "tx_id"),
    key=["tx_id"],
)

facilitators = Table(
    "x402_facilitators",
    metadata,
    Column("org", String, primary_key=True),
    Column("origin", String, primary_key=True, doc="the resource's origin; a dishonest shop affects only its own row"),
    Column("fee_payer", String, primary_key=True),
    Column("accepts", Boolean, nullable=False, doc="true if the facilitator accepts payments by the program"),
    Column("checked_at", BigInteger, nullable=False),
)

_BY_ID = select(payloads).where(payloads.c.tx_id == bindparam("tx_id"))


@dataclass(frozen=True, slots=True)
class EndedIssuedPayment:
    """An issued payment with an outcome that has not been processed yet."""

    tx_id: str
    org: str
    wallet_id: str
    status: str
    amount: int
    signature: str | None
    header: str
    url: str
    fetched: bool
    resource_status: int | None


def paid_status(granted: ColumnElement[str]) -> ColumnElement[str]:
    """Return a payment's status from `granted`, the status of its attempt or transaction row.

    The query must join payloads and their allowances. The grant of an allowance lands before anyone is paid. The status
    of a payment out of it therefore follows from the delegate's transfer or, without a transfer, from the settlement.
    """
    waits = and_(payloads.c.lane == ALLOWANCE, granted == "confirmed", payloads.c.signature.is_(None))
    settled = allowances.c.status == SETTLED
    return case(
        (and_(waits, settled, allowances.c.spent > 0), "confirmed"),
        (and_(waits, settled), "failed"),
        (waits, "pending"),
        else_=granted,
    )


def insert_issued_payment(connection: Connection, issued: IssuedPayment) -> None:
    """Store an issued payment in the transaction that stores its attempt."""
    upsert(connection, payloads, columns_of(issued), keys=["tx_id"], replace=False)


def issued_payment_of(connection: Connection, tx_id: str) -> IssuedPayment | None:
    """Return the issued payment of an attempt, or None."""
    return fetch_one(connection, IssuedPayment, _BY_ID, {"tx_id": tx_id})


def issued_payments_of(connection: Connection, tx_ids: Collection[str]) -> list[IssuedPayment]:
    """Return the issued payments among these transactions."""
    return fetch_all(connection, IssuedPayment, select(payloads).where(payloads.c.tx_id.in_(tx_ids))) if tx_ids else []


def record_resource(connection: Connection, tx_id: str, status: int) -> None:
    """Store the status of a resource's response to a payment. A success is never overwritten."""
    better = payloads.c.resource_status.is_(None) | ~payloads.c.resource_status.between(200, 299)
    connection.execute(update(payloads).where(payloads.c.tx_id == tx_id, better).values(resource_status=status))


def record_transfer(connection: Connection, tx_id: str, signature: str, slot: int) -> None:
    """Store the signature and slot of the transfer that a delegate has paid with."""
    connection.execute(update(payloads).where(payloads.c.tx_id == tx_id).values(signature=signature, slot=slot))


def open_delegations(connection: Connection, limit: int) -> list[IssuedPayment]:
    """Return issued payments that a delegate can still pay, or has paid by a transfer not yet found on the chain.

    The oldest payments come first.
    """
    return fetch_all(connection, IssuedPayment, _OPEN_DELEGATIONS, {"most": limit})


def ended_issued_payments(connection: Connection, limit: int, *, before: int) -> Sequence[EndedIssuedPayment]:
    """Return issued payments with an outcome that are not closed, oldest first.

    Payments issued since ``before`` are left out while no response of their resource is stored.
    """
    return fetch_all(connection, EndedIssuedPayment, _ENDED, {"before": before, "most": limit})


def close_issued_payment(connection: Connection, tx_id: str, now: int) -> bool:
    """Mark an issued payment as closed. Return False if it was closed already."""
    mine = and_(payloads.c.tx_id == tx_id, payloads.c.closed_at.is_(None))
    return connection.execute(update(payloads).where(mine).values(closed_at=now)).rowcount == 1


def outstanding_payments(connection: Connection, wallet_id: str) -> tuple[int, int]:
    """Return the outstanding amount of a wallet and the number of issued payments in it.

    A payment out of an allowance counts only until its grant has landed, because the policy has then charged the grant.
    """
    query = (
        select(attempts.c.amount)
        .join(payloads, payloads.c.tx_id == attempts.c.tx_id)
        .where(attempts.c.wallet_id == wallet_id, attempts.c.status == "pending")
    )
    amounts = [int(amount) for amount in connection.scalars(query)]
    return sum(amounts), len(amounts)


def put_facilitator(connection: Connection, org: str, origin: str, fee_payer: str, *, accepts: bool, now: int) -> None:
    """Store the result of a check: `accepts` is True if the facilitator settles payments by the program."""
    row = {"org": org, "origin": origin, "fee_payer": fee_payer, "accepts": accepts, "checked_at": now}
    upsert(connection, facilitators, row, keys=["org", "origin", "fee_payer"])


def known_facilitator(connection: Connection, org: str, origin: str, fee_payer: str) -> tuple[bool, int] | None:
    """Return True if a facilitator accepts payments by the program, else False, and the time of this check.

    Returns None if the facilitator was never checked.
    """
    table = facilitators
    mine = (table.c.org == org, table.c.origin == origin, table.c.fee_payer == fee_payer)
    row = connection.execute(select(table.c.accepts, table.c.checked_at).where(*mine)).one_or_none()
    return None if row is None else (row.accepts, row.checked_at)


# Built once: building a statement takes longer than executing it.
_SPENT = and_(allowances.c.status == SETTLED, allowances.c.spent > 0, payloads.c.signature.is_(None))
_OPEN_DELEGATIONS = (
    select(payloads)
    .join(allowances, allowances.c.tx_id == payloads.c.tx_id)
    .where(payloads.c.closed_at.is_(None), or_(allowances.c.status == OUTSTANDING, _SPENT))
    .order_by(payloads.c.created_at)
    .limit(bindparam("most"))
)
_ENDED = (
    select(
        payloads.c.tx_id,
        payloads.c.org,
        attempts.c.wallet_id,
        paid_status(attempts.c.status).label("status"),
        attempts.c.amount,
        case((payloads.c.lane == ALLOWANCE, payloads.c.signature), else_=attempts.c.signature).label("signature"),
        payloads.c.header,
        payloads.c.url,
        payloads.c.fetched,
        payloads.c.resource_status,
    )
    .join_from(payloads, attempts, attempts.c.tx_id == payloads.c.tx_id)
    .outerjoin(allowances, allowances.c.tx_id == payloads.c.tx_id)
    .where(
        payloads.c.closed_at.is_(None),
        attempts.c.status != "pending",
        or_(
            payloads.c.lane == ENFORCED,
            attempts.c.status == "failed",
            # A delegate's payment is closed once its transfer is known.
            and_(allowances.c.status == SETTLED, or_(allowances.c.spent == 0, payloads.c.signature.is_not(None))),
        ),
        payloads.c.resource_status.is_not(None) | (payloads.c.created_at < bindparam("before")),
    )
    .order_by(payloads.c.created_at)
    .limit(bindparam("most"))
)
