"""After a restore from a backup: what was paid after the backup is on the chain, but its idempotency key is forgotten.

A client that repeats such a request would pay twice. So money moves under a key that the service does not know only
once the read models have caught up with the chain, and for the time that idempotency keys are kept only if the client
says that it has looked.
"""

from collections.abc import Awaitable, Callable
from typing import ClassVar

from sqlalchemy import Connection

from app.chain.errors import ChainUnavailable, RpcError
from app.core.background import Periodic
from app.core.errors import ConflictError, UnavailableError
from app.core.timestamps import now_ms
from app.store.database import Database
from app.store.idempotency import LIFETIME
from app.store.values import get_value, put_value

#: Names of the stored values.
_RESTORED_AT, _CAUGHT_UP, _GAP_CHECKED = "restored_at", "restored_caught_up", "restored_gap_checked"


def mark_restored(connection: Connection, *, gap_checked: bool) -> None:
    """Record that the database was restored now; whatever an earlier restore left no longer counts."""
    put_value(connection, _RESTORED_AT, str(now_ms()))
    put_value(connection, _CAUGHT_UP, "no")
    put_value(connection, _GAP_CHECKED, "yes" if gap_checked else "no")


def mark_checked(connection: Connection) -> bool:
    """Record that the operator has checked what was paid between backup and restore; False if nothing was restored."""
    if get_value(connection, _RESTORED_AT) is None:
        return False
    put_value(connection, _GAP_CHECKED, "yes")
    return True


class Restoration(Periodic):
    """Refuses requests that may repeat a forgotten payment. Catches up with the chain once after a restore."""

    name = "restoration"
    outages: ClassVar[tuple[type[Exception], ...]] = (ChainUnavailable, RpcError)

    def __init__(self, db: Database, catch_up: Callable[[], Awaitable[object]], *, interval: float = 1.0) -> None:
        super().__init__(interval)
        self._db = db
        self._catch_up = catch_up
        restored = db.read_now(lambda conn: get_value(conn, _RESTORED_AT))
        self._restored_at = None if restored is None else int(restored)
        self._caught_up = db.read_now(lambda conn: get_value(conn, _CAUGHT_UP)) != "no"

    @property
    def pending(self) -> bool:
        """Whether the read models have not caught up since the restore."""
        return not self._caught_up

    async def tick(self) -> None:
        """Catch up with the chain, if that has not been done since the restore."""
        if self._caught_up:
            return
        await self._catch_up()
        await self._db.write(lambda conn: put_value(conn, _CAUGHT_UP, "yes"))
        self._caught_up = True

    def admit(self, *, acknowledged: bool) -> None:
        """Let a new movement of money pass. Raises ``restore_catching_up`` and ``restore_unacknowledged``."""
        if self._restored_at is None:
            return
        if not self._caught_up:
            raise UnavailableError("restore_catching_up")
        if acknowledged or now_ms() - self._restored_at >= LIFETIME:
            return
        if self._db.read_now(lambda conn: get_value(conn, _GAP_CHECKED)) != "yes":
            raise ConflictError("restore_unacknowledged")
