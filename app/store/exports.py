"""Exports: requests and their outcomes. The files are in the data folder and, for other nodes, in the database."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from sqlalchemy import (
    Column,
    Connection,
    Index,
    Integer,
    LargeBinary,
    String,
    Table,
    bindparam,
    delete,
    func,
    or_,
    select,
    update,
)

from app.core.actors import Actor
from app.core.pages import RecordPage
from app.core.transaction_types import MOVEMENTS
from app.database.claims import claim
from app.database.columns import metadata, upsert
from app.database.paging import fetch_page, listing
from app.database.record_tables import FALSE, insert_record, table_of
from app.database.records import fetch_all, fetch_one
from app.database.signals import EXPORTS, signal
from app.store.deletion import delete_some
from app.store.read_tables import transactions

KEPT_MS = 90 * 86_400_000
"""Milliseconds after the request until the record of an export without a file is deleted."""
Status = Literal["processing", "ready", "expired", "failed"]
Format = Literal["csv", "json", "accounting"]


@dataclass(frozen=True, slots=True)
class ExportRecord:
    """An export; times are Unix milliseconds."""

    export_id: str
    org: str
    wallet_id: str | None
    """Id of the only wallet to export; null for all wallets."""
    format: Format
    start: int | None
    """Start of the period, inclusive; null for the beginning."""
    end: int | None
    """End of the period, exclusive; null for no end."""
    status: Status
    """The status: `processing`, `ready`, `expired` or `failed`."""
    created_at: int
    estimated_at: int
    """Estimated time of completion."""
    rows: Annotated[int | None, Integer()] = None
    """Row count; until the export is ready, an estimate from the time of the request."""
    reason: str | None = None
    """Reason for the failure."""
    finished_at: int | None = None
    expires_at: int | None = None
    """Time when the export's file is removed."""
    created_under: str | None = None
    bom: Annotated[bool, FALSE] = False
    """True if a byte order mark begins the file."""
    requested_by: Actor | None = None
    """Actor who requested the export; null in exports from before revision 0014."""
    manifest: str | None = None
    """The manifest of a ready accounting file, in JSON."""


exports = table_of(
    "exports",
    ExportRecord,
    Index("exports_by_status", "status", "created_at"),
    Index("exports_by_end", "status", "expires_at"),
    Index("exports_by_org", "org", "status"),
    Index("exports_by_time", "org", "created_at", "export_id"),
    key=["export_id"],
)
chunks = Table(
    "export_chunks",
    metadata,
    Column("export_id", String, primary_key=True),
    Column("number", Integer, primary_key=True),
    Column("data", LargeBinary, nullable=False, doc="a part of the file, for nodes that did not write it"),
)


@dataclass(frozen=True, slots=True)
class LiveExports:
    """The counts of exports that are `processing` or `ready`, and their total number of rows.

    `first_end` is the time when the first ready export expires.
    """

    processing: int
    ready: int
    rows: int
    first_end: int | None


def insert_export(connection: Connection, export: ExportRecord) -> None:
    """Store a new export."""
    insert_record(connection, export)
    signal(connection, EXPORTS)


def export(connection: Connection, export_id: str) -> ExportRecord | None:
    """Return the export with this id, of any organisation, or None."""
    return fetch_one(connection, ExportRecord, select(exports).where(exports.c.export_id == export_id))


def with_status(connection: Connection, status: Status) -> list[ExportRecord]:
    """Return all organisations' exports with this status, oldest first."""
    query = select(exports).where(exports.c.status == status).order_by(exports.c.created_at, exports.c.export_id)
    return fetch_all(connection, ExportRecord, query)


def export_created_under(connection: Connection, org: str, key: str) -> ExportRecord | None:
    """Return the newest export requested under this idempotency key, or None."""
    query = select(exports).where(exports.c.org == org, exports.c.created_under == key)
    return fetch_one(connection, ExportRecord, query.order_by(exports.c.created_at.desc()).limit(1))


def export_page(
    connection: Connection, org: str, wallet_id: str | None, *, limit: int, cursor: str | None
) -> RecordPage[ExportRecord]:
    """Return one page of an organisation's exports, or of one wallet's, newest first. Raises `InvalidCursorError`."""
    found_by, values = (_LISTING, {}) if wallet_id is None else (_LISTING_OF_WALLET, {"wallet": wallet_id})
    return fetch_page(connection, ExportRecord, found_by, {"org": org, **values}, limit=limit, cursor=cursor)


