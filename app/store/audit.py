"""The audit log: who did what, in one hash chain per organisation and one for the service itself.

New entries are appended. Once their retention time has passed, the oldest entries are deleted, and a new entry, the
checkpoint, records the deletion. The hash of an entry is the SHA-256 of the previous hash and the entry's own content.
Any other change, removal or insertion therefore changes the hash of the newest entry, the head. Times are Unix
milliseconds.
"""

import hashlib
import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cache
from typing import Any

from sqlalchemy import (
    JSON,
    BigInteger,
    Column,
    Connection,
    Index,
    String,
    Table,
    bindparam,
    delete,
    func,
    insert,
    select,
    update,
)

from app.core.actors import Actor
from app.core.pages import RecordPage
from app.core.timestamps import iso_ms, now_ms
from app.database.columns import ActorText, metadata, upsert
from app.database.paging import Listing, fetch_page, listing, unindexed
from app.database.record_tables import table_of
from app.database.records import columns_of, fetch_all, fetch_one
from app.store.audit_actions import Action
from app.store.audit_rows import UnreadableEntry, raw_rows, read_columns

SERVICE = "service"
"""Name of the service's own log. An organisation's log is named by its address."""
BEGINNING = "0" * 64
"""Placeholder for the hash before the first entry."""


table = Table(
    "audit_entries",
    metadata,
    Column("log", String, primary_key=True, doc="address of an organisation, or `service`"),
    Column("number", BigInteger, primary_key=True, autoincrement=False),
    Column("timestamp", BigInteger, nullable=False),
    Column("actor", ActorText, nullable=False),
    Column("action", String, nullable=False),
    Column("object", String, doc="id of the action's object"),
    Column("address", String, doc="the client's address"),
    Column("request_id", String),
    Column("details", JSON, nullable=False),
    Column("hash", String, nullable=False),
    # Entries are listed by number. The index ends with the timestamp, to filter a period without reading the rows.
    Index("audit_entries_by_actor", "log", "actor", "number", "timestamp"),
    Index("audit_entries_by_action", "log", "action", "number", "timestamp"),
    Index("audit_entries_by_object", "log", "object", "number", "timestamp"),
)


@dataclass(frozen=True, slots=True)
class LogHead:
    """The number and hash of a log's newest entry.

    `published_at` is the time when a head of the log was last sent; until one is sent, the time of the first entry.
    """

    log: str
    number: int
    """Number of the newest entry."""
    hash: str
    published_at: int
    """Time when a head of the log was last sent; until then, the time of the log's first entry."""


heads = table_of(
    "audit_heads",
    LogHead,
    key=["log"],
)


@dataclass(frozen=True, slots=True)
class NewLogEntry:
    """An entry to append. `details` holds strings, integers, booleans, nulls, and lists and objects of these.

    `details` must not contain a secret: no key, no token, no memo.
    """

    log: str
    action: Action
    actor: Actor
    object: str | None = None
    address: str | None = None
    request_id: str | None = None
    details: Mapping[str, Any] = field(default_factory=dict)
    timestamp: int = field(default_factory=now_ms)

    def about(self, **details: Any) -> "NewLogEntry":
        """Return a copy of the entry with these details added."""
        return replace(self, details={**self.details, **details})


@dataclass(frozen=True, slots=True)
class LogEntry(NewLogEntry):
    """An entry of a log, with its number and hash."""

    number: int = 0
    hash: str = ""

    def members(self) -> dict[str, Any]:
        """Return the members covered by the hash, as the API shows them."""
        return {
            "number": self.number,
            "log": self.log,
            "timestamp": iso_ms(self.timestamp),
            "actor": {"type": self.actor.type, "id": self.actor.id},
            "action": self.action,
            "object": self.object,
            "address": self.address,
            "request_id": self.request_id,
            "details": dict(self.details),
        }


@dataclass(frozen=True, slots=True)
class LogFilter:
    """Selects entries of a log. `start` is inclusive, `end` exclusive, in Unix milliseconds."""

    actor: Actor | None = None
    action: str | None = None
    object: str | None = None
    start: int | None = None
    end: int | None = None


class BrokenLogError(Exception):
    """A log fails its verification; the message says where."""


