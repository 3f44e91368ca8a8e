"""Exports: what was asked for, and what became of it. The files lie in the data folder."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from sqlalchemy import (
    BigInteger,
    Column,
    Connection,
    Index,
    Integer,
    String,
    Table,
    delete,
    func,
    insert,
    or_,
    select,
    update,
)

from app.store.columns import columns_of, metadata
from app.store.read_tables import transactions

KEPT_MS = 90 * 86_400_000
"""For how long after its request an export is remembered whose file is gone."""
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
    Column("rows", Integer, comment="until it is ready, how many there were when it was asked for"),
    Column("reason", String, comment="why it failed"),
    Column("finished_at", BigInteger),
    Column("expires_at", BigInteger, comment="when its file is removed"),
    # Idempotency key of the request: one repeated after a crash gets the export that it had made.
    Column("created_under", String),
    Index("exports_by_status", "status", "created_at"),
    Index("exports_by_end", "status", "expires_at"),
    Index("exports_by_org", "org", "status"),
)


@dataclass(frozen=True, slots=True)
class ExportRecord:
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
    created_under: str | None = None


@dataclass(frozen=True, slots=True)
class Live:
    """What an organisation's exports take that are `processing` or `ready`.

    `rows` are those of all their files together. `first_end` is when the first that is ready expires.
    """

    processing: int
    ready: int
    rows: int
    first_end: int | None


def insert_export(connection: Connection, export: ExportRecord) -> None:
    """Store a new export."""
    connection.execute(insert(exports).values(columns_of(export)))


def export(connection: Connection, export_id: str) -> ExportRecord | None:
    """Return the export with this id, of whichever organisation."""
    row = connection.execute(select(exports).where(exports.c.export_id == export_id)).one_or_none()
    return None if row is None else ExportRecord(**row._mapping)  # noqa: SLF001


def with_status(connection: Connection, status: Status) -> list[ExportRecord]:
    """Return all organisations' exports in this status, oldest first."""
    query = select(exports).where(exports.c.status == status).order_by(exports.c.created_at, exports.c.export_id)
    return [ExportRecord(**row._mapping) for row in connection.execute(query)]  # noqa: SLF001


def export_created_under(connection: Connection, org: str, key: str) -> ExportRecord | None:
    """Return the newest export that was made by a request with this idempotency key."""
    query = select(exports).where(exports.c.org == org, exports.c.created_under == key)
    row = connection.execute(query.order_by(exports.c.created_at.desc()).limit(1)).one_or_none()
    return None if row is None else ExportRecord(**row._mapping)  # noqa: SLF001


def live(connection: Connection, org: str) -> Live:
    """Return what the organisation's exports take."""
    mine = select(exports.c.status, func.count(), func.sum(exports.c.rows), func.min(exports.c.expires_at))
    mine = mine.where(exports.c.org == org, exports.c.status.in_(("processing", "ready"))).group_by(exports.c.status)
    found = {status: figures for status, *figures in connection.execute(mine)}
    processing, to_write, _ = found.get("processing", (0, 0, None))
    ready, written, first_end = found.get("ready", (0, 0, None))
    return Live(processing, ready, (to_write or 0) + (written or 0), first_end)


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


def over(connection: Connection, now: int, *, most: int) -> list[ExportRecord]:
    """Return exports whose time is over and that are not marked so yet, at most so many."""
    query = select(exports).where(exports.c.status == "ready", exports.c.expires_at <= now)
    return [ExportRecord(**row._mapping) for row in connection.execute(query.limit(most))]  # noqa: SLF001


def expire(connection: Connection, export_ids: Sequence[str]) -> None:
    """Mark exports as ones whose time is over."""
    connection.execute(update(exports).where(exports.c.export_id.in_(export_ids)).values(status="expired"))


def forget(connection: Connection, before: int, *, most: int) -> int:
    """Delete exports without a file that were asked for before that Unix millisecond, at most so many.

    Returns how many there were.
    """
    old = select(exports.c.export_id).where(exports.c.status.in_(("expired", "failed")), exports.c.created_at < before)
    return connection.execute(delete(exports).where(exports.c.export_id.in_(old.limit(most)))).rowcount


def count_rows(connection: Connection, wanted: ExportRecord, slot: int | None = None) -> int:
    """Return how many transactions an export is about, as of now, without those of slots after `slot`."""
    table = transactions
    query = select(func.count()).select_from(table).where(table.c.org == wanted.org)
    if wanted.wallet_id is not None:
        query = query.where(table.c.wallet_id == wanted.wallet_id)
    if wanted.start is not None:
        query = query.where(table.c.timestamp >= wanted.start)
    if wanted.end is not None:
        query = query.where(table.c.timestamp < wanted.end)
    if slot is not None:
        query = query.where(or_(table.c.slot.is_(None), table.c.slot <= slot))
    return int(connection.scalar(query) or 0)
