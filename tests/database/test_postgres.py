"""The database on PostgreSQL: what is lost when connections are, what is never lost, and what it takes to serve."""

import asyncio
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import MISSING, fields, replace
from typing import Any
from urllib.parse import quote

import pytest
from psycopg import OperationalError
from sqlalchemy import Connection, func, inspect, make_url, select, text
from sqlalchemy.exc import DataError, IntegrityError

from app.core.actors import Actor
from app.core.errors import StorageDoubtError, StorageUnavailableError
from app.core.paths import ConfigurationError
from app.database import migrations
from app.database.columns import upsert
from app.database.postgres._statements import StatementResult
from app.database.postgres.database import PostgresDatabase
from app.database.postgres.engine import database_name, engine_of
from app.store.approval_requests import NewRequest, add_request, approval_requests_of
from app.store.attempts import Attempt, insert_attempt
from app.store.feed import append_event, feed_after
from app.store.feed import table as feed
from app.store.fleet import totals
from app.store.read_tables import approvals, transactions, wallets
from app.store.schema import create_tables
from app.store.state_tables import setting_values
from app.store.values import get_value, put_value
from tests.support.commits import Commit, commit_by
from tests.support.old_databases import create_old
from tests.support.postgres import Cluster

CONNECTIONS = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'agent-vault'"


@pytest.fixture(name="own_cluster")
def _own_cluster(cluster: Cluster) -> Iterator[Cluster]:
    """The cluster, for a test that stops it."""
    yield cluster
    cluster.stop()
    cluster.start()


def put(name: str, value: str = "x") -> Callable[[Connection], str]:
    def work(connection: Connection) -> str:
        put_value(connection, name, value)
        return value

    return work


def values(db: PostgresDatabase) -> set[str]:
    return db.read_now(lambda conn: set(conn.scalars(select(setting_values.c.name))))


# Writing and reading


async def test_writes_share_a_durable_commit_and_a_failed_one_undoes_only_itself(postgres_db: PostgresDatabase) -> None:
    def settings(connection: Connection) -> tuple[Any, ...]:
        put_value(connection, "kept", "x")
        names = ("synchronous_commit", "transaction_isolation")
        return (connection.scalar(text("SELECT pg_current_xact_id()::text")), *_settings(connection, *names))

    def fail(connection: Connection) -> None:
        put_value(connection, "bad", "half done")
        raise ValueError("no")

    def break_rule(connection: Connection) -> None:
        connection.execute(text("SELECT 1 / 0"))

    begun = [postgres_db.write(one) for one in (settings, fail, settings, break_rule, settings)]
    first, failed, second, broken, third = await asyncio.gather(*begun, return_exceptions=True)

    assert first == second == third
    assert first[1:] == ("on", "read committed")  # type: ignore[index]
    assert isinstance(failed, ValueError)
    assert "division by zero" in str(broken)
    assert values(postgres_db) == {"kept"}


def _settings(connection: Connection, *names: str) -> list[str]:
    return [str(connection.scalar(text("SELECT current_setting(:name)"), {"name": name})) for name in names]


async def test_deferred_writes_are_one_statement_and_seen_by_what_follows(postgres_db: PostgresDatabase) -> None:
    def add(connection: Connection, number: int, org: str = "org") -> None:
        event_id, payload = f"evt_{number}", {"number": number}
        append_event(connection, event_id=event_id, org=org, type="x", timestamp=number, payload=payload)
        pending = Attempt(
            tx_id=f"tx_{number}",
            org=org,
            type="payment",
            status="pending",
            created_at=number,
            wallet_id="wal",
            message_hash=f"{number}",
        )
        insert_attempt(connection, pending)

    def three(connection: Connection) -> list[str]:
        for number in (1, 2, 3):
            add(connection, number)
        return list(connection.scalars(select(feed.c.event_id).order_by(feed.c.position)))

    def fail(connection: Connection) -> None:
        add(connection, 4)
        raise ValueError("no")

    def twice(connection: Connection) -> None:
        add(connection, 1)

    begun = [postgres_db.write(one, repeatable=True) for one in (three, fail, twice, lambda conn: add(conn, 5))]
    found, failed, doubled, _ = await asyncio.gather(*begun, return_exceptions=True)

    assert found == ["evt_1", "evt_2", "evt_3"]
    assert isinstance(failed, ValueError)
    assert isinstance(doubled, IntegrityError)
    stored = postgres_db.read_now(lambda conn: list(conn.scalars(select(feed.c.event_id).order_by(feed.c.position))))
    assert stored == ["evt_1", "evt_2", "evt_3", "evt_5"]
    listed = postgres_db.read_now(lambda conn: set(conn.scalars(select(transactions.c.tx_id))))
    assert listed == {"tx_1", "tx_2", "tx_3", "tx_5"}


