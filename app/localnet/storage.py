"""The embedded chain's SQLite file: accounts and history, written together in one transaction per group of executions.

What `commit` returned from is on disk (WAL with synchronous=FULL), and accounts and history always stem from the same
commit, so that a process killed at any moment finds a consistent chain.
"""

import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pydantic_core
from solders.account import Account
from solders.pubkey import Pubkey
from solders.signature import Signature

FORMAT = 1
"""Version of the table layout below."""

_SCHEMA = """
CREATE TABLE state (key TEXT PRIMARY KEY, value) WITHOUT ROWID;
CREATE TABLE accounts (
    address BLOB PRIMARY KEY,
    lamports INTEGER NOT NULL,
    owner BLOB NOT NULL,           -- program that owns the account
    executable INTEGER NOT NULL,
    rent_epoch INTEGER NOT NULL,   -- u64 as two's complement
    token_owner BLOB,              -- wallet of a token account, else null
    data BLOB NOT NULL
);
CREATE INDEX accounts_by_owner ON accounts (owner);
CREATE INDEX accounts_by_token_owner ON accounts (token_owner) WHERE token_owner IS NOT NULL;
CREATE TABLE transactions (
    seq INTEGER PRIMARY KEY,       -- order of execution
    signature BLOB NOT NULL UNIQUE,
    slot INTEGER NOT NULL,
    block_time INTEGER NOT NULL,
    err TEXT,                      -- JSON; null for success
    memo TEXT,
    wire BLOB NOT NULL,
    meta TEXT NOT NULL             -- JSON as getTransaction returns it
);
CREATE TABLE address_history (address BLOB, seq INTEGER, PRIMARY KEY (address, seq)) WITHOUT ROWID;
"""

_TRANSACTION_COLUMNS = "seq, signature, slot, block_time, err, memo, wire, meta"
_STATUS_COLUMNS = "seq, signature, slot, block_time, err, memo"


@dataclass(frozen=True, slots=True)
class StoredStatus:
    """One line of the history without the transaction itself."""

    seq: int
    signature: bytes
    slot: int
    block_time: int
    err: str | None
    memo: str | None


@dataclass(frozen=True, slots=True)
class StoredTransaction(StoredStatus):
    """A transaction with its outcome; `meta` and `err` are JSON texts."""

    wire: bytes
    meta: str

    @property
    def wire_is_versioned(self) -> bool:
        """Whether this is a versioned transaction: the first byte of its message has the highest bit set."""
        signatures = self.wire[0]  # fewer than 128 fit into a transaction, so the count is one byte
        return bool(self.wire[1 + 64 * signatures] & 0x80)


@dataclass(frozen=True, slots=True)
class AccountRow:
    """An account to be written; `account` None deletes it."""

    address: Pubkey
    account: Account | None
    token_owner: bytes | None


@dataclass(frozen=True, slots=True)
class WriteBatch:
    """Everything one commit writes: `addresses` holds the (address, seq) pairs of the transactions."""

    accounts: Sequence[AccountRow]
    transactions: Sequence[StoredTransaction]
    addresses: Sequence[tuple[bytes, int]]
    time: float


