"""Statements that libpq sends: the same values and rows as by SQLAlchemy, prepared when they come again."""

import hashlib
import os
import socket
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any

import psycopg
import pytest
from sqlalchemy import (
    ARRAY,
    BigInteger,
    Boolean,
    Connection,
    Engine,
    LargeBinary,
    Select,
    String,
    bindparam,
    func,
    insert,
    literal,
    make_url,
    select,
)
from sqlalchemy.exc import DataError, DBAPIError, IntegrityError, InternalError, OperationalError

from app.core.actors import Actor
from app.core.errors import StorageUnavailableError, is_storage_error
from app.database.columns import U64, ActorText, upsert
from app.database.interface import Work
from app.database.postgres import _statements as _postgres_statements
from app.database.postgres._statements import Sender
from app.database.postgres.database import PostgresDatabase
from app.database.postgres.engine import engine_of
from app.database.statements import SENDER, rows, run_numbered, scalar
from app.store.state_tables import setting_values as table
from tests.support.postgres import Cluster

_NAMES = "SELECT statement FROM pg_prepared_statements ORDER BY prepare_time, name"
_KINDS: list[Any] = [String(), BigInteger(), Boolean(), LargeBinary(), U64(), ActorText()]
_GIVEN: Select[Any] = select(
    *(bindparam(f"given_{number}", type_=kind).label(f"found_{number}") for number, kind in enumerate(_KINDS)),
    literal("100 %").label("constant"),
)
_AMONG = select(table.c.name).where(table.c.name.in_(bindparam("names", expanding=True))).order_by(table.c.name)
_OTHERS = select(table.c.name).where(table.c.name.not_in(bindparam("names", expanding=True)))
_FIXED = select(func.count()).where(table.c.name.in_(("a", "c")))


@pytest.fixture(name="connection")
def _connection(postgres_url: str) -> Iterator[Connection]:
    engine = engine_of(postgres_url, prepare_threshold=3)
    with engine.connect() as found:
        yield found
    engine.dispose()


@contextmanager
def _disposed(engine: Engine) -> Iterator[None]:
    try:
        yield
    finally:
        engine.dispose()


def _sender(connection: Connection) -> Sender:
    found: Sender = connection.info[SENDER]
    return found


def _prepared(connection: Connection) -> list[str]:
    return [one for (one,) in connection.exec_driver_sql(_NAMES)]


@pytest.mark.parametrize(
    "values",
    [
        ("x", 1, True, b"\0\xff", 2**64 - 1, Actor.parse("key:key_1")),
        ('it\'s \\ "§" \n%s $1 {}', -(2**63), False, b"", 0, None),
        ("", 2**63 - 1, None, None, 2**63, None),
        (None, None, None, None, None, None),
    ],
)
def test_values_and_rows_are_those_of_sqlalchemy(connection: Connection, values: tuple[Any, ...]) -> None:
    given = {f"given_{number}": value for number, value in enumerate(values)}
    for _ in range(4):  # not prepared, then prepared
        names, found = rows(connection, _GIVEN, given)
        result = connection.execute(_GIVEN, given)
        assert (names, tuple(found[0])) == (tuple(result.keys()), tuple(result.one()))
        assert tuple(found[0]) == (*values, "100 %")


@pytest.mark.parametrize(
    "setting",
    ["standard_conforming_strings = off", "client_encoding = 'latin1'", "client_encoding = 'SQL_ASCII'"],
)
def test_values_do_not_depend_on_the_settings_of_the_database(cluster: Cluster, template: str, setting: str) -> None:
    name = cluster.database(template)
    cluster.execute(f"ALTER DATABASE {name} SET {setting}")
    values = ("\u00e9 \u6f22 \U0001f600 \\ '", 1, True, bytes(range(256)), 1, None)
    engine = engine_of(cluster.url(name))
    with _disposed(engine), engine.connect() as connection:
        given = {f"given_{number}": value for number, value in enumerate(values)}
        for number in range(7):
            assert tuple(rows(connection, _GIVEN, given)[1][0]) == (*values, "100 %")
            upsert(connection, table, {"name": f"key {number}", "value": values[0]}, keys=["name"])
        assert connection.execute(_GIVEN, given).one() == (*values, "100 %")
        several = select(func.array_length(bindparam("all", type_=ARRAY(LargeBinary())), 1))
        assert connection.execute(several, {"all": [values[3]] * 2}).scalar() == 2
        assert {value for (value,) in connection.execute(select(table.c.value))} == {values[0]}


