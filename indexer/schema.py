"""Tables of the indexer's database."""

import time

from sqlite_utils import Database

VERSION = 1
"""Of the schema. A database of another version is emptied: everything in it can be read from the chain again."""

TABLES = {
    "transactions": """
        signature TEXT PRIMARY KEY,
        slot INTEGER NOT NULL,
        block_time INTEGER NOT NULL,
        fee_payer TEXT NOT NULL,
        message_hash TEXT NOT NULL,
        finalized INTEGER NOT NULL DEFAULT 0""",
    # `id` is the order in which rows were stored, and so the cursor of whoever reads them. A row whose `instruction`
    # is -1 is no event of the program: a deposit, an observed balance, or the news that a transaction vanished.
    "events": """
        id INTEGER PRIMARY KEY AUTOINCREMENT,
        signature TEXT NOT NULL,
        instruction INTEGER NOT NULL,
        inner INTEGER NOT NULL,
        slot INTEGER NOT NULL,
        name TEXT NOT NULL,
        org TEXT,
        data TEXT NOT NULL,
        UNIQUE (signature, instruction, inner)""",
    # Vaults and organisations number their events from 1: with `last` other than `count`, one is missing.
    "streams": """
        stream TEXT PRIMARY KEY,
        last INTEGER NOT NULL,
        count INTEGER NOT NULL""",
    "cursors": """
        name TEXT PRIMARY KEY,
        signature TEXT NOT NULL""",
    # Token accounts of reserves (`vault` is null) and vaults. `suspect` ones moved in a transaction not seen yet.
    "token_accounts": """
        address TEXT PRIMARY KEY,
        org TEXT NOT NULL,
        vault TEXT,
        balance INTEGER,
        slot INTEGER NOT NULL,
        suspect INTEGER NOT NULL DEFAULT 0""",
}
INDEXES = (
    "CREATE INDEX IF NOT EXISTS transactions_to_finalize ON transactions (slot) WHERE finalized = 0",
    "CREATE INDEX IF NOT EXISTS transactions_final ON transactions (slot) WHERE finalized = 1",
    "CREATE INDEX IF NOT EXISTS token_accounts_by_vault ON token_accounts (vault)",
    "CREATE INDEX IF NOT EXISTS token_accounts_by_org ON token_accounts (org)",
    "CREATE INDEX IF NOT EXISTS token_accounts_suspect ON token_accounts (address) WHERE suspect",
)


def prepare(db: Database) -> None:
    """Set the file up and create what is missing."""
    # Everything here can be read from the chain again, so no commit has to wait for the disk.
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
        # Ids given from now on are higher than any given before, also by a file that is no more, or whose last commits
        # a crash took: whoever remembers an id sees what is stored again as new.
        now = time.time_ns() // 1000
        if db.conn.execute("UPDATE sqlite_sequence SET seq = max(seq, ?) WHERE name = 'events'", [now]).rowcount == 0:
            db.conn.execute("INSERT INTO sqlite_sequence (name, seq) VALUES ('events', ?)", [now])
        if version != VERSION:
            db.conn.execute(f"PRAGMA user_version = {VERSION}")
