"""The indexer's tables: decoded events, and cursors, which move in the transaction that stores the events."""

import sqlite3
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeVar

from sqlalchemy import (
    BindParameter,
    Connection,
    Executable,
    bindparam,
    case,
    create_engine,
    delete,
    func,
    select,
    union_all,
    update,
)
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.pool import StaticPool
from sqlalchemy.sql.dml import UpdateBase
from sqlite_utils import Database

from app.core.paths import keep_private
from app.database.columns import upsert
from app.database.records import columns_of, fetch_all
from app.database.statements import execute, execute_all, rows, scalar
from indexer.accounts import BatchAccounts, FollowedAccount, TokenAccounts
from indexer.holes import TransactionHoles
from indexer.records import ChainTransaction, Hole
from indexer.schema import NO, YES, cursors, events, holes, prepare, streams, transaction_holes, transactions
from indexer.unread_allowances import UnreadAllowance, UnreadAllowances

NOT_AN_EVENT = -1
"""Value of `instruction` in rows that are not events of the program."""
DEPOSIT = "Deposit"
"""Name of rows about deposits: tokens that arrived in a followed account other than by a funding or a withdrawal."""
BALANCE_OBSERVED = "BalanceObserved"
"""Name of rows about balances that were read from the chain, because the stored balance may have been wrong."""
ALLOWANCE_READ = "AllowanceRead"
"""Name of rows about settled allowances with delegates' transfers that were read from the chain."""
REVERTED = "TransactionReverted"
"""Name of rows about transactions that were rolled back, or are stored again because their events were missing.

In the row's data, `events` lists the subjects of the deleted rows.
"""

T = TypeVar("T")
_Key = tuple[str, int, int]
_Row = dict[str, Any]
_INDEXES = 256
"""Maximum number of accounts in a transaction. Deposits are numbered by the account's index."""
_LAST_SLOT = 2**63 - 1
"""The largest integer that the database can hold."""
_PLACE = ("signature", "instruction", "inner")

_CHANGES = (
    select(
        *(events.c[one] for one in ("id", *_PLACE, "slot")),
        func.coalesce(transactions.c.block_time, 0).label("block_time"),
        func.coalesce(transactions.c.fee_payer, "").label("fee_payer"),
        func.coalesce(transactions.c.message_hash, "").label("message_hash"),
        *(events.c[one] for one in ("name", "org", "data")),
    )
    .join_from(events, transactions, transactions.c.signature == events.c.signature, isouter=True)
    .where(events.c.id > bindparam("after"))
    .order_by(events.c.id)
    .limit(bindparam("limit"))
)
_NEWEST_ROW = select(func.coalesce(func.max(events.c.id), 0))
_POSITION = (
    select(cursors.c.signature, func.coalesce(transactions.c.slot, transaction_holes.c.slot).label("slot"))
    .join_from(cursors, transactions, transactions.c.signature == cursors.c.signature, isouter=True)
    .join(transaction_holes, transaction_holes.c.signature == cursors.c.signature, isouter=True)
    .where(cursors.c.name == bindparam("name"))
)
_SIGNATURES: BindParameter[Any] = bindparam("signatures", expanding=True)
_KNOWN = union_all(
    *(select(one.c.signature).where(one.c.signature.in_(_SIGNATURES)) for one in (transactions, transaction_holes))
)
_EVENTS = events.c.instruction != NOT_AN_EVENT
_WITH_EVENTS = select(events.c.signature).where(_EVENTS, events.c.signature.in_(_SIGNATURES))
_LAST_ROWS = (
    select(transactions.c.message_hash, transactions.c.slot, events.c.org, func.max(events.c.id).label("id"))
    .join_from(transactions, events, events.c.signature == transactions.c.signature)
    .where(transactions.c.message_hash.in_(bindparam("message_hashes", expanding=True)))
    .group_by(transactions.c.message_hash, transactions.c.slot, events.c.org)
)
_UP_TO = transactions.c.slot <= bindparam("slot")
_UNFINALIZED = (
    select(transactions.c.signature, transactions.c.slot)
    .where(transactions.c.finalized == NO, _UP_TO)
    .order_by(transactions.c.slot, transactions.c.signature)
    .limit(bindparam("limit"))
    .offset(bindparam("skip"))
)
_NEWEST_FIRST = transactions.c.slot.desc()
_LAST_FINALIZED = (
    select(transactions.c.signature).where(transactions.c.finalized == YES, _UP_TO).order_by(_NEWEST_FIRST).limit(1)
)
# One query for each of the two partial indexes.
_NEWEST_TIMES = [
    select(transactions.c.block_time).where(transactions.c.finalized == one).order_by(_NEWEST_FIRST).limit(1).subquery()
    for one in (NO, YES)
]
_NEWEST_BLOCK_TIME = select(func.max(union_all(*map(select, _NEWEST_TIMES)).subquery().c.block_time))
_SLOT = select(transactions.c.slot).where(transactions.c.signature == bindparam("signature"))
_WITH_GAPS = select(streams.c.stream).where(streams.c.last != streams.c.count)
_STREAM = select(streams.c.last, streams.c.count).where(streams.c.stream == bindparam("stream"))
_OF_TRANSACTION = events.c.signature == bindparam("signature")
_DATA = select(events.c.data).where(_EVENTS)
_DATA_OF, _DATA_AFTER = _DATA.where(_OF_TRANSACTION), _DATA.where(events.c.slot > bindparam("slot"))
_ROWS_OF = select(events.c.name, events.c.org, events.c.data).where(_OF_TRANSACTION).order_by(events.c.id)
_HOLES = select(holes).order_by(holes.c.after_slot)
_COUNT_ROWS = select(func.count()).select_from(events)
_COUNT_EVENTS = _COUNT_ROWS.where(_EVENTS)