def test_end_of_an_idle_transaction_is_an_outage(connection: Connection) -> None:
    connection.exec_driver_sql("SET idle_in_transaction_session_timeout = '1ms'")

    def ask() -> None:
        for _ in range(100):
            time.sleep(0.01)
            scalar(connection, _FIXED, {})

    with pytest.raises(DBAPIError) as found:
        ask()
    assert is_storage_error(found.value)


def test_text_has_no_nul(connection: Connection) -> None:
    given = {"given_0": "a\0b", **dict.fromkeys([f"given_{number}" for number in range(1, 6)])}
    assert rows(connection, _GIVEN, given)[1][0][0] == "a\ufffdb"


@pytest.mark.parametrize("names", [[], ["a"], ["c", "a", "a"], ("b", "x"), {"a", "b", "c"}])
def test_lists_of_any_length_are_one_statement(connection: Connection, names: Any) -> None:
    for name in "abc":
        upsert(connection, table, {"name": name, "value": "1"}, keys=["name"])
    assert [one for (one,) in rows(connection, _AMONG, {"names": names})[1]] == sorted({*"abc"} & {*names})
    others = {one for (one,) in rows(connection, _OTHERS, {"names": names})[1]}
    assert others & {*"abc"} == {*"abc"} - {*names}
    assert scalar(connection, _FIXED, {}) == 2


def test_statement_that_comes_again_is_prepared_and_outlives_a_rollback(connection: Connection) -> None:
    for used in range(1, 6):
        assert scalar(connection, _FIXED, {}) == 0
        assert len(_prepared(connection)) == (used >= 3)
        connection.rollback()


def test_zero_prepares_nothing(postgres_url: str) -> None:
    engine = engine_of(postgres_url, prepare_threshold=0)
    with engine.connect() as connection:
        for _ in range(10):
            scalar(connection, _FIXED, {})
        assert _prepared(connection) == []
    engine.dispose()


def test_few_statements_stay_prepared(connection: Connection, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_postgres_statements, "KEPT", 4)
    for number in range(10):
        for _ in range(3):
            found = _sender(connection).run(f"SELECT {number} + $1::integer", [1])
            assert found.fetchall() == [(number + 1,)]
    assert _prepared(connection) == [f"SELECT {number} + $1::integer" for number in range(6, 10)]


def test_statement_keeps_its_name_on_every_connection(connection: Connection, postgres_url: str) -> None:
    # A pool may give the session of one to another between two transactions.
    engine = engine_of(postgres_url, prepare_threshold=3)
    named = "SELECT name FROM pg_prepared_statements"
    with _disposed(engine), engine.connect() as other:
        for number in range(2):
            for _ in range(3):
                _sender(other).run(f"SELECT {number} + $1::integer", [1])
        for _ in range(3):
            _sender(connection).run("SELECT 1 + $1::integer", [1])
        (own,) = connection.exec_driver_sql(named).scalars()
        assert own in set(other.exec_driver_sql(named).scalars())


