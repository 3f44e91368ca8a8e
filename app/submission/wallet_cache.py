"""Wallets remembered for a moment, so that a stream of payments does not ask the database for each of them."""

import time

from app.core.errors import NotFoundError
from app.core.timestamps import now_ms
from app.store.database import Database
from app.store.wallets import WalletRecord, wallet

_MAX_ENTRIES = 10_000


class WalletCache:
    """Remembers a wallet's address, policy and session authority for ``seconds``; balance and status may be older.

    The program has the last word on every payment, so what is outdated costs a refused rehearsal, not a rule.
    """

    def __init__(self, db: Database, seconds: float) -> None:
        self._db = db
        self._seconds = seconds
        self._entries: dict[tuple[str, str], tuple[float, WalletRecord]] = {}

    async def get(self, org: str, wallet_id: str) -> WalletRecord:
        """Return a wallet of the organisation, perhaps as it was a moment ago. Raises ``wallet_not_found``."""
        entry = self._entries.get((org, wallet_id))
        if entry is not None and time.monotonic() < entry[0]:
            return entry[1]
        return await self.fresh(org, wallet_id)

    async def fresh(self, org: str, wallet_id: str) -> WalletRecord:
        """Return the wallet as the read models show it now. Raises ``wallet_not_found``."""
        found = await self._db.read(lambda conn: wallet(conn, org, wallet_id, now_ms()))
        if found is None:
            raise NotFoundError("wallet_not_found")
        if len(self._entries) >= _MAX_ENTRIES:
            self._entries.clear()
        self._entries[org, wallet_id] = (time.monotonic() + self._seconds, found)
        return found

    def forget(self, org: str, wallet_id: str) -> None:
        """Look the wallet up the next time."""
        self._entries.pop((org, wallet_id), None)
