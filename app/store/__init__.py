"""The service's own database: tables, and plain functions that read and write them inside one transaction.

State (keys, attempts, labels, memos, idempotency) is unknown to the chain and never rebuilt. The read models (wallets,
policies, transactions, recipients) follow from the chain; the projector can rebuild them.
"""

from app.core.pages import RecordPage
from app.store.database import Database
from app.store.paging import InvalidCursorError
from app.store.sqlite_database import SqliteDatabase

__all__ = ["Database", "InvalidCursorError", "RecordPage", "SqliteDatabase"]
