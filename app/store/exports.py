"""Exports: what was asked for, and what became of it. The files lie in the data folder."""

from dataclasses import dataclass
from typing import Literal

from sqlalchemy import BigInteger, Column, Connection, Index, Integer, String, Table, func, insert, select, update

from app.store.columns import columns_of, metadata
from app.store.read_tables import transactions

Status = Literal["processing", "ready", "expired", "failed"]
Format = Literal["csv", "json"]

exports = Table(
    "exports",
    metadata,
    Column("export_id", String, primary_key=True),
    Column("org", String, nullable=False),
    Column("wallet_id", String, comment="the only wallet it is about, if there is one"),
    Column("format", String, nullable=False),
    Column("start", BigInteger, comment="inclusive"),
    Column("end", BigInteger, comment="exclusive"),
    Column("status", String, nullable=False, comment="processing, ready, expired or failed"),
    Column("created_at", BigInteger, nullable=False),
    Column("estimated_at", BigInteger, nullable=False, comment="when it will probably be ready"),
    Column("rows", Integer),
    Column("reason", String, comment="why it failed"),
    Column("finished_at", BigInteger),
    Column("expires_at", BigInteger, comment="when its file is removed"),
    Index("exports_by_status", "status", "created_at"),
)


@dataclass(frozen=True, slots=True)
class Export:
    """An export; times are Unix milliseconds."""

    export_id: str
    org: str
    wallet_id: str | None
    format: Format
    start: int | None
    end: int | None
    status: Status
    created_at: int
    estimated_at: int
    rows: int | None = None
    reason: str | None = None
    finished_at: int | None = None
    expires_at: int | None = None


def insert_export(connection: Connection, export: Export) -> None:
    """Store a new export."""
    connection.execute(insert(exports).values(columns_of(export)))


def export(connection: Connection, export_id: str) -> Export | None:
    """Return the export with this id, of whichever organisation."""
    row = connection.execute(select(exports).where(exports.c.export_id == export_id)).one_or_none()
    return None if row is None else Export(**row._mapping)  # noqa: SLF001


def with_status(connection: Connection, status: Status) -> list[Export]:
    """Return all organisations' exports in this status, oldest first."""
    query = select(exports).where(exports.c.status == status).order_by(exports.c.created_at, exports.c.export_id)
    return [Export(**row._mapping) for row in connection.execute(query)]  # noqa: SLF001


def count_processing(connection: Connection, org: str) -> int:
    """Return how many of the organisation's exports are not written yet."""
    mine = (exports.c.org == org, exports.c.status == "processing")
    return int(connection.scalar(select(func.count()).select_from(exports).where(*mine)) or 0)


def finish(  # noqa: PLR0917
    connection: Connection,
    export_id: str,
    status: Literal["ready", "failed"],
    now: int,
    rows: int | None = None,
    reason: str | None = None,
    expires_at: int | None = None,
) -> bool:
    """Give an export that is being processed its outcome; false, and nothing changed, when it has one."""
    values = {"status": status, "finished_at": now, "rows": rows, "reason": reason, "expires_at": expires_at}
    mine = update(exports).where(exports.c.export_id == export_id, exports.c.status == "processing")
    return connection.execute(mine.values(values)).rowcount == 1


def expire(connection: Connection, now: int) -> list[Export]:
    """Mark the exports whose time is over and return them."""
    over = [one for one in with_status(connection, "ready") if one.expires_at is not None and one.expires_at <= now]
    for one in over:
        connection.execute(update(exports).where(exports.c.export_id == one.export_id).values(status="expired"))
    return over


def count_rows(connection: Connection, wanted: Export) -> int:
    """Return how many transactions an export is about, as of now."""
    table = transactions
    query = select(func.count()).select_from(table).where(table.c.org == wanted.org)
    if wanted.wallet_id is not None:
        query = query.where(table.c.wallet_id == wanted.wallet_id)
    if wanted.start is not None:
        query = query.where(table.c.timestamp >= wanted.start)
    if wanted.end is not None:
        query = query.where(table.c.timestamp < wanted.end)
    return int(connection.scalar(query) or 0)