async def test_nothing_in_the_event_loop_waits_for_the_server(postgres_db: PostgresDatabase) -> None:
    def slow(connection: Connection) -> None:
        connection.execute(text("SELECT pg_sleep(0.3)"))

    async with asyncio.TaskGroup() as group:
        running = [group.create_task(one) for one in (postgres_db.read(slow), postgres_db.write(slow))]
        turns = 0
        while not any(one.done() for one in running):
            began = time.monotonic()
            await asyncio.sleep(0)
            assert time.monotonic() - began < 0.25
            turns += 1
        assert turns > 10


async def test_read_sees_one_snapshot_and_changes_nothing(postgres_db: PostgresDatabase) -> None:
    def twice(connection: Connection) -> list[str | None]:
        before = get_value(connection, "name")
        postgres_db.write_now(put("name", "new"))
        return [before, get_value(connection, "name")]

    assert await postgres_db.read(twice) == [None, None]
    with pytest.raises(StorageUnavailableError):
        await postgres_db.read(put("other"))
    assert values(postgres_db) == {"name"}


async def test_text_with_a_nul_is_not_found_and_does_not_fail(postgres_db: PostgresDatabase) -> None:
    assert await postgres_db.read(lambda conn: get_value(conn, "a\0b")) is None
    await postgres_db.write(put("excerpt", "a\0b"))
    assert await postgres_db.read(lambda conn: get_value(conn, "excerpt")) == "a\ufffdb"


def test_follower_of_the_feed_misses_no_event_of_several_writers(postgres_url: str) -> None:
    def write(db: PostgresDatabase, writer: int) -> None:
        for number in range(40):
            event_id = f"evt_{writer}_{number}"
            db.write_now(
                lambda conn, event_id=event_id: append_event(  # type: ignore[misc]
                    conn, event_id=event_id, org="org", type="wallet.created", timestamp=1, payload={}
                )
            )

    nodes = [PostgresDatabase(postgres_url) for _ in range(3)]
    threads = [threading.Thread(target=write, args=(db, number)) for number, db in enumerate(nodes)]
    for one in threads:
        one.start()
    seen: list[str] = []
    position = 0
    while len(seen) < 120:
        alive = any(one.is_alive() for one in threads)
        found = nodes[0].read_now(lambda conn, after=position: feed_after(conn, after, 7))  # type: ignore[misc]
        if not alive and not found:
            break
        seen += [one.event_id for one in found]
        position = found[-1].position if found else position
    for one in threads:
        one.join()
    for db in nodes:
        db.close()

    assert len(seen) == len(set(seen)) == 120


# Faults


async def test_restart_of_the_server_ends_without_one_of_the_service(
    own_cluster: Cluster, postgres_db: PostgresDatabase
) -> None:
    await asyncio.gather(*(postgres_db.read(lambda conn: get_value(conn, "name")) for _ in range(5)))
    own_cluster.restart()
    found = await asyncio.gather(*(postgres_db.read(lambda conn: get_value(conn, "name")) for _ in range(5)))
    assert found == [None] * 5
    own_cluster.restart()
    assert await postgres_db.write(put("name")) == "x"

    own_cluster.stop()
    with pytest.raises(StorageUnavailableError):
        await postgres_db.read(lambda conn: get_value(conn, "name"))
    with pytest.raises(StorageUnavailableError):
        await postgres_db.write(put("lost"))
    own_cluster.start()

    async with asyncio.timeout(30):
        while True:
            try:
                await postgres_db.write(put("after"))
            except StorageUnavailableError:
                await asyncio.sleep(0.1)
            else:
                break
    assert values(postgres_db) == {"name", "after"}