@pytest.mark.parametrize("behind", ["DEALLOCATE ALL", "PREPARE {name} AS {text}"])
def test_session_of_a_pool_is_no_place_for_prepared_statements(postgres_url: str, behind: str) -> None:
    # Given a pool that mixes up sessions: what was prepared is gone, or what was not is there
    text = "SELECT 1 + $1::integer"
    with closing(PostgresDatabase(postgres_url, prepare_threshold=3)) as db:

        def use(connection: Connection) -> int:
            found: int = run_numbered(connection, text, [1]).fetchone()[0]
            return found

        for _ in range(3 if behind.startswith("DEALLOCATE") else 2):
            assert db.read_now(use) == 2
        name = f"agent_vault_{hashlib.sha256(text.encode()).hexdigest()[:32]}"
        db.read_now(lambda conn: _sender(conn).run_all(behind.format(name=name, text=text)))

        # Then nothing is prepared from now on, and everything goes on
        with pytest.raises(StorageUnavailableError):
            db.write_now(use)
        for _ in range(6):
            assert db.write_now(use) == db.read_now(use) == 2
        assert db.read_now(_prepared) == []


async def test_server_that_was_read_only_is_written_again(postgres_url: str, cluster: Cluster) -> None:
    name = make_url(postgres_url).database
    cluster.execute(f"ALTER DATABASE {name} SET default_transaction_read_only = on")
    with closing(PostgresDatabase(postgres_url)) as db:
        prepared: Work[object] = lambda conn: upsert(conn, table, {"name": "a", "value": "1"}, keys=["name"])  # noqa: E731
        for work in (prepared, lambda conn: conn.execute(insert(table).values(name="b", value="1"))):
            with pytest.raises(StorageUnavailableError):
                await db.write(work)
            with pytest.raises(StorageUnavailableError):
                await db.write_unordered(work)

        cluster.execute(f"ALTER DATABASE {name} RESET default_transaction_read_only")
        for work in (prepared, lambda conn: conn.execute(insert(table).values(name="b", value="1"))):
            await db.write(work)
        await db.write_unordered(lambda conn: upsert(conn, table, {"name": "c", "value": "1"}, keys=["name"]))
        assert db.read_now(lambda conn: set(conn.scalars(select(table.c.name)))) == {*"abc"}


def test_reading_transaction_is_one(postgres_db: PostgresDatabase) -> None:
    isolation = select(func.current_setting("transaction_isolation"), func.current_setting("transaction_read_only"))
    assert postgres_db.read_now(lambda conn: rows(conn, isolation, {})[1]) == [("repeatable read", "on")]


def test_refused_statement_raises_what_sqlalchemy_raises(connection: Connection) -> None:
    with pytest.raises(DataError):
        run_numbered(connection, "SELECT 1 / $1::integer", [0])
    with pytest.raises(InternalError):
        run_numbered(connection, "SELECT 1", [])
    connection.rollback()
    wrong = {"name": None, "value": "1"}
    with pytest.raises(IntegrityError) as found:
        upsert(connection, table, wrong, keys=["name"])
    assert "1" not in str(found.value.params or "")


def test_connection_on_which_nothing_can_be_sent_is_lost(connection: Connection) -> None:
    other = socket.socket(fileno=os.dup(_sender(connection)._libpq.socket))
    with closing(other):
        other.shutdown(socket.SHUT_WR)
    with pytest.raises(DBAPIError) as found:
        scalar(connection, _FIXED, {})
    assert found.value.connection_invalidated
    assert isinstance(found.value, OperationalError)
    # Work that goes on all the same.
    with pytest.raises(StorageUnavailableError):
        scalar(connection, _FIXED, {})


def test_lost_connection_is_noticed_for_all(postgres_url: str) -> None:
    with closing(PostgresDatabase(postgres_url)) as db:
        engine = db._engine
        with engine.connect() as first, engine.connect() as second:
            old = {one.connection.driver_connection for one in (first, second)}
        first = engine.connect()
        with psycopg.connect(postgres_url, autocommit=True) as other:
            other.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                " WHERE application_name = 'agent-vault' AND datname = current_database()"
            )
        with pytest.raises(DBAPIError) as found:
            scalar(first, _FIXED, {})
        assert found.value.connection_invalidated
        first.close()
        with engine.connect() as third:
            assert scalar(third, _FIXED, {}) == 0
            assert third.connection.driver_connection not in old
