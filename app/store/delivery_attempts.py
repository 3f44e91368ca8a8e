"""Attempts to deliver events to webhooks: their outcomes and consequences. Times are Unix milliseconds."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy import (
    BigInteger,
    Column,
    ColumnElement,
    Connection,
    Index,
    Integer,
    ScalarSelect,
    String,
    Table,
    Text,
    bindparam,
    delete,
    func,
    insert,
    literal_column,
    select,
    update,
)

from app.database.columns import SERIAL, metadata
from app.database.record_tables import insert_record
from app.database.records import columns_of, fetch_all
from app.database.statements import execute
from app.store.deliveries import MAX_ATTEMPTS, DeliveryRecord, retry_at
from app.store.deliveries import table as deliveries

KEPT_ATTEMPTS = 20
"""Number of newest attempts that a delivery's log keeps, however often the delivery is resent."""

table = Table(
    "webhook_attempts",
    metadata,
    Column("id", SERIAL, primary_key=True, autoincrement=True),
    Column("delivery_id", String, nullable=False),
    Column("attempt", Integer, nullable=False),
    Column("started_at", BigInteger, nullable=False),
    Column("duration", BigInteger, nullable=False, doc="milliseconds"),
    Column("status_code", Integer),
    Column("error", String),
    Column("excerpt", Text, nullable=False, doc="beginning of the response body"),
    Index("webhook_attempts_by_delivery", "delivery_id", "id"),
)


@dataclass(frozen=True, slots=True)
class DeliveryAttemptRecord:
    """One attempt to deliver; `duration` is in milliseconds, `status_code` is null without a response."""

    delivery_id: str
    attempt: int
    started_at: int
    duration: int
    status_code: int | None
    error: str | None
    excerpt: str


def record_attempt(
    connection: Connection, delivery: DeliveryRecord, attempt: DeliveryAttemptRecord, *, delivered: bool, now: int
) -> bool:
    """Log an attempt and update its delivery. Return True if this was the last attempt before the webhook is degraded.

    The delivery then keeps its place in the queue. Nothing is stored for a delivery deleted while it was being sent. A
    delivery that was queued again in the meantime stays queued. If only the delivery's count of failures was reset in
    the meantime, a failure is not counted, but a success marks the delivery as delivered.
    """
    execute(connection, _LOG, columns_of(attempt))
    execute(connection, _FORGET, {}, of_delivery=delivery.delivery_id, same_delivery=delivery.delivery_id)
    was = {"of_delivery": delivery.delivery_id, "status_before": "pending", "queued_before": delivery.created_at}
    if delivered:
        execute(connection, _FINISH, {"status": "delivered", "due_at": now}, **was)
        return False
    failed = delivery.attempts + 1
    values = {"attempts": failed, "due_at": retry_at(failed, now)}
    counted = execute(connection, _COUNT, values, **was, failed_before=delivery.attempts)
    return counted == 1 and failed >= MAX_ATTEMPTS


def insert_ping(connection: Connection, delivery: DeliveryRecord, attempt: DeliveryAttemptRecord) -> None:
    """Store a ping after it was sent."""
    insert_record(connection, delivery)
    connection.execute(insert(table).values(columns_of(attempt)))


def attempts_of(connection: Connection, delivery_ids: Sequence[str]) -> dict[str, list[DeliveryAttemptRecord]]:
    """Return the newest attempts of deliveries, oldest first, at most `KEPT_ATTEMPTS` of each."""
    found: dict[str, list[DeliveryAttemptRecord]] = defaultdict(list)
    for attempt in fetch_all(connection, DeliveryAttemptRecord, _NEWEST, {"ids": delivery_ids}):
        found[attempt.delivery_id].append(attempt)
    return found


# Built once, because every attempt runs these statements.
_OUTCOME = [name for name in DeliveryAttemptRecord.__dataclass_fields__ if name != "delivery_id"]
_LOG = insert(table).from_select(
    ["delivery_id", *_OUTCOME],
    select(deliveries.c.delivery_id, *(bindparam(name, type_=table.c[name].type) for name in _OUTCOME)).where(
        deliveries.c.delivery_id == bindparam("delivery_id")
    ),
)
_FINISH = update(deliveries).where(
    deliveries.c.delivery_id == bindparam("of_delivery"),
    deliveries.c.status == bindparam("status_before"),
    deliveries.c.created_at == bindparam("queued_before"),
)
_COUNT = _FINISH.where(deliveries.c.attempts == bindparam("failed_before"))


def _last_forgotten(delivery_id: ColumnElement[str]) -> ScalarSelect[int]:
    """Return the subquery for the id of a delivery's newest attempt beyond the kept ones; null if all are kept."""
    newer = table.alias()
    ids = select(newer.c.id).where(newer.c.delivery_id == delivery_id).order_by(newer.c.id.desc())
    return ids.limit(literal_column("1")).offset(literal_column(str(KEPT_ATTEMPTS))).scalar_subquery()


_FORGET = delete(table).where(
    table.c.delivery_id == bindparam("of_delivery"), table.c.id <= _last_forgotten(bindparam("same_delivery"))
)
_NEWEST = (
    select(*(table.c[name] for name in DeliveryAttemptRecord.__dataclass_fields__))
    .join(deliveries, deliveries.c.delivery_id == table.c.delivery_id)
    .where(
        deliveries.c.delivery_id.in_(bindparam("ids", expanding=True)),
        table.c.id > func.coalesce(_last_forgotten(deliveries.c.delivery_id), 0),
    )
    .order_by(table.c.id)
)