class Storage:
    """Reads and writes one database; `path` None keeps it in memory.

    A file has two connections: readers see the last commit while the next one is being written by another thread.
    """

    def __init__(self, path: Path | None) -> None:
        """Open or create the database.

        Raises sqlite3.Error: the file cannot be read or written. Raises ValueError: it has another format.
        """
        self.in_memory = path is None
        self._writer = self._connect(path)
        fresh = not self._writer.execute("SELECT 1 FROM sqlite_master WHERE name = 'state'").fetchone()
        if fresh:
            self._writer.executescript(f"BEGIN; {_SCHEMA} PRAGMA user_version = {FORMAT}; COMMIT;")
        found = self._writer.execute("PRAGMA user_version").fetchone()[0]
        if found != FORMAT:
            raise ValueError(f"{path} has format {found}, this version reads format {FORMAT}")
        self._reader = self._writer if path is None else self._connect(path)

    @staticmethod
    def _connect(path: Path | None) -> sqlite3.Connection:
        connection = sqlite3.connect(path or ":memory:", isolation_level=None, check_same_thread=False)
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute("PRAGMA cache_size = -8000")
        return connection

    def close(self) -> None:
        """Close the database; everything committed is in it."""
        self._reader.close()
        self._writer.close()

    def state(self) -> dict[str, Any]:
        """Return the stored settings of the chain; empty before genesis."""
        return dict(self._reader.execute("SELECT key, value FROM state"))

    def write_genesis(self, state: dict[str, Any], accounts: Iterable[AccountRow]) -> None:
        """Write the chain's settings and first accounts, all or nothing."""
        self._writer.execute("BEGIN IMMEDIATE")
        try:
            self._writer.executemany("INSERT INTO state VALUES (?, ?)", state.items())
            self._write_accounts(accounts)
        except BaseException:
            self._undo()
            raise
        self.commit()

    def stage(self, batch: WriteBatch) -> None:
        """Begin a transaction and put `batch` into it; nothing is written before `commit`.

        Raises sqlite3.Error: the transaction is undone.
        """
        self._writer.execute("BEGIN IMMEDIATE")
        try:
            self._write_accounts(batch.accounts)
            self._writer.executemany(
                f"INSERT INTO transactions ({_TRANSACTION_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?, ?)",  # noqa: S608 - fixed names
                [(t.seq, t.signature, t.slot, t.block_time, t.err, t.memo, t.wire, t.meta) for t in batch.transactions],
            )
            self._writer.executemany("INSERT INTO address_history VALUES (?, ?)", batch.addresses)
            self._writer.execute("INSERT OR REPLACE INTO state VALUES ('last_time', ?)", (batch.time,))
        except BaseException:
            self._undo()
            raise

    def commit(self) -> None:
        """Commit what was staged and return when it is on disk; the only call that waits for the disk.

        May run in another thread. Raises sqlite3.Error: nothing of it was written.
        """
        try:
            self._writer.execute("COMMIT")
        except BaseException:
            self._undo()
            raise

    def _undo(self) -> None:
        if self._writer.in_transaction:
            self._writer.execute("ROLLBACK")

    def _write_accounts(self, rows: Iterable[AccountRow]) -> None:
        gone, changed = [], []
        for row in rows:
            if row.account is None:
                gone.append((bytes(row.address),))
            else:
                changed.append(_account_values(row.address, row.account, row.token_owner))
        self._writer.executemany("DELETE FROM accounts WHERE address = ?", gone)
        self._writer.executemany("INSERT OR REPLACE INTO accounts VALUES (?, ?, ?, ?, ?, ?, ?)", changed)

    def accounts(self) -> Iterator[tuple[Pubkey, Account]]:
        """Return every stored account, programs last so that what they point to exists before them."""
        rows = self._reader.execute(
            "SELECT address, lamports, owner, executable, rent_epoch, data FROM accounts ORDER BY executable"
        )
        return (_account(row) for row in rows)

    def accounts_of_program(
        self, program: Pubkey, conditions: str, values: Sequence[Any]
    ) -> list[tuple[Pubkey, Account]]:
        """Return the accounts owned by `program` that meet the SQL `conditions` (" AND ..." or empty)."""
        rows = self._reader.execute(
            "SELECT address, lamports, owner, executable, rent_epoch, data FROM accounts"  # noqa: S608 - built from constants
            f" WHERE owner = ?{conditions} ORDER BY address",
            (bytes(program), *values),
        )
        return [_account(row) for row in rows]

    def accounts_of_token_owner(self, owner: Pubkey) -> list[tuple[Pubkey, Account]]:
        """Return the token accounts, of any token program, that belong to the wallet `owner`."""
        rows = self._reader.execute(
            "SELECT address, lamports, owner, executable, rent_epoch, data FROM accounts"
            " WHERE token_owner = ? ORDER BY address",
            (bytes(owner),),
        )
        return [_account(row) for row in rows]

    def transaction_count(self) -> int:
        """Return how many transactions the history holds."""
        return int(self._reader.execute("SELECT coalesce(max(seq), 0) FROM transactions").fetchone()[0])

    def transaction(self, signature: Signature) -> StoredTransaction | None:
        """Return the transaction with this signature."""
        row = self._reader.execute(
            f"SELECT {_TRANSACTION_COLUMNS} FROM transactions WHERE signature = ?",  # noqa: S608 - fixed names
            (bytes(signature),),
        ).fetchone()
        return StoredTransaction(*row) if row else None

    def status(self, signature: Signature) -> StoredStatus | None:
        """Return the outcome of the transaction with this signature."""
        row = self._reader.execute(
            f"SELECT {_STATUS_COLUMNS} FROM transactions WHERE signature = ?",  # noqa: S608 - fixed names
            (bytes(signature),),
        ).fetchone()
        return StoredStatus(*row) if row else None

    def history_of(self, address: Pubkey, before: int, after: int, max_slot: int, limit: int) -> list[StoredStatus]:
        """Return what mentions `address`, newest first, with `after` < seq < `before` and a slot up to `max_slot`."""
        rows = self._reader.execute(
            f"SELECT {_STATUS_COLUMNS} FROM address_history JOIN transactions USING (seq)"  # noqa: S608 - fixed names
            " WHERE address = ? AND seq < ? AND seq > ? AND slot <= ? ORDER BY seq DESC LIMIT ?",
            (bytes(address), before, after, max_slot, limit),
        )
        return [StoredStatus(*row) for row in rows]

    def wires_since(self, slot: int) -> Iterator[bytes]:
        """Return the serialised transactions executed in `slot` or later, newest first."""
        rows = self._reader.execute("SELECT slot, wire FROM transactions ORDER BY seq DESC")
        for executed_in, wire in rows:
            if executed_in < slot:
                rows.close()
                return
            yield wire


def to_json(value: Any) -> str:
    """Serialise compactly, as everything stored and answered is; takes a fifth of the time that `json` does."""
    return pydantic_core.to_json(value).decode()


def _account_values(address: Pubkey, account: Account, token_owner: bytes | None) -> tuple[Any, ...]:
    rent_epoch = account.rent_epoch - 2**64 if account.rent_epoch >= 2**63 else account.rent_epoch
    owner = bytes(account.owner)
    return bytes(address), account.lamports, owner, account.executable, rent_epoch, token_owner, account.data


def _account(row: tuple[Any, ...]) -> tuple[Pubkey, Account]:
    address, lamports, owner, executable, rent_epoch, data = row
    return Pubkey(address), Account(lamports, data, Pubkey(owner), bool(executable), rent_epoch % 2**64)