def link(previous: str, entry: LogEntry) -> str:
    """Return an entry's hash: the SHA-256 of the previous hash (in hexadecimal) followed by the entry's canonical JSON.

    Canonical means RFC 8785: members sorted by name, no whitespace, UTF-8. Entries contain no fractions, so these
    options of `json.dumps` suffice.
    """
    text = json.dumps(entry.members(), sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(f"{previous}{text}".encode()).hexdigest()


def append(connection: Connection, new: NewLogEntry) -> LogEntry:
    """Append an entry to its log, in the transaction of the recorded effect."""
    head = _locked_head(connection, new.log)
    if head is None:
        first = LogHead(new.log, 0, BEGINNING, new.timestamp)
        upsert(connection, heads, columns_of(first), keys=["log"], replace=False)
        head = _locked_head(connection, new.log)
        assert head is not None
    entry = LogEntry(**columns_of(new), number=head.number + 1)
    entry = replace(entry, hash=link(head.hash, entry))
    connection.execute(insert(table).values(columns_of(entry)))
    connection.execute(_MOVE, {"of_log": entry.log, "number": entry.number, "hash": entry.hash})
    return entry


def log_head(connection: Connection, log: str) -> LogHead | None:
    """Return the head of a log, or None if the log has no entry yet."""
    return fetch_one(connection, LogHead, _HEAD, {"log": log})


def log_entries(
    connection: Connection, log: str, wanted: LogFilter, limit: int = 20, cursor: str | None = None
) -> RecordPage[LogEntry | UnreadableEntry]:
    """Return a log's entries, highest number first. Raises `InvalidCursorError`."""
    values = {name: value for name in _FILTERS if (value := getattr(wanted, name)) is not None}
    if wanted.actor is not None:
        # A string, because it is part of the cursor's scope.
        values["actor"] = str(wanted.actor)
    chosen = _listing(frozenset(values))
    return fetch_page(connection, _read, chosen, {"log": log, **values}, limit=limit, cursor=cursor)


def rows_after(connection: Connection, log: str, number: int, *, limit: int) -> list[LogEntry | UnreadableEntry]:
    """Return the entries after a number, lowest number first, including unreadable ones."""
    query = _ROWS.where(table.c.log == log, table.c.number > number).order_by(table.c.number).limit(limit)
    return fetch_all(connection, _read, query)


def entries_after(connection: Connection, log: str, number: int, *, limit: int) -> list[LogEntry]:
    """Return the entries after a number, lowest number first. Raises `BrokenLogError` if one is unreadable."""
    return [_readable(one) for one in rows_after(connection, log, number, limit=limit)]


def verify(connection: Connection, log: str, known: str) -> int:
    """Recompute a log from its beginning or checkpoint. Return its number of entries, including deleted ones.

    `known` is a head noted earlier. Raises `BrokenLogError` if an entry was changed, removed or inserted, or if the
    known head is not found. A known head is not found if the newest entries were removed, if the whole log was
    rewritten, or if the head is older than the checkpoint.
    """
    head = log_head(connection, log)
    number, previous = _start(connection, log)
    seen = previous == known and number > 0
    while batch := entries_after(connection, log, number, limit=_BATCH):
        for entry in batch:
            if entry.number != number + 1:
                raise BrokenLogError(f"{_range(number + 1, entry.number - 1)} missing")
            if link(previous, entry) != entry.hash:
                raise BrokenLogError(
                    f"entry {entry.number} of {iso_ms(entry.timestamp)} has a hash that does not match its content and "
                    "the entry before it: one of the two was rewritten"
                )
            number, previous = entry.number, entry.hash
            seen = seen or previous == known
    if head is None or (head.number, head.hash) != (number, previous):
        noted = "none" if head is None else f"entry {head.number}"
        raise BrokenLogError(
            f"the log ends with entry {number}, but its stored head is {noted}: the newest entries were changed"
        )
    if not seen:
        raise BrokenLogError(
            f"the entries up to {number} agree with one another, but none has the hash {known}: the log was shortened "
            "or rewritten after that head was noted, or the head belongs to another log or is older than the checkpoint"
        )
    return number


def delete_entries(connection: Connection, log: str, before: int, *, most: int) -> int:
    """Delete up to `most` of the oldest entries before a time, and return their number. Stop at an unreadable entry.

    Append an entry, the checkpoint, with the number and hash of the last deleted entry.
    """
    last = None
    for entry in rows_after(connection, log, 0, limit=most):
        # An unreadable entry has no time. It is kept as evidence, with all entries after it.
        if isinstance(entry, UnreadableEntry) or entry.timestamp >= before:
            break
        last = entry
    if last is None:
        return 0
    deleted = connection.execute(delete(table).where(table.c.log == log, table.c.number <= last.number)).rowcount
    details = {"number": last.number, "hash": last.hash}
    append(connection, NewLogEntry(log, "audit.checkpoint", Actor("system", "housekeeping"), details=details))
    return deleted


def log_lengths(connection: Connection, logs: Collection[str]) -> dict[str, int]:
    """Return the number of the newest entry of each of these logs."""
    rows = connection.execute(_LENGTHS, {"logs": list(logs)})
    return {row.log: row.number for row in rows}


def due_heads(connection: Connection, before: int) -> list[LogHead]:
    """Return the heads of logs with a `published_at` no later than a given time."""
    return fetch_all(connection, LogHead, select(heads).where(heads.c.published_at <= before))


def mark_published(connection: Connection, head: LogHead, now: int) -> bool:
    """Mark a head as being sent. Return False if another process has already marked it."""
    mine = update(heads).where(heads.c.log == head.log, heads.c.published_at == head.published_at)
    return connection.execute(mine.values(published_at=now)).rowcount == 1


#: Number of entries that a verification reads at a time.
_BATCH = 1_000
_ROWS = raw_rows(table)
_LENGTHS = select(heads.c.log, heads.c.number).where(heads.c.log.in_(bindparam("logs", expanding=True)))
_HEAD = select(heads).where(heads.c.log == bindparam("log"))
_LOCKED = _HEAD.with_for_update()
_MOVE = update(heads).where(heads.c.log == bindparam("of_log"))
_FILTERS = [one.name for one in fields(LogFilter)]
_EQUAL = ("object", "actor", "action")
_PERIOD = {
    "start": table.c.timestamp >= bindparam("start"),
    "end": table.c.timestamp < bindparam("end"),
}


def _locked_head(connection: Connection, log: str) -> LogHead | None:
    return fetch_one(connection, LogHead, _LOCKED, {"log": log})


def _read(number: int, **row: bytes | None) -> LogEntry | UnreadableEntry:
    found = read_columns(table, number, row)
    return found if isinstance(found, UnreadableEntry) else LogEntry(**found)


def _readable(entry: LogEntry | UnreadableEntry) -> LogEntry:
    """Return an entry. Raises `BrokenLogError` if it cannot be read."""
    if isinstance(entry, UnreadableEntry):
        raise BrokenLogError(f"entry {entry.number} cannot be read: {entry.reason}")
    return entry


def _start(connection: Connection, log: str) -> tuple[int, str]:
    """Return the number and hash that precede the first remaining entry."""
    first = connection.scalar(select(func.min(table.c.number)).where(table.c.log == log))
    if first in {None, 1}:
        return 0, BEGINNING
    checkpoints = _ROWS.where(table.c.log == log, table.c.action == "audit.checkpoint")
    newest = fetch_one(connection, _read, checkpoints.order_by(table.c.number.desc()).limit(1))
    if newest is not None:
        match _readable(newest).details:
            case {"number": int(number), "hash": str(previous)} if number == first - 1:
                return number, previous
    raise BrokenLogError(f"{_range(1, first - 1)} missing, and no checkpoint ends there")


def _range(first: int, last: int) -> str:
    return f"entry {first} is" if first == last else f"entries {first} to {last} are"


@cache
def _listing(given: frozenset[str]) -> Listing:
    """Return the query of entries for these filter members. The first given member of `_EQUAL` selects its index."""
    equal = [name for name in _EQUAL if name in given]
    chosen = [
        (table.c[name] if place == 0 else unindexed(table.c[name])) == bindparam(name, type_=String)
        for place, name in enumerate(equal)
    ]
    period = (condition for name, condition in _PERIOD.items() if name in given)
    query = _ROWS.where(table.c.log == bindparam("log"), *chosen, *period)
    # Ordered by number, because two concurrent requests may get numbers in another order than their timestamps.
    return listing(query, time=table.c.number, key=table.c.number)
