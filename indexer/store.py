"""The indexer's tables: decoded events, and cursors, which move in the transaction that stores the events."""

import json
import sqlite3
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeVar

from solders.pubkey import Pubkey
from sqlite_utils import Database

from indexer.accounts import BatchAccounts, FollowedAccount, TokenAccounts
from indexer.holes import TransactionHoles
from indexer.records import ChainTransaction, Hole
from indexer.schema import prepare
from indexer.statements import Statements, insert_rows, parts
from indexer.unread_allowances import UnreadAllowance, UnreadAllowances

NOT_AN_EVENT = -1
"""Value of `instruction` in rows that are not events of the program."""
DEPOSIT = "Deposit"
"""Name of a row: tokens arrived in a followed account other than by a funding or a withdrawal."""
BALANCE_OBSERVED = "BalanceObserved"
"""Name of a row: a followed account's balance was read from the chain, because the stored one may be wrong."""
ALLOWANCE_READ = "AllowanceRead"
"""Name of a row: the transfers of a settled allowance's delegate were read from the chain."""
REVERTED = "TransactionReverted"
"""Name of a row: the transaction was rolled back, or is stored again because its events were missing.

The data's `events` name the subjects of its deleted rows.
"""

T = TypeVar("T")
_Key = tuple[str, int, int]
_Row = tuple[str, int, int, int, str, str | None, str]
_INDEXES = 256
"""Maximum number of accounts in a transaction. Deposits are numbered by the account's index."""
_LAST_SLOT = 2**63 - 1
"""The largest integer that the database can hold."""


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

    def __init__(self, statements: Statements, *, orgs: Collection[str] | None = None) -> None:
        """With `orgs`, events of other organisations are not stored."""
        self._db = statements
        self._orgs = None if orgs is None else frozenset(orgs)
        self.accounts = TokenAccounts(statements)
        self.unread = UnreadAllowances(statements)
        self.transaction_holes = TransactionHoles(statements)
        self.last_stored = 0
        """Id of the last row stored by this object, or 0."""

    # Reading

    def changes(self, after: int, limit: int) -> list[StoredEvent]:
        """Return at most `limit` rows with an id above `after`, in order."""
        rows = self._db.execute(
            'SELECT e.id, e.signature, e.instruction, e."inner", e.slot, coalesce(t.block_time, 0),'
            " coalesce(t.fee_payer, ''), coalesce(t.message_hash, ''), e.name, e.org, e.data"
            " FROM events e LEFT JOIN transactions t ON t.signature = e.signature"
            " WHERE e.id > ? ORDER BY e.id LIMIT ?",
            [after, limit],
        )
        return [StoredEvent(*(*row[:-1], json.loads(row[-1]))) for row in rows]

    def newest_row(self) -> int:
        """Return the id of the last stored row, or 0 if there is none."""
        return int(self._db.execute("SELECT coalesce(max(id), 0) FROM events").fetchone()[0])

    def cursor(self, name: str) -> str | None:
        """Return the signature at the cursor `name`, or None if there is no such cursor.

        The history of the cursor's program or token account up to this signature is stored or known as holes.
        """
        row = self._db.execute("SELECT signature FROM cursors WHERE name = ?", [name]).fetchone()
        return None if row is None else str(row[0])

    def position(self, name: str) -> tuple[str | None, int | None]:
        """Return the cursor `name` and its slot, which is None if its transaction is neither stored nor a hole."""
        row = self._db.execute(
            "SELECT c.signature, coalesce(t.slot, h.slot) FROM cursors c"
            " LEFT JOIN transactions t ON t.signature = c.signature"
            " LEFT JOIN transaction_holes h ON h.signature = c.signature WHERE c.name = ?",
            [name],
        ).fetchone()
        return (None, None) if row is None else (str(row[0]), None if row[1] is None else int(row[1]))

    def unknown(self, signatures: Sequence[str]) -> list[str]:
        """Return the signatures that are neither stored nor holes, in their order."""
        query = (
            "SELECT signature FROM transactions WHERE signature IN ({0})"
            " UNION ALL SELECT signature FROM transaction_holes WHERE signature IN ({0})"
        )
        known = self._among(signatures, query, times=2)
        return [one for one in signatures if one not in known]

    def without_events(self, signatures: Sequence[str]) -> list[str]:
        """Return the signatures without a stored event of the program, in their order."""
        query = f"SELECT signature FROM events WHERE instruction <> {NOT_AN_EVENT} AND signature IN ({{0}})"  # noqa: S608 - a number
        known = self._among(signatures, query)
        return [one for one in signatures if one not in known]

    def _among(self, signatures: Sequence[str], query: str, times: int = 1) -> set[str]:
        """Return the signatures that a query finds. All signatures replace each `{0}` in the query."""
        found: set[str] = set()
        for part in parts(signatures):
            found |= {row[0] for row in self._db.execute(query.format(",".join("?" * len(part))), [*part] * times)}
        return found

    def last_rows(self, message_hashes: Sequence[str]) -> list[LastRow]:
        """Return each organisation's newest row in the stored transactions with one of these messages."""
        marks = ",".join("?" * len(message_hashes))
        rows = self._db.execute(
            "SELECT t.message_hash, t.slot, e.org, max(e.id)"  # noqa: S608 - only question marks
            " FROM transactions t JOIN events e ON e.signature = t.signature"
            f" WHERE t.message_hash IN ({marks}) GROUP BY t.message_hash, t.slot, e.org",
            list(message_hashes),
        )
        return [LastRow(*row) for row in rows]

    def unfinalized(self, up_to_slot: int, limit: int, skip: int = 0) -> dict[str, int]:
        """Return transactions up to a slot that are not marked as finalized, oldest first, without the first `skip`.

        The result is a dictionary of slots by signature.
        """
        rows = self._db.execute(
            "SELECT signature, slot FROM transactions WHERE finalized = 0 AND slot <= ?"
            " ORDER BY slot, signature LIMIT ? OFFSET ?",
            [up_to_slot, limit, skip],
        )
        return {str(signature): int(slot) for signature, slot in rows}

    def last_finalized(self, up_to_slot: int = _LAST_SLOT) -> str | None:
        """Return the newest finalized signature of the slots up to `up_to_slot`, or None."""
        row = self._db.execute(
            "SELECT signature FROM transactions WHERE finalized = 1 AND slot <= ? ORDER BY slot DESC LIMIT 1",
            [up_to_slot],
        ).fetchone()
        return None if row is None else str(row[0])

    def newest_block_time(self) -> int | None:
        """Return the Unix second of the newest block with a stored transaction, or None if no transaction is stored."""
        # Use one query for each of the two partial indexes.
        rows = self._db.execute(
            "SELECT max(block_time) FROM ("
            "SELECT * FROM (SELECT block_time FROM transactions WHERE finalized = 0 ORDER BY slot DESC LIMIT 1) AS a "
            "UNION ALL "
            "SELECT * FROM (SELECT block_time FROM transactions WHERE finalized = 1 ORDER BY slot DESC LIMIT 1) AS b"
            ") AS newest"
        ).fetchone()
        return None if rows[0] is None else int(rows[0])

    def slot_of(self, signature: str) -> int | None:
        """Return the slot of a stored transaction, or None if it is not stored."""
        row = self._db.execute("SELECT slot FROM transactions WHERE signature = ?", [signature]).fetchone()
        return None if row is None else int(row[0])

    def streams_with_gaps(self) -> list[str]:
        """Return the vaults and organisations with a missing event, shown by a gap in their sequence numbers."""
        return [row[0] for row in self._db.execute("SELECT stream FROM streams WHERE last <> count")]

    def streams_of(self, signature: str) -> set[str]:
        """Return the vaults and organisations that have events in a transaction."""
        found = self._db.execute(
            "SELECT data FROM events WHERE signature = ? AND instruction <> ?", [signature, NOT_AN_EVENT]
        )
        return {stream for (data,) in found for stream in _streams(json.loads(data))}

    def count_up_to(self, stream: str, slot: int) -> int:
        """Return the number of stored events of a vault or organisation up to a slot."""
        count = self._db.execute("SELECT count FROM streams WHERE stream = ?", [stream]).fetchone()
        later = self._db.execute("SELECT data FROM events WHERE slot > ? AND instruction <> ?", [slot, NOT_AN_EVENT])
        return (count[0] if count else 0) - sum(stream in _streams(json.loads(data)) for (data,) in later)

    def holds(self, stream: str, sequence: int) -> bool:
        """Return True if all events of a vault or organisation up to this sequence number are stored.

        Also requires that no event is missing between later stored ones.
        """
        row = self._db.execute("SELECT last, count FROM streams WHERE stream = ?", [stream]).fetchone()
        last, count = row or (0, 0)
        return bool(last == count and last >= sequence)

    def sequence_of(self, stream: str) -> int | None:
        """Return the number of a vault's or organisation's last event, or `None` if an earlier one is missing."""
        row = self._db.execute("SELECT last, count FROM streams WHERE stream = ?", [stream]).fetchone()
        last, count = row or (0, 0)
        return int(last) if last == count else None

    def holes(self) -> list[Hole]:
        """Return the parts of the history that no node has served, oldest first."""
        rows = self._db.execute("SELECT after, after_slot, before_slot FROM holes ORDER BY after_slot")
        return [Hole(*row) for row in rows]

    def count_events(self) -> int:
        """Return the number of stored events of the program."""
        row = self._db.execute("SELECT count(*) FROM events WHERE instruction <> ?", [NOT_AN_EVENT]).fetchone()
        return int(row[0])

    def count_rows(self) -> int:
        """Return the number of stored rows: events of the program and other facts."""
        return int(self._db.execute("SELECT count(*) FROM events").fetchone()[0])

    # Writing

    def record(self, transactions: Iterable[ChainTransaction], *, cursor: tuple[str, str] | None = None) -> int:
        """Store transactions, oldest first, and move a cursor, given as its name and signature.

        Transactions that are already stored do not change. Returns the number of rows added to the events.
        """
        with self._db.atomic():
            added = self._add(list(transactions))
            if cursor is not None:
                self._db.execute(
                    "INSERT INTO cursors (name, signature) VALUES (?, ?)"
                    " ON CONFLICT (name) DO UPDATE SET signature = excluded.signature",
                    cursor,
                )
        return added

    def replace(self, transactions: Sequence[ChainTransaction]) -> int:
        """Store transactions like `record`, but replace transactions that were stored without their events.

        False deposits derived from such a transaction are taken back.
        """
        with self._db.atomic():
            emptied = set(self.without_events([one.signature for one in transactions]))
            for one in transactions:
                if one.signature not in emptied or not any(self._follows(each.event.data) for each in one.events):
                    continue
                if self._db.execute("SELECT 1 FROM events WHERE signature = ? LIMIT 1", [one.signature]).fetchone():
                    self._take_back(one.signature, one.slot)
                self._db.execute("DELETE FROM transactions WHERE signature = ?", [one.signature])
            return self._add(transactions)

    def note_hole(self, hole: Hole) -> None:
        """Store a part of the history that the node does not have."""
        with self._db.atomic():
            self._db.execute(
                "INSERT INTO holes (after, after_slot, before_slot) VALUES (?, ?, ?) ON CONFLICT DO NOTHING",
                [hole.after, hole.after_slot, hole.before_slot],
            )

    def close_hole(self, hole: Hole) -> None:
        """Remove a hole, because its transactions are stored now."""
        with self._db.atomic():
            self._db.execute("DELETE FROM holes WHERE after = ?", [hole.after])

    def finalize(self, signatures: Sequence[str]) -> None:
        """Mark transactions as finalized."""
        with self._db.atomic():
            for part in parts(signatures):
                marks = ", ".join("?" * len(part))
                self._db.execute(f"UPDATE transactions SET finalized = 1 WHERE signature IN ({marks})", part)  # noqa: S608 - only question marks

    def roll_back(self, signatures: Sequence[str]) -> None:
        """Remove rolled-back transactions and add a row about each for the readers of `changes`.

        The cursors are also deleted, so that the next reading of the history finds the replacing transactions.
        """
        with self._db.atomic():
            for signature in signatures:
                slot = self.slot_of(signature)
                if slot is None:
                    continue
                self._take_back(signature, slot)
            self._db.execute("DELETE FROM cursors")
            self._recount()
            self.accounts.mark_all_suspect()

    def _take_back(self, signature: str, slot: int) -> None:
        """Remove a transaction with its rows and add a row about the removal."""
        found = "SELECT name, org, data FROM events WHERE signature = ? ORDER BY id"
        gone = [_subject(*row) for row in self._db.execute(found, [signature])]
        self._db.execute("DELETE FROM events WHERE signature = ?", [signature])
        self._db.execute("DELETE FROM transactions WHERE signature = ?", [signature])
        self.unread.forget(signature)
        self._insert((signature, NOT_AN_EVENT, NOT_AN_EVENT), slot, REVERTED, None, {"events": gone})

    def observe(self, known: FollowedAccount, balance: int, slot: int) -> bool:
        """Store a followed account's balance as read from the chain, unless a newer one is stored.

        `known` is the stored account before the read. If it has changed since, it is unknown which balance is
        newer. The slot does not decide, because a node may be read while its slot still accepts transactions.

        Returns True if the balance was stored. A row is added even if the balance is unchanged: the transactions of one
        slot may be stored in another order than they landed, so readers may have computed a different balance.
        """
        with self._db.atomic():
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
        with self._db.atomic():
            if self.unread.remove(one):
                # The row is not an event of the program, and its key must not collide with a deposit's.
                key = (one.signature, NOT_AN_EVENT, _INDEXES * (one.instruction + 1) + one.inner)
                self._insert(key, one.slot, ALLOWANCE_READ, one.org, summary)

    def mark_suspect(self, account: str) -> None:
        """Mark a followed account as suspect, because it may have moved in a transaction that is not stored."""
        with self._db.atomic():
            self.accounts.mark_suspect(account)

    def clear_suspect(self, account: str) -> None:
        """Mark a followed account as no longer suspect, because its whole history is stored."""
        with self._db.atomic():
            self.accounts.clear_suspect(account)

    def _add(self, transactions: Sequence[ChainTransaction]) -> int:
        """Store transactions with their rows, using one statement per table."""
        added = self._add_new(transactions)
        accounts = BatchAccounts(self.accounts, [move for one in added for move in one.moves])
        rows: list[_Row] = []
        streams: dict[str, tuple[int, int]] = {}
        for transaction in added:
            events = [one for one in transaction.events if self._follows(one.event.data)]
            for one in events:
                data = one.event.data
                key = (transaction.signature, one.instruction, one.inner)
                rows.append(_row(key, transaction.slot, one.event.name, str(data["org"]), data))
                _count(streams, data)
                self.unread.note(key, one.event)
            for deposit in accounts.follow(transaction.moves, [one.event for one in events], transaction.slot):
                data = {
                    "token_account": deposit.account,
                    "vault": deposit.vault,
                    "amount": deposit.amount,
                    "balance": deposit.balance,
                }
                key = (transaction.signature, NOT_AN_EVENT, deposit.index)
                rows.append(_row(key, transaction.slot, DEPOSIT, deposit.org, data))
        accounts.flush()
        self._put_streams(streams)
        self._put(rows)
        return len(rows)

    def _add_new(self, transactions: Sequence[ChainTransaction]) -> list[ChainTransaction]:
        """Store only the transactions, and return the newly stored ones."""
        each: dict[str, ChainTransaction] = {}
        for one in transactions:
            each.setdefault(one.signature, one)
        rows = [(one.signature, one.slot, one.block_time, one.fee_payer, one.message_hash) for one in each.values()]
        insert = "INSERT INTO transactions (signature, slot, block_time, fee_payer, message_hash)"
        new = {row[0] for row in insert_rows(self._db, insert, rows, "ON CONFLICT DO NOTHING RETURNING signature")}
        return [one for one in each.values() if one.signature in new]

    def _put_streams(self, streams: Mapping[str, tuple[int, int]]) -> None:
        insert_rows(
            self._db,
            "INSERT INTO streams AS known (stream, last, count)",
            [(stream, *numbers) for stream, numbers in streams.items()],
            "ON CONFLICT (stream) DO UPDATE SET"
            " last = CASE WHEN known.last < excluded.last THEN excluded.last ELSE known.last END,"
            " count = known.count + excluded.count",
        )

    def _recount(self) -> None:
        self._db.execute("DELETE FROM streams")
        streams: dict[str, tuple[int, int]] = {}
        for (data,) in self._db.execute("SELECT data FROM events WHERE instruction <> ?", [NOT_AN_EVENT]):
            _count(streams, json.loads(data))
        self._put_streams(streams)

    def _insert(self, key: _Key, slot: int, name: str, org: str | None, data: dict[str, Any]) -> None:
        self._put([_row(key, slot, name, org, data)])

    def _put(self, rows: Sequence[_Row]) -> None:
        """Store rows in their order. A row that replaces another gets a new id, which no reader has passed yet."""
        insert = 'INSERT INTO events (signature, instruction, "inner", slot, name, org, data)'
        places = 'signature, instruction, "inner"'
        stored = {
            tuple(key): number
            for number, *key in insert_rows(self._db, insert, rows, f"ON CONFLICT DO NOTHING RETURNING id, {places}")
        }
        for row in rows:
            if row[:3] not in stored:
                delete = 'DELETE FROM events WHERE signature = ? AND instruction = ? AND "inner" = ?'
                self._db.execute(delete, row[:3])
                ((number, *_),) = insert_rows(self._db, insert, [row], "RETURNING id")
                stored[row[:3]] = number
        self.last_stored = max(stored.values(), default=self.last_stored)

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
        self._file = Database(sqlite3.connect(path, isolation_level=None))
        prepare(self._file)
        super().__init__(_Connection(self._file), orgs=orgs)

    async def read(self, work: Callable[[EventTables], T]) -> T:
        """Run `work` in the event loop, where it takes microseconds."""
        return work(self)

    look_up = write = read

    def close(self) -> None:
        """Close the file."""
        self._file.close()