async def test_backend_terminated_during_a_write_leaves_nothing(
    cluster: Cluster, postgres_db: PostgresDatabase
) -> None:
    def work(connection: Connection) -> None:
        put_value(connection, "half", "x")
        cluster.execute(CONNECTIONS)
        put_value(connection, "rest", "x")

    with pytest.raises(StorageUnavailableError) as raised:
        await postgres_db.write(work)

    assert not isinstance(raised.value, StorageDoubtError)
    assert await postgres_db.write(put("after")) == "x"
    assert values(postgres_db) == {"after"}


async def test_commit_whose_answer_is_lost_is_found_out(
    cluster: Cluster, postgres_db: PostgresDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    def commit_and_lose(commit: Commit, driver: Any) -> StatementResult:
        commit()
        cluster.execute(CONNECTIONS)
        with pytest.raises(OperationalError):
            driver.execute("SELECT 1")
        return commit()

    def lose_and_commit(commit: Commit, _driver: Any) -> StatementResult:
        cluster.execute(CONNECTIONS)
        return commit()

    commit_by(monkeypatch, commit_and_lose)
    assert await postgres_db.write(put("stored")) == "x"
    assert values(postgres_db) == {"stored"}

    monkeypatch.undo()
    commit_by(monkeypatch, lose_and_commit)
    with pytest.raises(StorageUnavailableError) as raised:
        await postgres_db.write(put("undone"))
    assert not isinstance(raised.value, StorageDoubtError)
    assert values(postgres_db) == {"stored"}


async def test_commit_during_a_restart_stays_in_doubt(
    own_cluster: Cluster, postgres_db: PostgresDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    def commit_and_restart(commit: Commit, _driver: Any) -> StatementResult:
        commit()
        own_cluster.restart()
        return commit()

    commit_by(monkeypatch, commit_and_restart)
    with pytest.raises(StorageDoubtError):
        await postgres_db.write(put("stored"))
    assert await postgres_db.read(lambda conn: get_value(conn, "stored")) == "x"


async def test_work_that_ignores_a_failed_statement_stores_nothing(postgres_db: PostgresDatabase) -> None:
    def ignoring(connection: Connection) -> None:
        put_value(connection, "half", "x")
        with pytest.raises(DataError):
            connection.execute(text("SELECT 1 / 0"))

    with pytest.raises(RuntimeError):
        await postgres_db.write(ignoring)
    assert await postgres_db.write(put("after")) == "x"
    assert values(postgres_db) == {"after"}


async def test_transactions_of_many_steps_follow_one_another(postgres_db: PostgresDatabase) -> None:
    async def add(name: str) -> None:
        async with postgres_db.transaction() as step:
            await step(put(name))
            await step(put(f"{name} again"))

    async with asyncio.timeout(30):
        await asyncio.gather(*map(add, "abc"))
    assert values(postgres_db) == {f"{name}{more}" for name in "abc" for more in ("", " again")}


async def test_hanging_server_is_given_up(postgres_db: PostgresDatabase, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("app.database.postgres._calls.PATIENCE", 0.2)

    def hang(connection: Connection) -> None:
        connection.execute(text("SELECT pg_sleep(60)"))

    async with asyncio.timeout(30):
        with pytest.raises(StorageUnavailableError):
            await postgres_db.read(hang)
        with pytest.raises(StorageUnavailableError):
            await postgres_db.write(hang)
    monkeypatch.undo()
    assert await postgres_db.read(lambda conn: get_value(conn, "name")) is None


async def test_lock_that_another_session_keeps_is_storage_unavailable(
    postgres_url: str, postgres_db: PostgresDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("app.database.postgres.database._LOCK_PATIENCE", 0.1)
    with closing(PostgresDatabase(postgres_url)) as other:
        async with other.transaction() as step:
            await step(put("first"))
            with pytest.raises(StorageUnavailableError):
                await postgres_db.write(put("second"))
    assert await postgres_db.write(put("third")) == "x"
    assert values(postgres_db) == {"first", "third"}


@pytest.mark.parametrize("steps", [False, True])
async def test_process_that_is_stopped_with_the_lock_keeps_no_other_from_writing(
    postgres_url: str, postgres_db: PostgresDatabase, monkeypatch: pytest.MonkeyPatch, steps: bool
) -> None:
    for name in ("_IDLE", "_IDLE_BETWEEN_STEPS"):
        monkeypatch.setattr(f"app.database.postgres.database.{name}", 0.3)
    begun, go = threading.Event(), threading.Event()

    def stop(connection: Connection) -> None:
        put_value(connection, "stopped", "x")
        begun.set()
        assert go.wait(30)
        put_value(connection, "stopped again", "x")

    async def write() -> None:
        if steps:
            async with postgres_db.transaction() as step:
                await step(stop)
        else:
            await postgres_db.write(stop)

    with closing(PostgresDatabase(postgres_url)) as other:
        stopped = asyncio.create_task(write())
        await asyncio.to_thread(begun.wait)
        assert await other.write(put("other")) == "x"
        go.set()
        with pytest.raises(StorageUnavailableError):
            await stopped

    assert await postgres_db.write(put("after")) == "x"
    assert values(postgres_db) == {"other", "after"}


# The schema


def test_all_texts_are_ordered_by_their_bytes(postgres_db: PostgresDatabase) -> None:
    collations = text(
        "SELECT DISTINCT collation_name FROM information_schema.columns WHERE table_schema = 'public'"
        " AND data_type IN ('character varying', 'text')"
    )
    assert postgres_db.read_now(lambda conn: conn.execute(collations).all()) == [("C",)]


def test_upgrade_is_repeatable_and_leaves_nothing_when_it_fails(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = cluster.url(cluster.database())
    engine, upgrade = engine_of(url), migrations._upgrade

    def fail(*arguments: Any) -> None:
        upgrade(*arguments)
        raise RuntimeError("no")

    with pytest.raises(ConfigurationError, match="has no schema: run `agent-vault db upgrade`"):
        PostgresDatabase(url)
    monkeypatch.setattr(migrations, "_upgrade", fail)
    with pytest.raises(RuntimeError):
        migrations.upgrade(engine, "it", create_tables)
    with engine.connect() as connection:
        assert inspect(connection).get_table_names() == []
    monkeypatch.undo()

    assert migrations.upgrade(engine, "it", create_tables) == (None, migrations.REVISIONS[-1])
    assert migrations.upgrade(engine, "it", create_tables) == (migrations.REVISIONS[-1], migrations.REVISIONS[-1])
    engine.dispose()
    PostgresDatabase(url).close()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (["UPDATE alembic_version SET version_num = '9999'"], "its schema is 9999; this version supports up to NEWEST"),
        (["DROP TABLE alembic_version"], "its schema is unversioned; this version supports up to NEWEST"),
        (
            [
                "UPDATE alembic_version SET version_num = '9999'",
                "INSERT INTO schema_versions (revision, oldest_code) VALUES ('9999', '9998')",
            ],
            "its schema is 9999; this version supports up to NEWEST",
        ),
        (
            [
                "UPDATE alembic_version SET version_num = '9999'",
                "INSERT INTO schema_versions (revision, oldest_code) VALUES ('9999', '0001')",
            ],
            None,
        ),
    ],
)
def test_newer_schema_is_served_only_if_it_says_so(
    cluster: Cluster, postgres_url: str, changes: list[str], message: str | None
) -> None:
    name = database_name(postgres_url).split()[1]
    for one in changes:
        cluster.execute(one, name)

    if message is None:
        PostgresDatabase(postgres_url).close()
        return
    with pytest.raises(ConfigurationError) as refused:
        PostgresDatabase(postgres_url)
    newest = message.replace("NEWEST", migrations.REVISIONS[-1])
    assert str(refused.value) == f"{database_name(postgres_url)}: {newest}"


def test_older_schema_is_refused(postgres_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    newest = migrations.REVISIONS[-1]
    monkeypatch.setattr(migrations, "REVISIONS", (*migrations.REVISIONS, "9998"))
    needed = f"its schema is {newest}; this version needs 9998: run `agent-vault db up"
    with pytest.raises(ConfigurationError, match=needed):
        PostgresDatabase(postgres_url)


def test_upgrade_gives_up_rather_than_keep_a_service_waiting(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    url, newest = cluster.url(cluster.database()), migrations.REVISIONS[-1]
    engine = engine_of(url)
    with engine.begin() as connection:
        create_old(connection, "0002")
    monkeypatch.setattr(migrations, "_TABLE_PATIENCE", "100ms")
    with engine.connect() as busy:
        busy.execute(text("LOCK TABLE invitations IN ROW EXCLUSIVE MODE"))
        with pytest.raises(ConfigurationError, match="it cannot be upgraded: a table is in use"):
            migrations.upgrade(engine, "it", create_tables)
        busy.rollback()

    assert migrations.upgrade(engine, "it", create_tables) == ("0002", newest)
    engine.dispose()


def test_work_that_a_closed_loop_left_keeps_no_other_from_running(postgres_url: str) -> None:
    begun = threading.Event()

    def work(connection: Connection) -> None:
        begun.set()
        connection.execute(text("SELECT pg_sleep(0.3)"))

    async def leave() -> None:
        left = asyncio.create_task(db.write(work))
        await asyncio.to_thread(begun.wait)
        left.cancel()

    with closing(PostgresDatabase(postgres_url)) as db:
        asyncio.run(leave())
        db.write_now(lambda _connection: None)
        assert asyncio.run(asyncio.wait_for(db.write(lambda _connection: 7), 10)) == 7


# What cannot be served on


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("nonsense", "AGENT_VAULT_DATABASE_URL is not an address"),
        ("mysql://somebody:s3cret@host/database", "AGENT_VAULT_DATABASE_URL must begin with postgresql://"),
        ("postgresql://somebody:s3cret@127.0.0.1:1/vault", "cannot connect to the database vault on 127.0.0.1"),
        ("postgresql://somebody:s3cret@127.0.0.1:many/vault", "AGENT_VAULT_DATABASE_URL is not an address"),
        ("postgresql://somebody:s3cret@127.0.0.1/va%00ult", "AGENT_VAULT_DATABASE_URL contains a NUL character"),
        ("postgresql://somebody:s3cret@127.0.0.1 /vault", "AGENT_VAULT_DATABASE_URL has a space in its host"),
        ("postgresql://somebody:not@s3cret@127.0.0.1/vault", "AGENT_VAULT_DATABASE_URL has more than one @"),
        ("postgresql://somebody:s3cret@one:1,two:2/vault", "AGENT_VAULT_DATABASE_URL names several hosts"),
        ("postgresql://somebody:s3cret@127.0.0.1:1/vault\n", "cannot connect to the database vault on 127.0.0.1"),
        ("postgresql://somebody:s3cret@%2Fnonexistent:1/vault", "cannot connect to the database vault on /nonexistent"),
    ],
)
def test_wrong_address_is_one_line_without_the_password(url: str, message: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        PostgresDatabase(url)
    assert str(refused.value).startswith(message)
    assert "\n" not in str(refused.value)
    assert "s3cret" not in str(refused.value)


def test_folder_of_a_socket_may_stand_in_the_place_of_the_host(cluster: Cluster, postgres_url: str) -> None:
    name, user = database_name(postgres_url).split()[1], make_url(postgres_url).username
    folder = quote(str(cluster.folder), safe="")
    PostgresDatabase(f"postgresql://{user}@{folder}/{name}").close()
    PostgresDatabase(f"postgresql://{user}@{folder}:5432/{name}").close()


def test_server_that_does_not_answer_is_one_line() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        with pytest.raises(ConfigurationError) as refused:
            PostgresDatabase(f"postgresql://somebody:s3cret@127.0.0.1:{port}/vault")
    assert str(refused.value).startswith("cannot connect to the database vault on 127.0.0.1: connection timeout")
    assert "\n" not in str(refused.value)


def test_missing_database_and_missing_rights_are_named(cluster: Cluster, postgres_url: str) -> None:
    with pytest.raises(ConfigurationError, match='database "missing" does not exist'):
        PostgresDatabase(cluster.url("missing"))
    cluster.execute("CREATE ROLE reader LOGIN")
    name = database_name(postgres_url).split()[1]
    reader = cluster.url(name, user="reader")
    with pytest.raises(ConfigurationError, match="permission denied for table alembic_version"):
        PostgresDatabase(reader)
    cluster.execute("GRANT SELECT ON ALL TABLES IN SCHEMA public TO reader", name)
    with pytest.raises(ConfigurationError, match="account reader lacks the right to DELETE in the table alert_mail"):
        PostgresDatabase(reader)
    engine = engine_of(cluster.url(cluster.database(), user="reader"))
    with pytest.raises(ConfigurationError, match="cannot be upgraded: permission denied for schema public"):
        migrations.upgrade(engine, "it", create_tables)
    engine.dispose()


def test_older_server_is_refused(postgres_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(migrations, "OLDEST_SERVER", 990_000)
    with pytest.raises(ConfigurationError, match=r"is on PostgreSQL 1\d.*: 99 or newer is needed"):
        PostgresDatabase(postgres_url)


# What the two databases would answer differently


def test_sums_are_whole_numbers(postgres_db: PostgresDatabase) -> None:
    row: dict[str, Any] = {column.name: 0 for column in wallets.columns}
    row |= {name: name for name, column in wallets.columns.items() if column.type.python_type is str}
    row |= {name: False for name, column in wallets.columns.items() if column.type.python_type is bool}
    postgres_db.write_now(
        lambda conn: upsert(conn, wallets, {**row, "org": "org", "balance": 2**62}, keys=["wallet_id"])
    )

    found = postgres_db.read_now(lambda conn: totals(conn, "org", 0))

    assert found.balance == 2**62
    assert {type(one) for one in (found.balance, found.spent_week, found.frozen)} == {int}


def test_approval_for_ever_is_shown(postgres_db: PostgresDatabase) -> None:
    values: dict[str, Any] = dict.fromkeys((one.name for one in fields(NewRequest) if one.default is MISSING), "1")
    numbers = {"amount": 1, "policy_version": 1, "threshold": 1, "created_at": 1000}
    new = NewRequest(**values | numbers | {"org": "org", "address": "Address", "requested_by": Actor("key", "key_1")})
    on_chain = {
        "address": "Address",
        "org": "org",
        "vault": "Vault",
        "recipient": "Shop",
        "amount": 1,
        "purpose": "payment",
        "policy_version": 1,
        "expires_at": 2**63 - 1,
        "payer": "Payer",
        "state": "open",
    }
    postgres_db.write_now(lambda conn: add_request(conn, new))
    postgres_db.write_now(lambda conn: upsert(conn, approvals, on_chain, keys=["address"]))

    (found,) = postgres_db.read_now(lambda conn: approval_requests_of(conn, "org", 2000)).data

    assert found.status == "approved"
    assert replace(found, expires_at=0) != found


def test_ids_are_ordered_by_their_bytes(postgres_db: PostgresDatabase) -> None:
    names = ["a", "B", "_", "Z1", "z", "é", "10", "9"]
    for name in names:
        postgres_db.write_now(put(name))
    found = postgres_db.read_now(lambda conn: conn.scalars(select(setting_values.c.name).order_by("name")).all())
    assert found == sorted(names, key=str.encode)
    assert postgres_db.read_now(lambda conn: conn.scalar(select(func.max(setting_values.c.name)))) == "é"
