"""The database on a server that keeps ending connections and restarting.

Every failure is ``storage_unavailable``, and what was reported as stored or refused is so.
"""

import asyncio
import random
import secrets
import signal
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress

import pytest
from sqlalchemy import Connection, select

from app.core.errors import StorageDoubtError, StorageUnavailableError
from app.database import leases
from app.database.postgres.database import PostgresDatabase
from app.store.brakes import brakes_on
from app.store.deliveries import has_new_events
from app.store.feed import append_event
from app.store.feed import table as feed
from app.store.wallets import vault_of
from tests.support.postgres import Cluster

_DISTURBANCES = {False: 12, True: 400}
_CLIENTS = 8
_SOME = (
    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'agent-vault' AND random() < 0.5"
)


def _append(event_id: str) -> Callable[[Connection], None]:
    def work(connection: Connection) -> None:
        append_event(connection, event_id=event_id, org="org", type="x", timestamp=1, payload={})
        # Sends what is deferred, and so finds out whether the connection is lost.
        brakes_on(connection, "org", "wallet", "key", 1)

    return work


async def test_every_failure_is_an_outage_and_every_answer_true(
    cluster: Cluster, template: str, pytestconfig: pytest.Config
) -> None:
    disturbances = _DISTURBANCES[pytestconfig.getoption("--full")]
    seed = secrets.randbelow(2**32)
    print("seed", seed)
    chosen = random.Random(seed)
    db = PostgresDatabase(cluster.url(cluster.database(template)))
    stored, refused = set[str](), set[str]()
    ended = asyncio.Event()

    async def write(number: int) -> None:
        event_id = f"evt_{number}"
        try:
            if number % 10 == 0:
                async with db.transaction() as step:
                    await step(_append(event_id))
            else:
                await db.write(_append(event_id), repeatable=number % 3 > 0)
        except StorageDoubtError:
            raise
        except StorageUnavailableError:
            refused.add(event_id)
            raise
        stored.add(event_id)

    reads: list[Callable[[], Awaitable[object]]] = [
        lambda: db.look_up(lambda conn: vault_of(conn, "wallet")),
        lambda: db.look_up(has_new_events),
        lambda: db.read(lambda conn: (vault_of(conn, "wallet"), brakes_on(conn, "org", "wallet", "key", 1))),
        lambda: db.write_unordered(lambda conn: leases.renew(conn, "node")),
    ]

    async def client(first: int) -> None:
        number = first
        while not ended.is_set():
            number += _CLIENTS
            try:
                await (write(number) if chosen.random() < 0.5 else chosen.choice(reads)())
            except StorageUnavailableError:
                await asyncio.sleep(0.02)

    def disturb() -> None:
        for _ in range(disturbances):
            time.sleep(chosen.uniform(0.1, 0.6))
            how = chosen.choice((None, None, signal.SIGINT, signal.SIGQUIT))
            if how is None:
                cluster.execute(_SOME)
            else:
                cluster.restart(how)
        ended.set()

    try:
        await asyncio.gather(asyncio.to_thread(disturb), *map(client, range(_CLIENTS)))
        async with asyncio.timeout(30):
            found = None
            while found is None:
                with suppress(StorageUnavailableError):
                    found = await db.read(lambda conn: set(conn.scalars(select(feed.c.event_id))))
    finally:
        db.close()

    assert stored <= found
    assert not refused & found
    assert len(stored) > disturbances
