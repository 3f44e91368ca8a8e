"""Leases: one node does what must be single, and one that lost its lease writes nothing any more."""

import asyncio
from collections.abc import Iterator
from contextlib import closing

import pytest
from sqlalchemy import Connection, select

from app.core.background import Background
from app.database import leases
from app.database.leases import LeaseLostError, fenced_by
from app.database.postgres.database import PostgresDatabase
from app.server.node import ServingNode
from app.store.state_tables import setting_values
from app.store.values import get_value, put_value


@pytest.fixture(name="other")
def _other(postgres_url: str) -> Iterator[PostgresDatabase]:
    """Another node's connection to the database of `postgres_db`."""
    with closing(PostgresDatabase(postgres_url)) as opened:
        yield opened


class Counting(Background):
    """Writes under its lease until it is stopped; `started` counts its starts."""

    name = "counting"

    def __init__(self, db: PostgresDatabase, log: list[str]) -> None:
        self._db = db
        self._log = log
        self.running = False

    async def start(self) -> None:
        self.running = True
        self._log.append(self._db.node)
        await super().start()

    async def stop(self) -> None:
        await super().stop()
        self.running = False

    async def _run(self) -> None:
        while True:
            await self._db.write(lambda conn: put_value(conn, "by", self._db.node))
            await asyncio.sleep(0.01)


def _put(connection: Connection) -> None:
    put_value(connection, "written", "x")


async def _until(condition: object, seconds: float = 15) -> None:
    async with asyncio.timeout(seconds):
        while not condition():  # type: ignore[operator]  # noqa: ASYNC110
            await asyncio.sleep(0.02)


async def test_lease_is_held_by_one_until_it_runs_out(postgres_db: PostgresDatabase, other: PostgresDatabase) -> None:
    mine = await postgres_db.write(lambda conn: leases.take(conn, "work", "a", lifetime=60_000))
    assert mine is not None
    assert await other.write(lambda conn: leases.take(conn, "work", "b")) is None
    assert await other.write_unordered(lambda conn: leases.renew(conn, "b")) == set()
    assert await postgres_db.write_unordered(lambda conn: leases.renew(conn, "a", lifetime=-1)) == {mine}
    theirs = await other.write(lambda conn: leases.take(conn, "work", "b"))

    assert theirs is not None
    assert theirs.fencing > mine.fencing
    assert await postgres_db.write_unordered(lambda conn: leases.renew(conn, "a")) == set()


async def test_released_lease_is_free_and_its_number_goes_on(postgres_db: PostgresDatabase) -> None:
    first = await postgres_db.write(lambda conn: leases.take(conn, "work", "a"))
    await postgres_db.write(lambda conn: leases.release(conn, "a"))
    assert await postgres_db.write_unordered(lambda conn: leases.renew(conn, "a")) == set()
    again = await postgres_db.write(lambda conn: leases.take(conn, "work", "b"))
    assert first is not None
    assert again is not None
    assert again.fencing == first.fencing + 1


async def test_write_under_a_lost_lease_stores_nothing(postgres_db: PostgresDatabase, other: PostgresDatabase) -> None:
    mine = await postgres_db.write(lambda conn: leases.take(conn, "work", "a", lifetime=-1))
    assert mine is not None
    with fenced_by(mine):
        assert await postgres_db.write(lambda conn: get_value(conn, "written")) is None
        task = asyncio.create_task(postgres_db.write(_put))
        await task
    assert await other.write(lambda conn: leases.take(conn, "work", "b")) is not None

    with fenced_by(mine):
        with pytest.raises(LeaseLostError):
            await postgres_db.write(lambda conn: put_value(conn, "late", "x"))
        with pytest.raises(LeaseLostError):
            await asyncio.create_task(postgres_db.write(lambda conn: put_value(conn, "late", "x")))
        with pytest.raises(LeaseLostError):
            postgres_db.write_now(lambda conn: put_value(conn, "late", "x"))
        with pytest.raises(LeaseLostError):
            async with postgres_db.transaction() as step:
                await step(lambda conn: put_value(conn, "late", "x"))
    await postgres_db.write(lambda conn: put_value(conn, "unfenced", "x"))

    names = await other.read(lambda conn: set(conn.scalars(select(setting_values.c.name))))
    assert names == {"written", "unfenced"}


async def test_number_that_is_over_is_refused_beside_its_successor(postgres_db: PostgresDatabase) -> None:
    terms = []
    for lifetime in (-1, 60_000):
        taken = await postgres_db.write(lambda conn, of=lifetime: leases.take(conn, "work", "a", lifetime=of))  # type: ignore[misc]
        assert taken is not None
        terms.append(taken)
    writes = []
    for term in terms:
        with fenced_by(term):
            writes.append(asyncio.create_task(postgres_db.write(_put)))
    before, now = await asyncio.gather(*writes, return_exceptions=True)
    assert isinstance(before, LeaseLostError)
    assert now is None


async def test_lease_cannot_change_hands_in_the_middle_of_a_write(
    postgres_db: PostgresDatabase, other: PostgresDatabase
) -> None:
    mine = await postgres_db.write(lambda conn: leases.take(conn, "work", "a", lifetime=-1))
    assert mine is not None
    with fenced_by(mine):
        async with postgres_db.transaction() as step:
            taking = asyncio.create_task(other.write(lambda conn: leases.take(conn, "work", "b")))
            # Its renewal waits for nobody.
            assert await postgres_db.write_unordered(lambda conn: leases.renew(conn, "a")) == {mine}
            await step(_put)
            assert not taking.done()
    assert await taking is None
    assert await other.read(lambda conn: get_value(conn, "written")) == "x"


async def test_one_node_works_and_another_goes_on_at_once(
    postgres_db: PostgresDatabase, other: PostgresDatabase
) -> None:
    log: list[str] = []
    first, second = Counting(postgres_db, log), Counting(other, log)
    one, two = (
        ServingNode(postgres_db, {"work": [first]}, interval=0.05),
        ServingNode(other, {"work": [second]}, interval=0.05),
    )
    await one.start()
    await two.start()
    assert (first.running, second.running) == (True, False)
    assert await other.read(leases.count_live_nodes) == 2

    await one.stop()
    await _until(lambda: second.running, 3)
    assert not first.running
    assert await other.read(leases.count_live_nodes) == 1
    await two.stop()
    assert log == [postgres_db.node, other.node]


async def test_dead_node_is_followed_within_the_lease(postgres_db: PostgresDatabase, other: PostgresDatabase) -> None:
    log: list[str] = []
    first, second = Counting(postgres_db, log), Counting(other, log)
    one = ServingNode(postgres_db, {"work": [first]}, interval=0.05, lifetime=500)
    two = ServingNode(other, {"work": [second]}, interval=0.05, lifetime=500)
    await one.start()
    await two.start()
    # It hangs: it renews nothing, and its work goes on.
    assert one._task is not None
    one._task.cancel()
    await _until(lambda: second.running, 5)

    await _until(lambda: first._task is not None and first._task.done(), 5)
    with pytest.raises(LeaseLostError):
        await first._task  # type: ignore[misc]
    await one.tick()
    assert not first.running
    assert await other.read(lambda conn: get_value(conn, "by")) == other.node
    await two.stop()
    await one.stop()