_NEW_TRANSACTION = insert(transactions).on_conflict_do_nothing().returning(transactions.c.signature)
_FINALIZE = update(transactions).where(transactions.c.signature.in_(_SIGNATURES)).values(finalized=YES)
_DELETE_TRANSACTION = delete(transactions).where(transactions.c.signature == bindparam("signature"))
_NEW_ROW = insert(events).on_conflict_do_nothing().returning(events.c.id, *(events.c[one] for one in _PLACE))
_DELETE_ROWS = delete(events).where(_OF_TRANSACTION)
_DELETE_ROW = delete(events).where(*(events.c[one] == bindparam(one) for one in _PLACE))
_counted = insert(streams)
_COUNT_ON = _counted.on_conflict_do_update(
    index_elements=["stream"],
    set_={
        "last": case((streams.c.last < _counted.excluded.last, _counted.excluded.last), else_=streams.c.last),
        "count": streams.c.count + _counted.excluded.count,
    },
)
_CLOSE_HOLE = delete(holes).where(holes.c.after == bindparam("after"))
_DELETE_CURSORS, _DELETE_STREAMS = delete(cursors), delete(streams)


@dataclass(frozen=True, slots=True)
class StoredEvent:
    """A row: an event of the program, or one of the other facts, such as a `Deposit`.

    `id` grows in the order of storing. In `data`, addresses are base58 and other bytes are lower-case hex. `block_time`
    is in Unix seconds. It is 0, and `fee_payer` and `message_hash` are empty, if the row's transaction is not stored.
    `org` is `None` only for `TransactionReverted`.
    """

    id: int
    signature: str
    instruction: int
    inner: int
    slot: int
    block_time: int
    fee_payer: str
    message_hash: str
    name: str
    org: str | None
    data: dict[str, Any]


@dataclass(frozen=True, slots=True)
class LastRow:
    """The newest row of one organisation within one stored transaction. `id` is the row's id."""

    message_hash: str
    slot: int
    org: str
    id: int


