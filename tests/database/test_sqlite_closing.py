"""A closed SQLite database holds no lock, even if a write was between two steps."""

import asyncio
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from sqlalchemy import text

from app.database import SqliteDatabase
from app.store.schema import create_tables


async def test_close_during_a_write_leaves_the_file_unlocked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("app.database.sqlite._BUSY_TIMEOUT", 2.0)
    path = tmp_path / "one.db"
    database = SqliteDatabase(path, create_tables)
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        # Given a write that waits in a thread until another process has written
        other.execute("BEGIN IMMEDIATE")
        write = asyncio.ensure_future(database.write(lambda conn: conn.execute(text("CREATE TABLE late (id)"))))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        other.execute("COMMIT")

        # When the database is closed before the write continues, then the other process can write
        database.close()
        other.execute("BEGIN IMMEDIATE")
        assert other.in_transaction
    write.cancel()
    await asyncio.gather(write, return_exceptions=True)
