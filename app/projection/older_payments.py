"""Counts older payments, made before the service began to count spending."""

from app.database.interface import Database
from app.store.spending import fill, filled


class OlderPayments:
    """The payments that an older database has not counted yet."""

    def __init__(self, db: Database) -> None:
        self._db = db
        self._counted = False

    async def count_day(self) -> bool:
        """Count the payments of one more day in a separate database transaction. Return True once all are counted."""
        self._counted = self._counted or await self._db.read(filled)
        if not self._counted:
            self._counted = not await self._db.write(fill, repeatable=True)
        return self._counted
