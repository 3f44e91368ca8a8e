"""The embedded chain's SQLite file: accounts and history, written together in one transaction per group of executions.

When `commit` returns, the data is on disk (WAL with synchronous=FULL). Accounts and history always come from the same
commit, so the chain stays consistent even if the process is killed at any moment.
"""

import json
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pydantic_core
from solders.account import Account
from solders.pubkey import Pubkey
from solders.signature import Signature

from app.core.paths import keep_private
from app.localnet import tokens

FORMAT = 1
"""Version of the database's table layout."""

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

_SELECT_ACCOUNTS = "SELECT address, lamports, owner, executable, rent_epoch, data FROM accounts"
_COLUMNS = "seq, signature, slot, block_time, err, memo, wire, meta"
# A transaction's position in its slot. The column `slot` has no index, but slots rise with `seq`. The query therefore
# reads backwards from the transaction and stops at the first one of an earlier slot.
_INDEX = (
    "transactions.seq - 1 - coalesce((SELECT earlier.seq FROM transactions AS earlier"
    " WHERE earlier.seq < transactions.seq AND earlier.slot < transactions.slot ORDER BY earlier.seq DESC LIMIT 1), 0)"
)
_STATUS_COLUMNS = f"seq, signature, slot, block_time, err, memo, {_INDEX}"
_TRANSACTION_COLUMNS = f"{_STATUS_COLUMNS}, wire, meta"


@dataclass(frozen=True, slots=True)
class StoredStatus:
    """One line of the history without the transaction itself.

    `err` is JSON text, or None for success. `index` counts from 0 in the slot; it is None before the row is written.
    """

    seq: int
    signature: bytes
    slot: int
    block_time: int
    err: str | None
    memo: str | None
    index: int | None

    @property
    def error(self) -> Any:
        """The transaction's error in JSON form, or None for success."""
        return self.err and json.loads(self.err)


@dataclass(frozen=True, slots=True)
class StoredTransaction(StoredStatus):
    """A transaction with its outcome. `meta` is JSON text."""

    wire: bytes
    meta: str

    @property
    def wire_is_versioned(self) -> bool:
        """True for a versioned transaction: the first byte of its message has the highest bit set."""
        signatures = self.wire[0]  # Fewer than 128 fit into a transaction, so the count takes one byte.
        return bool(self.wire[1 + 64 * signatures] & 0x80)