def live(connection: Connection, org: str, by: Actor | None) -> LiveExports:
    """Return the totals of the organisation's exports that are `processing` or `ready`.

    If `by` is given, count only the exports requested by this actor.
    """
    mine = select(exports.c.status, func.count(), func.sum(exports.c.rows), func.min(exports.c.expires_at))
    mine = mine.where(exports.c.org == org, exports.c.status.in_(("processing", "ready"))).group_by(exports.c.status)
    if by is not None:
        mine = mine.where(exports.c.requested_by == by)
    found = {status: figures for status, *figures in connection.execute(mine)}
    processing, to_write, _ = found.get("processing", (0, 0, None))
    ready, written, first_end = found.get("ready", (0, 0, None))
    return LiveExports(processing, ready, (to_write or 0) + (written or 0), first_end)


def finish(connection: Connection, export_id: str, status: Literal["ready", "failed"], now: int, **given: Any) -> bool:
    """Store the outcome of an export. `rows`, `reason`, `expires_at` and `manifest` become null unless passed.

    If the export already has an outcome, change nothing and return False.
    """
    empty = dict.fromkeys(("rows", "reason", "expires_at", "manifest"))
    values = {**empty, "status": status, "finished_at": now, **given}
    mine = update(exports).where(exports.c.export_id == export_id, exports.c.status == "processing")
    return connection.execute(mine.values(values)).rowcount == 1


def over(connection: Connection, now: int, *, most: int) -> list[ExportRecord]:
    """Return up to `most` exports that have expired and are not yet marked as expired."""
    query = select(exports).where(exports.c.status == "ready", exports.c.expires_at <= now)
    return fetch_all(connection, ExportRecord, query.limit(most))


def claim_export(connection: Connection, node: str) -> str | None:
    """Claim the oldest unwritten export that no other node is writing. Return its id, or None if there is none."""
    due = select(exports.c.export_id).where(exports.c.status == "processing")
    due = due.order_by(exports.c.created_at, exports.c.export_id).limit(1)
    return next(iter(claim(connection, exports.c.export_id, due, node)), None)


def with_files(connection: Connection, export_ids: Collection[str]) -> set[str]:
    """Return the ids, out of `export_ids`, of exports that have a file or are being written."""
    live = exports.c.status.in_(("processing", "ready"))
    return set(connection.scalars(select(exports.c.export_id).where(exports.c.export_id.in_(export_ids), live)))


def put_chunk(connection: Connection, export_id: str, number: int, data: bytes) -> None:
    """Store a part of an export's file, or replace it. The first part deletes all parts stored before."""
    if number == 0:
        connection.execute(delete(chunks).where(chunks.c.export_id == export_id))
    upsert(connection, chunks, {"export_id": export_id, "number": number, "data": data}, keys=["export_id", "number"])


def chunk(connection: Connection, export_id: str, number: int) -> bytes | None:
    """Return a part of an export's file, or None if no part with this number is stored."""
    query = select(chunks.c.data).where(chunks.c.export_id == export_id, chunks.c.number == number)
    data: bytes | None = connection.scalar(query)
    return data


def expire(connection: Connection, export_ids: Sequence[str]) -> None:
    """Mark exports as expired, and delete the stored parts of their files."""
    connection.execute(delete(chunks).where(chunks.c.export_id.in_(export_ids)))
    connection.execute(update(exports).where(exports.c.export_id.in_(export_ids)).values(status="expired"))


def forget(connection: Connection, before: int, *, most: int) -> int:
    """Delete up to `most` exports without a file that were requested before a Unix millisecond.

    Returns the number deleted.
    """
    old = (exports.c.status.in_(("expired", "failed")), exports.c.created_at < before)
    return delete_some(connection, exports.c.export_id, *old, most=most)


def count_rows(connection: Connection, wanted: ExportRecord, slot: int | None = None) -> int:
    """Return the number of transactions that an export covers now, excluding those in slots after `slot`."""
    table = transactions
    query = select(func.count()).select_from(table).where(table.c.org == wanted.org)
    if wanted.wallet_id is not None:
        query = query.where(table.c.wallet_id == wanted.wallet_id)
    if wanted.start is not None:
        query = query.where(table.c.timestamp >= wanted.start)
    if wanted.end is not None:
        query = query.where(table.c.timestamp < wanted.end)
    if wanted.format == "accounting":
        query = query.where(table.c.status == "confirmed", table.c.type.in_(MOVEMENTS))
    if slot is not None:
        query = query.where(or_(table.c.slot.is_(None), table.c.slot <= slot))
    return int(connection.scalar(query) or 0)


_OF_ORG = select(exports).where(exports.c.org == bindparam("org"))
_LISTING, _LISTING_OF_WALLET = (
    listing(query, time=exports.c.created_at, key=exports.c.export_id)
    for query in (_OF_ORG, _OF_ORG.where(exports.c.wallet_id == bindparam("wallet")))
)