class _Connection:
    def __init__(self, file: Database) -> None:
        self.execute = file.conn.execute
        self.atomic = file.atomic


def _row(key: _Key, slot: int, name: str, org: str | None, data: dict[str, Any]) -> _Row:
    return (*key, slot, name, org, json.dumps(data, default=_plain, separators=(",", ":")))


def _count(streams: dict[str, tuple[int, int]], data: dict[str, Any]) -> None:
    """Add an event to the last sequence number and the count of its vault and organisation."""
    for stream, number in _streams(data).items():
        last, count = streams.get(stream, (0, 0))
        streams[stream] = (max(last, number), count + 1)


def _streams(data: dict[str, Any]) -> dict[str, int]:
    """Return the vault, the organisation or both that count an event, with its sequence number there."""
    streams = {str(data.get("vault", data["org"])): int(data["sequence"])}
    if "org_sequence" in data:
        streams[str(data["org"])] = int(data["org_sequence"])
    return streams


def _subject(name: str, org: str, data: str) -> dict[str, Any]:
    """Return the subject of a deleted row: its name, organisation, vault and receiver."""
    fields = json.loads(data)
    return {"name": name, "org": org, **{key: fields[key] for key in ("vault", "receiver") if key in fields}}


def _plain(value: Any) -> str:
    """Return the text for values that JSON lacks: addresses as base58, other bytes as hex."""
    if isinstance(value, Pubkey):
        return str(value)
    if isinstance(value, bytes):
        return value.hex()
    raise TypeError(f"an event cannot hold a {type(value).__name__}")