class Storage:
    """Reads and writes one database, in memory if `path` is None.

    A file has two connections, so readers see the last commit while another thread writes the next one.
    """

    def __init__(self, path: Path | None) -> None:
        """Open or create the database.

        Raises sqlite3.Error if the file cannot be read or written, and ValueError if it has another format.
        """
        self.in_memory = path is None
        if path is not None:
            keep_private(path)
        self._writer = self._connect(path)
        fresh = not self._writer.execute("SELECT 1 FROM sqlite_master WHERE name = 'state'").fetchone()
        if fresh:
            self._writer.executescript(f"BEGIN; {_SCHEMA} PRAGMA user_version = {FORMAT}; COMMIT;")
        found = self._writer.execute("PRAGMA user_version").fetchone()[0]
        if found != FORMAT:
            self._writer.close()
            raise ValueError(f"{path} has format {found}, but this version reads format {FORMAT}")
        self._reader = self._writer if path is None else self._connect(path)

    @staticmethod
    def _connect(path: Path | None) -> sqlite3.Connection:
        connection = sqlite3.connect(path or ":memory:", isolation_level=None, check_same_thread=False)
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute("PRAGMA cache_size = -8000")
        return connection

    def close(self) -> None:
        """Close the database. Everything committed is already on disk."""
        self._reader.close()
        self._writer.close()

    def state(self) -> dict[str, Any]:
        """Return the stored settings of the chain. They are empty before genesis."""
        return dict(self._reader.execute("SELECT key, value FROM state"))

    def stage(
        self,
        state: Mapping[str, Any],
        accounts: Sequence[tuple[Pubkey, Account | None]] = (),
        transactions: Sequence[StoredTransaction] = (),
        addresses: Sequence[tuple[bytes, int]] = (),
    ) -> None:
        """Begin a transaction and fill it. Nothing is written before `commit`.

        `state` holds settings of the chain. An account that is None is deleted. `addresses` are the (address, seq)
        pairs of the transactions. On sqlite3.Error, the transaction is rolled back.
        """
        write = self._writer.executemany
        self._writer.execute("BEGIN IMMEDIATE")
        try:
            write("INSERT OR REPLACE INTO state VALUES (?, ?)", state.items())
            gone, changed = [], []
            for address, account in accounts:
                if account is None:
                    gone.append((bytes(address),))
                else:
                    changed.append(_account_values(address, account))
            write("DELETE FROM accounts WHERE address = ?", gone)
            write("INSERT OR REPLACE INTO accounts VALUES (?, ?, ?, ?, ?, ?, ?)", changed)
            rows = ((t.seq, t.signature, t.slot, t.block_time, t.err, t.memo, t.wire, t.meta) for t in transactions)
            write(f"INSERT INTO transactions ({_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?, ?)", rows)  # noqa: S608 - fixed names
            write("INSERT INTO address_history VALUES (?, ?)", addresses)
        except BaseException:
            self._writer.rollback()
            raise

    def commit(self) -> None:
        """Commit the staged transaction and return when it is on disk. Only this call waits for the disk.

        May run in another thread. If it raises sqlite3.Error, nothing of the transaction was written.
        """
        try:
            self._writer.commit()
        except BaseException:
            self._writer.rollback()
            raise

    def accounts(self) -> Iterator[tuple[Pubkey, Account]]:
        """Return every stored account. Programs come last, so that the accounts they point to exist before them."""
        return self._accounts(" ORDER BY executable")

    def accounts_of_program(
        self, program: Pubkey, conditions: str, values: Sequence[Any]
    ) -> list[tuple[Pubkey, Account]]:
        """Return the accounts that `program` owns and that meet the SQL `conditions` (" AND ..." or empty)."""
        return list(self._accounts(f" WHERE owner = ?{conditions} ORDER BY address", bytes(program), *values))

    def accounts_of_token_owner(self, owner: Pubkey) -> list[tuple[Pubkey, Account]]:
        """Return the token accounts of the wallet `owner` under any token program."""
        return list(self._accounts(" WHERE token_owner = ? ORDER BY address", bytes(owner)))

    def _accounts(self, clauses: str, *values: Any) -> Iterator[tuple[Pubkey, Account]]:
        return (_account(row) for row in self._reader.execute(_SELECT_ACCOUNTS + clauses, values))

    def transaction_count(self) -> int:
        """Return the number of transactions in the history."""
        return int(self._reader.execute("SELECT coalesce(max(seq), 0) FROM transactions").fetchone()[0])

    def transaction(self, signature: Signature) -> StoredTransaction | None:
        """Return the transaction with this signature, or None if it is not in the history."""
        row = self._history_row(_TRANSACTION_COLUMNS, signature)
        return StoredTransaction(*row) if row else None

    def status(self, signature: Signature) -> StoredStatus | None:
        """Return the outcome of the transaction with this signature, or None if it is not in the history."""
        row = self._history_row(_STATUS_COLUMNS, signature)
        return StoredStatus(*row) if row else None

    def _history_row(self, columns: str, signature: Signature) -> Any:
        query = f"SELECT {columns} FROM transactions WHERE signature = ?"  # noqa: S608 - fixed names
        return self._reader.execute(query, (bytes(signature),)).fetchone()

    def history_of(self, address: Pubkey, before: int, after: int, max_slot: int, limit: int) -> list[StoredStatus]:
        """Return up to `limit` transactions of `address`, newest first.

        Only transactions with `after` < seq < `before` and slot <= `max_slot` are returned.
        """
        rows = self._reader.execute(
            f"SELECT {_STATUS_COLUMNS} FROM address_history JOIN transactions USING (seq)"  # noqa: S608 - fixed names
            " WHERE address = ? AND seq < ? AND seq > ? AND slot <= ? ORDER BY seq DESC LIMIT ?",
            (bytes(address), before, after, max_slot, limit),
        )
        return [StoredStatus(*row) for row in rows]

    def transactions_in(self, slot: int) -> list[StoredTransaction]:
        """Return the transactions executed in `slot`, in order of execution."""
        rows = self._reader.execute(
            f"SELECT {_TRANSACTION_COLUMNS} FROM transactions WHERE seq >= ? AND seq < ? ORDER BY seq",  # noqa: S608 - fixed names
            (self._first_from(slot), self._first_from(slot + 1)),
        )
        return [StoredTransaction(*row) for row in rows]

    def _first_from(self, slot: int) -> int:
        """Return the `seq` of the first transaction in `slot` or later, by bisection: slots rise with `seq`."""
        low, high = 1, self.transaction_count() + 1
        while low < high:
            middle = (low + high) // 2
            [found] = self._reader.execute("SELECT slot FROM transactions WHERE seq = ?", (middle,)).fetchone()
            low, high = (middle + 1, high) if found < slot else (low, middle)
        return low

    def wires_since(self, slot: int) -> list[bytes]:
        """Return the serialised transactions executed in `slot` or later."""
        # The column `slot` has no index, but slots rise with `seq`. The inner query therefore reads backwards from the
        # newest row and stops at the first row of an earlier slot.
        rows = self._reader.execute(
            "SELECT wire FROM transactions WHERE seq > coalesce("
            "(SELECT seq FROM transactions WHERE slot < ? ORDER BY seq DESC LIMIT 1), 0)",
            (slot,),
        )
        return [wire for (wire,) in rows]


def to_json(value: Any) -> str:
    """Return a value as compact JSON. Pydantic's serialiser takes a fifth of the time of the module `json`."""
    return pydantic_core.to_json(value).decode()


def _account_values(address: Pubkey, account: Account) -> tuple[Any, ...]:
    rent_epoch = account.rent_epoch - 2**64 if account.rent_epoch >= 2**63 else account.rent_epoch
    token = tokens.read_account(account)
    owner, token_owner = bytes(account.owner), token and bytes(token.owner)
    return bytes(address), account.lamports, owner, account.executable, rent_epoch, token_owner, account.data


def _account(row: tuple[Any, ...]) -> tuple[Pubkey, Account]:
    address, lamports, owner, executable, rent_epoch, data = row
    return Pubkey(address), Account(lamports, data, Pubkey(owner), bool(executable), rent_epoch % 2**64)