class EventTables:
    """Reads and writes the tables, from one thread."""

    def __init__(
        self,
        connection: Connection,
        atomic: Callable[[], AbstractContextManager[object]] = nullcontext,
        *,
        orgs: Collection[str] | None = None,
    ) -> None:
        """``atomic`` returns the context of one transaction. With `orgs`, events of other organisations are not stored.

        By default, the connection must already be in a transaction.
        """
        self._connection = connection
        self._atomic = atomic
        self._orgs = None if orgs is None else frozenset(orgs)
        self.accounts = TokenAccounts(connection)
        self.unread = UnreadAllowances(connection)
        self.transaction_holes = TransactionHoles(connection)
        self.last_stored = 0
        """Id of the last row stored by this object, or 0."""

    # Reading

    def changes(self, after: int, limit: int) -> list[StoredEvent]:
        """Return at most `limit` rows with an id above `after`, in order."""
        return fetch_all(self._connection, StoredEvent, _CHANGES, {"after": after, "limit": limit})

    def newest_row(self) -> int:
        """Return the id of the last stored row, or 0 if there is none."""
        return self._number(_NEWEST_ROW)

    def cursor(self, name: str) -> str | None:
        """Return the signature at the cursor `name`, or None if there is no such cursor.

        The history of the cursor's program or token account up to this signature is stored or known as holes.
        """
        return self.position(name)[0]

    def position(self, name: str) -> tuple[str | None, int | None]:
        """Return the signature at the cursor `name`, and its slot, which is None if it is neither stored nor a hole."""
        found = self._rows(_POSITION, name=name)
        return (found[0][0], found[0][1]) if found else (None, None)

    def unknown(self, signatures: Sequence[str]) -> list[str]:
        """Return the signatures that are neither stored nor holes, in their order."""
        return self._except(signatures, _KNOWN)

    def without_events(self, signatures: Sequence[str]) -> list[str]:
        """Return the signatures without a stored event of the program, in their order."""
        return self._except(signatures, _WITH_EVENTS)

    def _except(self, signatures: Sequence[str], query: Executable) -> list[str]:
        """Return the signatures that a query does not find, in their order."""
        found = {one for (one,) in self._rows(query, signatures=list(signatures))} if signatures else ()
        return [one for one in signatures if one not in found]

    def last_rows(self, message_hashes: Sequence[str]) -> list[LastRow]:
        """Return each organisation's newest row in the stored transactions with one of these messages."""
        return fetch_all(self._connection, LastRow, _LAST_ROWS, {"message_hashes": list(message_hashes)})

    def unfinalized(self, up_to_slot: int, limit: int, skip: int = 0) -> dict[str, int]:
        """Return transactions up to a slot that are not marked as finalized, oldest first, without the first `skip`.

        The result is a dictionary of slots by signature.
        """
        return dict(self._rows(_UNFINALIZED, slot=up_to_slot, limit=limit, skip=skip))

    def last_finalized(self, up_to_slot: int = _LAST_SLOT) -> str | None:
        """Return the newest finalized signature of the slots up to `up_to_slot`, or None."""
        found: str | None = scalar(self._connection, _LAST_FINALIZED, {"slot": up_to_slot})
        return found

    def newest_block_time(self) -> int | None:
        """Return the Unix second of the newest block with a stored transaction, or None if no transaction is stored."""
        found: int | None = scalar(self._connection, _NEWEST_BLOCK_TIME, {})
        return found

    def slot_of(self, signature: str) -> int | None:
        """Return the slot of a stored transaction, or None if it is not stored."""
        found: int | None = scalar(self._connection, _SLOT, {"signature": signature})
        return found

    def streams_with_gaps(self) -> list[str]:
        """Return the vaults and organisations with a missing event, shown by a gap in their sequence numbers."""
        return [stream for (stream,) in self._rows(_WITH_GAPS)]

    def streams_of(self, signature: str) -> set[str]:
        """Return the vaults and organisations that have events in a transaction."""
        return {stream for (data,) in self._rows(_DATA_OF, signature=signature) for stream in _streams(data)}

    def count_up_to(self, stream: str, slot: int) -> int:
        """Return the number of stored events of a vault or organisation up to a slot."""
        later = self._rows(_DATA_AFTER, slot=slot)
        return self._numbers(stream)[1] - sum(stream in _streams(data) for (data,) in later)

    def holds(self, stream: str, sequence: int) -> bool:
        """Return True if all events of a vault or organisation up to this sequence number are stored.

        Also requires that no event is missing between later stored ones.
        """
        last, count = self._numbers(stream)
        return last == count and last >= sequence

    def sequence_of(self, stream: str) -> int | None:
        """Return the number of a vault's or organisation's last event, or `None` if an earlier one is missing."""
        last, count = self._numbers(stream)
        return last if last == count else None

    def _numbers(self, stream: str) -> tuple[int, int]:
        """Return the number of a stream's last event, and its number of stored events."""
        found = self._rows(_STREAM, stream=stream)
        return (found[0][0], found[0][1]) if found else (0, 0)

    def holes(self) -> list[Hole]:
        """Return the parts of the history that no node has served, oldest first."""
        return fetch_all(self._connection, Hole, _HOLES, {})

    def count_events(self) -> int:
        """Return the number of stored events of the program."""
        return self._number(_COUNT_EVENTS)

    def count_rows(self) -> int:
        """Return the number of stored rows: events of the program and other facts."""
        return self._number(_COUNT_ROWS)

    def _rows(self, query: Executable, **values: Any) -> Sequence[Any]:
        return rows(self._connection, query, values)[1]

    def _number(self, query: Executable) -> int:
        return int(scalar(self._connection, query, {}))

    # Writing

    def record(self, transactions: Iterable[ChainTransaction], *, cursor: tuple[str, str] | None = None) -> int:
        """Store transactions, oldest first, and move a cursor, given as its name and signature.

        Transactions that are already stored do not change. Returns the number of rows added to the events.
        """
        with self._atomic():
            added = self._add(list(transactions))
            if cursor is not None:
                upsert(self._connection, cursors, {"name": cursor[0], "signature": cursor[1]}, keys=("name",))
        return added

    def replace(self, transactions: Sequence[ChainTransaction]) -> int:
        """Store transactions like `record`, but replace transactions that were stored without their events.

        False deposits derived from such a transaction are taken back.
        """
        with self._atomic():
            emptied = set(self.without_events([one.signature for one in transactions]))
            for one in transactions:
                if one.signature not in emptied or not any(self._follows(each.event.data) for each in one.events):
                    continue
                if self._rows(_ROWS_OF, signature=one.signature):
                    self._take_back(one.signature, one.slot)
                self._run(_DELETE_TRANSACTION, signature=one.signature)
            return self._add(transactions)

    def note_hole(self, hole: Hole) -> None:
        """Store a part of the history that the node does not have."""
        with self._atomic():
            upsert(self._connection, holes, columns_of(hole), keys=("after",), replace=False)

    def close_hole(self, hole: Hole) -> None:
        """Remove a hole, because its transactions are stored or known to be unreadable now."""
        with self._atomic():
            self._run(_CLOSE_HOLE, after=hole.after)

    def finalize(self, signatures: Sequence[str]) -> None:
        """Mark transactions as finalized."""
        with self._atomic():
            if signatures:
                self._run(_FINALIZE, signatures=list(signatures))

    def roll_back(self, signatures: Sequence[str]) -> None:
        """Remove rolled-back transactions and add a row about each for the readers of `changes`.

        The cursors are also deleted, so that the next reading of the history finds the replacing transactions.
        """
        with self._atomic():
            for signature in signatures:
                slot = self.slot_of(signature)
                if slot is None:
                    continue
                self._take_back(signature, slot)
            self._run(_DELETE_CURSORS)
            self._recount()
            self.accounts.mark_all_suspect()

    def _take_back(self, signature: str, slot: int) -> None:
        """Remove a transaction with its rows and add a row about the removal."""
        gone = [_subject(*row) for row in self._rows(_ROWS_OF, signature=signature)]
        self._run(_DELETE_ROWS, signature=signature)
        self._run(_DELETE_TRANSACTION, signature=signature)
        self.unread.forget(signature)
        self._insert((signature, NOT_AN_EVENT, NOT_AN_EVENT), slot, REVERTED, None, {"events": gone})

    def observe(self, known: FollowedAccount, balance: int, slot: int) -> bool:
        """Store a followed account's balance as read from the chain, unless a newer one is stored.

        `known` is the stored account before the read. If the stored account has changed since, nothing is stored,
        because it is unknown which balance is newer. Comparing slots is not enough, because a node may be read while
        its slot still accepts transactions.

        Returns True if the balance was stored. A row is added even if the balance is unchanged: the transactions of one
        slot may be stored in another order than they landed, so readers may have computed a different balance.
        """
        with self._atomic():
            found = self.accounts.get(known.address)
            if found is None or found.slot > slot or (found.balance, found.slot) != (known.balance, known.slot):
                return False
            self.accounts.set_balance(found.address, balance, slot)
            data = {"token_account": found.address, "vault": found.vault, "balance": balance}
            # There is no transaction to name, so store the account's address as the signature.
            self._insert((found.address, NOT_AN_EVENT, slot), slot, BALANCE_OBSERVED, found.org, data)
            return True

    def record_reading(self, one: UnreadAllowance, summary: dict[str, Any]) -> None:
        """Store the reading of a settled allowance, unless its settlement was rolled back in the meantime."""
        with self._atomic():
            if self.unread.remove(one):
                # The row is not an event of the program, and its key must not collide with a deposit's.
                key = (one.signature, NOT_AN_EVENT, _INDEXES * (one.instruction + 1) + one.inner)
                self._insert(key, one.slot, ALLOWANCE_READ, one.org, summary)

    def mark_suspect(self, account: str) -> None:
        """Mark a followed account as suspect, because it may have moved in a transaction that is not stored."""
        with self._atomic():
            self.accounts.mark_suspect(account)

    def clear_suspect(self, account: str) -> None:
        """Mark a followed account as no longer suspect, because its history has been read."""
        with self._atomic():
            self.accounts.clear_suspect(account)

    def _add(self, transactions: Sequence[ChainTransaction]) -> int:
        """Store transactions with their rows, using one statement per table."""
        added = self._add_new(transactions)
        accounts = BatchAccounts(self.accounts, [move for one in added for move in one.moves])
        new: list[_Row] = []
        counts: dict[str, tuple[int, int]] = {}
        for transaction in added:
            events = [one for one in transaction.events if self._follows(one.event.data)]
            for one in events:
                data = one.event.data
                key = (transaction.signature, one.instruction, one.inner)
                new.append(_row(key, transaction.slot, one.event.name, str(data["org"]), data))
                _count(counts, data)
                self.unread.note(key, one.event)
            for deposit in accounts.follow(transaction.moves, [one.event for one in events], transaction.slot):
                data = {
                    "token_account": deposit.account,
                    "vault": deposit.vault,
                    "amount": deposit.amount,
                    "balance": deposit.balance,
                }
                key = (transaction.signature, NOT_AN_EVENT, deposit.index)
                new.append(_row(key, transaction.slot, DEPOSIT, deposit.org, data))
        accounts.flush()
        self._put_streams(counts)
        self._put(new)
        return len(new)

    def _add_new(self, transactions: Sequence[ChainTransaction]) -> list[ChainTransaction]:
        """Store only the transactions, and return the newly stored ones."""
        each: dict[str, ChainTransaction] = {}
        for one in transactions:
            each.setdefault(one.signature, one)
        columns = ("signature", "slot", "block_time", "fee_payer", "message_hash")
        found = [{name: getattr(one, name) for name in columns} for one in each.values()]
        new = {signature for (signature,) in execute_all(self._connection, _NEW_TRANSACTION, found)}
        return [one for one in each.values() if one.signature in new]

    def _put_streams(self, found: Mapping[str, tuple[int, int]]) -> None:
        each = [{"stream": stream, "last": last, "count": count} for stream, (last, count) in found.items()]
        execute_all(self._connection, _COUNT_ON, each)

    def _recount(self) -> None:
        self._run(_DELETE_STREAMS)
        found: dict[str, tuple[int, int]] = {}
        for (data,) in self._rows(_DATA):
            _count(found, data)
        self._put_streams(found)

    def _insert(self, key: _Key, slot: int, name: str, org: str | None, data: dict[str, Any]) -> None:
        self._put([_row(key, slot, name, org, data)])

    def _put(self, found: Sequence[_Row]) -> None:
        """Store rows in their order. A row that replaces another gets a new id, which no reader has passed yet."""
        stored = {tuple(key): number for number, *key in execute_all(self._connection, _NEW_ROW, found)}
        for row in found:
            key = tuple([row[one] for one in _PLACE])
            if key not in stored:
                execute(self._connection, _DELETE_ROW, {}, **{one: row[one] for one in _PLACE})
                ((stored[key], *_),) = execute_all(self._connection, _NEW_ROW, [row])
        self.last_stored = max(stored.values(), default=self.last_stored)

    def _run(self, statement: UpdateBase, **values: Any) -> None:
        execute(self._connection, statement, {}, **values)

    def _follows(self, data: dict[str, Any]) -> bool:
        return self._orgs is None or str(data["org"]) in self._orgs


