"""Nodes tell each other what is new; it may be lost, and nothing depends on it."""

import asyncio
import secrets
import time
from collections.abc import AsyncIterator
from functools import partial

import pytest
import pytest_asyncio
from psycopg import OperationalError
from pydantic import SecretStr
from sqlalchemy import Connection, create_engine, make_url

from app.core.paths import ConfigurationError
from app.database.postgres.database import PostgresDatabase
from app.database.postgres.engine import listening
from app.database.signals import ROWS, signal
from app.store.attempts import attempt
from tests.support.postgres import Cluster
from tests.support.service_world import ServiceWorld

pytestmark = pytest.mark.asyncio(loop_scope="module")

_LISTENERS = "FROM pg_stat_activity WHERE application_name = 'agent-vault-listener' AND starts_with(query, 'LISTEN')"


def _url(node: ServiceWorld) -> str:
    assert node.settings.database_url is not None
    return node.settings.database_url.get_secret_value()


def _channel(node: ServiceWorld) -> str:
    db = node.service.db
    assert isinstance(db, PostgresDatabase)
    assert db.channel is not None
    return db.channel


@pytest_asyncio.fixture(loop_scope="module", name="api")
async def _api(first: ServiceWorld, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[ServiceWorld]:
    """A node that only serves the API, and looks for rows only when it is told."""
    monkeypatch.setattr("app.projection.remote_updates._INTERVAL", 3600.0)
    async with first.node(roles="api") as opened:
        await _listeners(first, opened)
        yield opened


async def _listeners(*nodes: ServiceWorld) -> None:
    """Wait until these nodes listen."""
    async with asyncio.timeout(30):
        while await nodes[0].service.db.read(  # noqa: ASYNC110 - asks the database
            lambda conn: conn.exec_driver_sql(f"SELECT count(*) {_LISTENERS}").scalar()
        ) != len(nodes):
            await asyncio.sleep(0.05)


async def test_node_is_woken_when_the_row_of_its_payment_is_there(first: ServiceWorld, api: ServiceWorld) -> None:
    wallet, payee = await first.wallet(), await first.payee()
    with api.line.asked() as methods:
        for _ in range(5):
            assert (await api.pay(wallet, payee, "1")).json()["status"] == "confirmed"
    assert "getSignatureStatuses" not in methods


async def test_lost_connection_is_opened_again(cluster: Cluster, first: ServiceWorld, api: ServiceWorld) -> None:
    wallet, payee = await first.wallet(), await first.payee()
    await asyncio.to_thread(cluster.execute, f"SELECT pg_terminate_backend(pid) {_LISTENERS}")
    await _listeners(first, api)
    assert (await api.pay(wallet, payee, "1")).json()["status"] == "confirmed"


async def test_what_others_send_on_the_channel_does_no_harm(
    cluster: Cluster, first: ServiceWorld, api: ServiceWorld
) -> None:
    wallet, payee = await first.wallet(), await first.payee()
    database = make_url(_url(first)).database
    assert database is not None
    for text in (
        "",
        "   ",
        "rows",
        "rows  x ",
        "rows :",
        "rows a:b :1 c:-1 d:\u00b2 e:1:1",
        "exports \u00e9\U0001f600",
        "nothing",
        "keys " + "x" * 7_900,
    ):
        await asyncio.to_thread(cluster.execute, f"NOTIFY {_channel(first)}, '{text}'", database)
    await _listeners(first, api)
    assert (await api.pay(wallet, payee, "1")).json()["status"] == "confirmed"


async def test_only_nodes_know_where_signals_are_sent(cluster: Cluster, first: ServiceWorld, api: ServiceWorld) -> None:
    channel, database = _channel(first), make_url(_url(first)).database
    assert (database is not None, channel == _channel(api)) == (True, True)
    name = f"stranger_{secrets.token_hex(4)}"
    await asyncio.to_thread(cluster.execute, f"CREATE ROLE {name} LOGIN")
    engine = create_engine(make_url(cluster.url(str(database), user=name)).set(drivername="postgresql+psycopg"))
    with engine.connect() as stranger:
        seen = stranger.exec_driver_sql("SELECT application_name, query FROM pg_stat_activity").all()
        channels = stranger.exec_driver_sql("SELECT pg_listening_channels()").all()
    engine.dispose()
    assert any(application.startswith("agent-vault") for application, _ in seen)
    assert (channels, [query for _, query in seen if channel in query]) == ([], [])


async def test_signal_is_for_those_who_wait_at_that_moment(first: ServiceWorld, api: ServiceWorld) -> None:
    projector = api.service.projector
    waiting = asyncio.create_task(projector.wait("a" * 64, 30))
    await asyncio.sleep(0.1)
    await first.service.db.write(lambda conn: signal(conn, ROWS, ["a" * 64 + ":77"]))
    assert await waiting == 77
    # What was signalled may have been rolled back since, so that nobody believes it later.
    assert await projector.wait("a" * 64, 0.2) is None


async def test_payment_without_signals_is_found_by_looking(first: ServiceWorld) -> None:
    nowhere = "postgresql://nobody@/nowhere?host=/nonexistent"
    async with first.node(roles="api", database_listen_url=SecretStr(nowhere)) as deaf:
        wallet, payee = await first.wallet(), await first.payee()
        began = time.monotonic()
        assert (await deaf.pay(wallet, payee, "1")).json()["status"] == "confirmed"
        assert time.monotonic() - began < first.settings.confirm_timeout


async def test_silence_of_the_node_that_applies_rows_is_taken_for_its_death(
    first: ServiceWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("app.projection.remote_updates._ALONE_AFTER", 3600.0)
    wallet, payee = await first.wallet(), await first.payee()
    async with first.node(roles="api") as api:
        await first.service.projector.stop()
        try:
            assert (await api.pay(wallet, payee, "1")).json()["status"] == "confirmed"
        finally:
            await first.service.projector.start()


async def test_signals_name_what_is_new(first: ServiceWorld) -> None:
    wallet, payee = await first.wallet(), await first.payee()
    await first.catch_up()
    signals = asyncio.Queue[str]()
    async with listening(_url(first), _channel(first), signals.put_nowait):
        made = await first.ok("POST", "/v1/keys", {"role": "viewer", "name": "short"})
        await first.ok("DELETE", f"/v1/keys/{made['key_id']}")
        paid = (await first.pay(wallet, payee, "1")).json()
        await first.ok("POST", "/v1/transactions/export", {"format": "csv"})
        heard: list[str] = []
        async with asyncio.timeout(30):
            while "exports" not in heard:
                heard.append(await signals.get())
    made_here = await first.service.db.read(lambda conn: attempt(conn, paid["tx_id"]))
    assert made_here is not None
    assert [one for one in heard if not one.startswith("rows")] == ["keys", "exports"]
    assert f"rows {made_here.message_hash}:{made_here.slot}" in heard


async def test_end_of_a_connection_disturbs_no_other(first: ServiceWorld, cluster: Cluster) -> None:
    async with listening(_url(first), _channel(first), print) as lost:
        cluster.execute(f"SELECT pg_terminate_backend(pid) {_LISTENERS}")
        with pytest.raises(OperationalError):
            await lost
        # Connections that get the numbers that are free again
        server = await asyncio.start_server(_echo, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        opened = [await asyncio.open_connection("127.0.0.1", port) for _ in range(8)]

    for reader, writer in opened:
        writer.write(b"heard")
        async with asyncio.timeout(10):
            assert await reader.readexactly(5) == b"heard"
        writer.close()
    server.close()


async def _echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(await reader.readexactly(5))
    writer.close()


async def test_other_database_is_not_listened_to(first: ServiceWorld, cluster: Cluster) -> None:
    wallet, payee = await first.wallet(), await first.payee()
    url = cluster.url("postgres")
    async with first.node(database_listen_url=SecretStr(url)) as node:
        assert isinstance(node.service.db, PostgresDatabase)
        place = await node.service.db.place()
        with pytest.raises(OSError, match="a different database"):
            async with listening(url, _channel(first), print, at=place):
                pass
        assert (await node.pay(wallet, payee, "1")).json()["status"] == "confirmed"
        assert not node.service.projector.prompt()


async def test_work_that_fails_signals_nothing(first: ServiceWorld) -> None:
    def work(connection: Connection, what: str, *, fails: bool) -> None:
        signal(connection, what, ["a"] * 3 + ["it's"])
        signal(connection, what, [what] * 2 + [f"{number:064}" for number in range(200)])
        if fails:
            connection.exec_driver_sql("SELECT 1 / 0")

    db = first.service.db
    signals = asyncio.Queue[str]()
    async with listening(_url(first), _channel(first), signals.put_nowait):
        works = [
            partial(work, what=what, fails=fails) for what, fails in (("one", True), ("two", False), ("three", True))
        ]
        results = await asyncio.gather(*map(db.write, works), return_exceptions=True)
        assert [result is None for result in results] == [False, True, False]
        heard = [await signals.get() for _ in range(2)]
    assert heard == ["two a it's", "two"]


async def test_wrong_address_for_signals_is_named(first: ServiceWorld) -> None:
    with pytest.raises(ConfigurationError, match="AGENT_VAULT_DATABASE_LISTEN_URL must begin with postgresql://"):
        async with first.node(database_listen_url=SecretStr("mysql://x/y")):
            pass
