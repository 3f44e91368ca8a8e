"""Guards against repeated payments after a restore or a failover that lost their idempotency keys.

A client that repeats a request with a lost key would pay twice. So the service refuses new movements of money until the
read models have caught up with the chain. After that, for the lifetime of idempotency keys, it accepts a movement only
if the client confirms that it has checked for an earlier payment, or if the gap was declared checked. An admin can
declare this for an organisation, and a command for all organisations.
"""

from collections.abc import Awaitable, Callable
from typing import ClassVar, Literal

from sqlalchemy import Connection

from app.chain.errors import ChainUnavailable, RpcError
from app.core.background import Periodic
from app.core.errors import ConflictError, UnavailableError
from app.core.timestamps import now_ms
from app.database.interface import Database
from app.database.postgres.database import PostgresDatabase
from app.store.guard import (
    CAUGHT_UP,
    SERVER,
    all_have_compared,
    checked_at,
    guard_values,
    raised_at,
    report_lost_commits,
    server_of,
)
from app.store.idempotency import LIFETIME
from app.store.values import put_value

State = Literal["catching_up", "unacknowledged"]


class DatabaseGuard(Periodic):
    """Refuses requests that may repeat a forgotten payment. Catches up with the chain after a restore or a failover.

    On PostgreSQL, each node compares its commit log with a server before its first write there. After a promotion, no
    money moves until all living nodes have done so, because each node knows only its own commits.
    """

    name = "restoration"
    outages: ClassVar[tuple[type[Exception], ...]] = (ChainUnavailable, RpcError)

    def __init__(self, db: Database, catch_up: Callable[[], Awaitable[object]], *, interval: float = 1.0) -> None:
        super().__init__(interval)
        self._db = db
        self._catch_up = catch_up
        self._server: str | None = None
        #: Time when the guard was last raised, as the last comparison read it. Guard values with an older time are
        #: outdated.
        self._floor = 0
        if isinstance(db, PostgresDatabase):
            db.on_new_server = self._compare
        self._values = db.write_now(guard_values)

    @property
    def pending(self) -> bool:
        """True until the read models have caught up after a restore or failover."""
        values = self._values
        return values.get(CAUGHT_UP) == "no" or values.get(SERVER) != self._server or raised_at(values) < self._floor

    def state(self, org: str = "") -> State | None:
        """Return the guard's state for an organisation, or for the whole service if ``org`` is empty.

        None if the guard was never raised, its gap was declared checked, or the idempotency keys from before the gap
        have expired.
        """
        if self.pending:
            return "catching_up"
        raised = raised_at(self._values)
        return "unacknowledged" if now_ms() < raised + LIFETIME and checked_at(self._values, org) < raised else None

    async def tick(self) -> None:
        """Read the guard, which other nodes may have raised, and catch up with the chain if necessary."""
        server = await self._db.look_up(self._look)
        if server != self._server:
            # Any write to a new server compares the commit log with it first.
            await self._db.write(guard_values)
        if not self.pending or not await self._db.write(self._all_have_compared):
            return
        await self._catch_up()
        self._values = await self._db.write(self._settle)

    def admit(self, org: str, *, acknowledged: bool) -> None:
        """Admit a new movement of money, unless the guard forbids it.

        Raises ``restore_catching_up`` until the read models have caught up with the chain. After that, raises
        ``restore_unacknowledged`` while ``state`` is not None, unless the request is ``acknowledged``.
        """
        state = self.state(org)
        if state == "catching_up":
            raise UnavailableError("restore_catching_up", headers={"Retry-After": "1"})
        if state is not None and not acknowledged:
            raise ConflictError("restore_unacknowledged")

    def _look(self, conn: Connection) -> str | None:
        self._values = guard_values(conn)
        return server_of(conn) if self._db.node else None

    def _compare(self, conn: Connection) -> None:
        """Compare the commit log with the server, and raise the guard if attempts are missing there."""
        assert isinstance(self._db, PostgresDatabase)
        server = server_of(conn)
        if self._db.ledger is not None and (lost := self._db.ledger.missing(conn, now_ms() - LIFETIME)):
            report_lost_commits(conn, lost)
        values = guard_values(conn)
        if SERVER not in values and server is not None:
            put_value(conn, SERVER, server)
            values[SERVER] = server
        self._floor, self._values, self._server = raised_at(values), values, server

    def _all_have_compared(self, conn: Connection) -> bool:
        """Record that this node has compared its commit log with the server. Return True once all living nodes have."""
        return self._server is None or all_have_compared(conn, self._server, self._db.node)

    def _settle(self, conn: Connection) -> dict[str, str]:
        put_value(conn, CAUGHT_UP, "yes")
        if self._server is not None:
            put_value(conn, SERVER, self._server)
        return guard_values(conn)
