"""The service's own database: tables, and plain functions that read and write them inside one transaction.

App state (keys, attempts, labels, memos, idempotency) is what the chain does not know and is never rebuilt. Read
models (wallets, policies, transactions, recipients) follow from the chain and are rebuilt by the projector.
"""

from app.store.database import Database
from app.store.paging import InvalidCursorError, RecordPage

__all__ = ["Database", "InvalidCursorError", "RecordPage"]