class Events(Protocol):
    """Access to the tables.

    On PostgreSQL, each piece of work passed to `read` or `write` runs in one transaction. In a file, each writing
    method of `EventTables` is a transaction of its own.
    """

    async def read(self, work: Callable[[EventTables], T]) -> T:
        """Run work that only reads, and return its result."""

    async def look_up(self, work: Callable[[EventTables], T]) -> T:
        """Run one query, or a few that need not see the same state, and return the result."""

    async def write(self, work: Callable[[EventTables], T]) -> T:
        """Run work that writes and return its result after the commit. The work must have no other side effects."""

    def close(self) -> None:
        """Close the resources that were opened for the tables."""


class EventStore(EventTables):
    """The tables in a SQLite file, which is the indexer's own database; see `Events`."""

    def __init__(self, path: str | Path, *, orgs: Collection[str] | None = None) -> None:
        """Open or create the file. With `orgs`, events of other organisations are not stored."""
        # With no isolation level, statements do not open implicit transactions, which would never be committed.
        keep_private(path)
        self._file = Database(sqlite3.connect(path, isolation_level=None))
        # The contents can be read from the chain again, so commits need not wait for the disk.
        for pragma in ("journal_mode=WAL", "synchronous=NORMAL", "temp_store=MEMORY"):
            self._file.conn.execute(f"PRAGMA {pragma}")
        engine = create_engine("sqlite://", creator=lambda: self._file.conn, poolclass=StaticPool)
        super().__init__(engine.connect(), self._file.atomic, orgs=orgs)
        with self._file.atomic():
            prepare(self._connection)

    async def read(self, work: Callable[[EventTables], T]) -> T:
        """Run `work` in the event loop, where it takes microseconds."""
        return work(self)

    look_up = write = read

    def close(self) -> None:
        """Close the file."""
        self._connection.close()
        self._file.close()


def _row(key: _Key, slot: int, name: str, org: str | None, data: dict[str, Any]) -> _Row:
    return {**dict(zip(_PLACE, key, strict=True)), "slot": slot, "name": name, "org": org, "data": data}


def _count(streams: dict[str, tuple[int, int]], data: dict[str, Any]) -> None:
    """Update the last sequence number and the event count of an event's vault and organisation."""
    for stream, number in _streams(data).items():
        last, count = streams.get(stream, (0, 0))
        streams[stream] = (max(last, number), count + 1)


def _streams(data: dict[str, Any]) -> dict[str, int]:
    """Return the sequence numbers of an event by stream: its vault, its organisation, or both."""
    streams = {str(data.get("vault", data["org"])): int(data["sequence"])}
    if "org_sequence" in data:
        streams[str(data["org"])] = int(data["org_sequence"])
    return streams


def _subject(name: str, org: str, data: dict[str, Any]) -> dict[str, Any]:
    """Return the subject of a deleted row: its name, organisation, vault and receiver."""
    return {"name": name, "org": org, **{key: data[key] for key in ("vault", "receiver") if key in data}}
