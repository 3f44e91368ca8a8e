"""The tables of the indexer's database."""

import re
import time

from sqlite_utils import Database

VERSION = 2
"""The schema's version. A database with another version is emptied, because the chain has all of its contents."""

TABLES = {
    "transactions": """
        signature TEXT PRIMARY KEY,
        slot INTEGER NOT NULL,
        block_time INTEGER NOT NULL,
        fee_payer TEXT NOT NULL,
        message_hash TEXT NOT NULL,
        finalized INTEGER NOT NULL DEFAULT 0""",
    # `id` grows in the order of storing, so readers use it as their cursor. A row with `instruction` -1 is not an event
    # of the program. It is a deposit, an observed balance, the outflow of a settled allowance, or a rolled-back
    # transaction.
    "events": """
        id INTEGER PRIMARY KEY AUTOINCREMENT,
        signature TEXT NOT NULL,
        instruction INTEGER NOT NULL,
        "inner" INTEGER NOT NULL,
        slot INTEGER NOT NULL,
        name TEXT NOT NULL,
        org TEXT,
        data TEXT NOT NULL,
        UNIQUE (signature, instruction, "inner")""",
    # Vaults and organisations number their events from 1. If `last` differs from `count`, an event is missing.
    "streams": """
        stream TEXT PRIMARY KEY,
        last INTEGER NOT NULL,
        count INTEGER NOT NULL""",
    "cursors": """
        name TEXT PRIMARY KEY,
        signature TEXT NOT NULL""",
    # Parts of the program's history that no node has served: the last stored transaction before the part, its slot,
    # and the slot where the history continues.
    "holes": """
        after TEXT PRIMARY KEY,
        after_slot INTEGER NOT NULL,
        before_slot INTEGER NOT NULL""",
    # Unreadable transactions of the program; `since` and `retry_at` are Unix seconds.
    "transaction_holes": """
        signature TEXT PRIMARY KEY,
        slot INTEGER NOT NULL,
        reason TEXT NOT NULL,
        since INTEGER NOT NULL,
        retry_at INTEGER NOT NULL""",
    # Token accounts of vaults and reserves (`vault` is null). A `suspect` one may lack transactions.
    "token_accounts": """
        address TEXT PRIMARY KEY,
        org TEXT NOT NULL,
        vault TEXT,
        balance INTEGER,
        slot INTEGER NOT NULL,
        suspect INTEGER NOT NULL DEFAULT 0""",
    "allowances": """
        address TEXT PRIMARY KEY,
        tokens TEXT NOT NULL,
        granted TEXT NOT NULL""",
    # Settlements of allowances, by their place in a transaction, until the token account has been read.
    "unread_allowances": """
        signature TEXT NOT NULL,
        instruction INTEGER NOT NULL,
        "inner" INTEGER NOT NULL,
        PRIMARY KEY (signature, instruction, "inner")""",
}
INDEXES = (
    "CREATE INDEX IF NOT EXISTS transactions_to_finalize ON transactions (slot, signature) WHERE finalized = 0",
    "CREATE INDEX IF NOT EXISTS transactions_final ON transactions (slot) WHERE finalized = 1",
    "CREATE INDEX IF NOT EXISTS token_accounts_by_vault ON token_accounts (vault)",
    "CREATE INDEX IF NOT EXISTS token_accounts_by_org ON token_accounts (org)",
    "CREATE INDEX IF NOT EXISTS allowances_by_tokens ON allowances (tokens)",
    "CREATE INDEX IF NOT EXISTS token_accounts_suspect ON token_accounts (address) WHERE suspect = 1",
    "CREATE INDEX IF NOT EXISTS transaction_holes_due ON transaction_holes (retry_at)",
    "CREATE INDEX IF NOT EXISTS transaction_holes_by_age ON transaction_holes (since, signature)",
    "CREATE INDEX IF NOT EXISTS streams_with_gaps ON streams (stream) WHERE last <> count",
)
POSTGRES_INDEXES = ("CREATE INDEX IF NOT EXISTS transactions_by_message ON transactions (message_hash)",)
"""Indexes for queries that only services with several nodes make."""
PREFIX = "chain_"
"""Prefix of the tables and indexes on PostgreSQL, where they share the database with the service's own."""


def postgres_ddl() -> list[str]:
    """Return the statements that create the tables on PostgreSQL."""
    changes = {
        r"INTEGER PRIMARY KEY AUTOINCREMENT": "BIGSERIAL PRIMARY KEY",
        r"\bINTEGER\b": "BIGINT",
        r"\bTEXT\b": 'TEXT COLLATE "C"',
    }
    tables = []
    for name, columns in TABLES.items():
        for found, instead in changes.items():
            columns = re.sub(found, instead, columns)  # noqa: PLW2901
        tables.append(f"CREATE TABLE {PREFIX}{name} ({columns}\n)")
    all_indexes = (*INDEXES, *POSTGRES_INDEXES)
    indexes = [re.sub(r"IF NOT EXISTS (\w+) ON (\w+)", rf"{PREFIX}\1 ON {PREFIX}\2", one) for one in all_indexes]
    return tables + indexes


def prepare(db: Database) -> None:
    """Configure the database and create missing tables and indexes."""
    # The contents can be read from the chain again, so commits need not wait for the disk.
    for pragma in ("journal_mode=WAL", "synchronous=NORMAL", "temp_store=MEMORY"):
        db.conn.execute(f"PRAGMA {pragma}")
    version = db.conn.execute("PRAGMA user_version").fetchone()[0]
    with db.atomic():
        if version not in {0, VERSION}:
            for table in TABLES:
                db.conn.execute(f"DROP TABLE IF EXISTS {table}")
        for table, columns in TABLES.items():
            db.conn.execute(f"CREATE TABLE IF NOT EXISTS {table} ({columns})")
        for index in INDEXES:
            db.conn.execute(index)
        # New ids must exceed all earlier ones, even from a deleted file or from commits lost in a crash. Then a reader
        # that remembers an id sees restored rows as new.
        now = time.time_ns() // 1000
        if db.conn.execute("UPDATE sqlite_sequence SET seq = max(seq, ?) WHERE name = 'events'", [now]).rowcount == 0:
            db.conn.execute("INSERT INTO sqlite_sequence (name, seq) VALUES ('events', ?)", [now])
        if version != VERSION:
            db.conn.execute(f"PRAGMA user_version = {VERSION}")
