"""The number of records that each wallet has added in the current UTC day, by kind.

The number limits the storage that an agent's key can use.
"""

from typing import Literal

from sqlalchemy import BigInteger, Column, Connection, Integer, String, Table, select

from app.core.timestamps import DAY
from app.database.columns import metadata, upsert

MAX_RECORDS = 1_000
"""Number of records of one kind that a wallet may add in a UTC day. Each record is a row in its table."""

RecordKind = Literal["refusal", "request", "facilitator", "rotation", "approval"]
"""A refused expense, a request for a resource other than the first with a payment, a facilitator's first appearance, an
agent's rotation of its session token, or a request for an approval.
"""

table = Table(
    "daily_counts",
    metadata,
    Column("wallet_id", String, primary_key=True),
    Column("kind", String, primary_key=True),
    Column("day", BigInteger, nullable=False, doc="number of the UTC day"),
    Column("count", Integer, nullable=False),
)


def count_record(connection: Connection, wallet_id: str, kind: RecordKind, now: int) -> bool:
    """Count a record of a wallet at the Unix millisecond `now`. Return False if it has added `MAX_RECORDS` today.

    If the clock steps back into the previous day, the current day's count continues.
    """
    mine = select(table.c.day, table.c.count).where(table.c.wallet_id == wallet_id, table.c.kind == kind)
    today = now // DAY
    day, count = connection.execute(mine).one_or_none() or (today, 0)
    if day < today:
        day, count = today, 0
    if count >= MAX_RECORDS:
        return False
    row = {"wallet_id": wallet_id, "kind": kind, "day": day, "count": count + 1}
    upsert(connection, table, row, keys=["wallet_id", "kind"])
    return True


def next_day(now: int) -> int:
    """Return the seconds from a Unix millisecond until the next UTC day begins."""
    return (DAY - now % DAY) // 1000 + 1
