"""The database engine: SQLite, PostgreSQL, prepared statements, leases, paging and migrations."""

from app.core.pages import RecordPage
from app.database.interface import Database
from app.database.paging import InvalidCursorError
from app.database.sqlite import SqliteDatabase

__all__ = ["Database", "InvalidCursorError", "RecordPage", "SqliteDatabase"]
