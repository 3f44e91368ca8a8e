"""The schema's history: Alembic leads every database to the tables that the code uses."""

import re
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, Engine, create_engine, text

import app
from app.core.paths import ConfigurationError
from app.database import SqliteDatabase, migrations
from app.database.columns import metadata
from app.database.postgres.engine import engine_of
from app.store.schema import create_tables
from app.store.values import get_value, put_value
from indexer import schema
from tests.support.old_databases import FIRST, OF_THE_SCHEMA, create_old, create_old_file, fill, rows_of
from tests.support.postgres import Cluster

_COLUMNS = """
SELECT attrelid::regclass, attname, format_type(atttypid, atttypmod), attnotnull, collname, pg_get_expr(adbin, adrelid)
FROM pg_attribute JOIN pg_class t ON t.oid = attrelid LEFT JOIN pg_collation c ON c.oid = attcollation
LEFT JOIN pg_attrdef ON adrelid = attrelid AND adnum = attnum
WHERE attnum > 0 AND t.relkind = 'r' AND t.relnamespace = 'public'::regnamespace
"""
_CONSTRAINTS = """
SELECT conrelid::regclass, conname, pg_get_constraintdef(oid) FROM pg_constraint
WHERE connamespace = 'public'::regnamespace
"""
_SHAPE = (_COLUMNS, _CONSTRAINTS, "SELECT indexdef FROM pg_indexes WHERE schemaname = 'public'")
"""Queries for all columns, constraints and indexes on PostgreSQL."""


def _schema(path: Path) -> dict[str, str]:
    """Return the DDL of each table and index, without white space and without Alembic's own table."""
    with closing(sqlite3.connect(path)) as connection:
        rows = connection.execute("SELECT name, sql FROM sqlite_master WHERE tbl_name != 'alembic_version'").fetchall()
    return {name: re.sub(r"\s", "", sql or "") for name, sql in rows}


def _revision(path: Path) -> str:
    with closing(sqlite3.connect(path)) as connection:
        return str(connection.execute("SELECT version_num FROM alembic_version").fetchone()[0])


@pytest.fixture(params=["sqlite", "postgresql"])
def engine(request: pytest.FixtureRequest) -> Iterator[Engine]:
    """An empty database, once of each kind."""
    if request.param == "sqlite":
        made = create_engine(f"sqlite:///{request.getfixturevalue('tmp_path') / 'app.db'}")
    else:
        cluster: Cluster = request.getfixturevalue("cluster")
        made = engine_of(cluster.url(cluster.database()))
    yield made
    made.dispose()


def _differences(connection: Connection) -> list[Any]:
    """Return the differences of a database's schema from the declared tables."""
    declared = [metadata, schema.metadata] if connection.dialect.name == "postgresql" else [metadata]
    return list(compare_metadata(MigrationContext.configure(connection), declared))  # type: ignore[arg-type] # several are allowed


def _shape(connection: Connection) -> Any:
    """Return all columns, constraints and indexes of a database as it describes them."""
    if connection.dialect.name == "sqlite":
        found = connection.execute(text("SELECT name, sql FROM sqlite_master WHERE name NOT LIKE 'sqlite_%'"))
        return {name: re.sub(r"\s", "", sql) for name, sql in found}
    return [sorted(map(str, connection.execute(text(one)))) for one in _SHAPE]


def test_upgraded_database_keeps_its_rows_and_has_the_schema_of_a_new_one(
    engine: Engine, cluster: Cluster, tmp_path: Path
) -> None:
    with engine.begin() as connection:
        create_old(connection)
        fill(connection)
        before = rows_of(connection)
        migrations.migrate(connection, create_tables)
        after, upgraded = rows_of(connection), _shape(connection)
        assert _differences(connection) == []
    postgresql = engine.dialect.name == "postgresql"
    fresh = engine_of(cluster.url(cluster.database())) if postgresql else create_engine(f"sqlite:///{tmp_path / 'new'}")
    with fresh.begin() as connection:
        migrations.migrate(connection, create_tables)
        assert _shape(connection) == upgraded
        assert _differences(connection) == []
    fresh.dispose()

    assert len(before) > 50
    assert after["alembic_version"] == [{"version_num": migrations.REVISIONS[-1]}]
    assert [one["revision"] for one in after["schema_versions"]] == [FIRST, migrations.REVISIONS[-1]]
    for table in before.keys() - OF_THE_SCHEMA:
        [row], [kept] = before[table], after[table]
        assert {name: kept[name] for name in row} == row, table


def test_new_database_has_all_tables_whatever_was_imported(tmp_path: Path) -> None:
    script = (
        "import sys; from app.database import SqliteDatabase; from app.store.schema import create_tables;"
        "SqliteDatabase(sys.argv[1], create_tables).close()"
    )
    subprocess.run([sys.executable, "-c", script, str(tmp_path / "alone.db")], check=True)
    sources = Path(app.__path__[0]).rglob("*.py")
    declaring = {path.relative_to(app.__path__[0]).parts[0] for path in sources if " = Table(" in path.read_text()}

    assert declaring == {"database", "store"}
    with closing(sqlite3.connect(tmp_path / "alone.db")) as alone:
        names = {name for (name,) in alone.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    assert names == {*metadata.tables, "alembic_version", "sqlite_sequence"}


def test_listed_revisions_are_those_of_the_folder(tmp_path: Path) -> None:
    scripts = ScriptDirectory(str(Path(migrations.__file__).parent))

    assert [one.revision for one in scripts.walk_revisions()][::-1] == list(migrations.REVISIONS)
    SqliteDatabase(tmp_path / "app.db", create_tables).close()
    assert _revision(tmp_path / "app.db") == migrations.REVISIONS[-1]


def test_each_revision_says_which_code_it_still_serves() -> None:
    scripts = ScriptDirectory(str(Path(migrations.__file__).parent))
    for one in scripts.walk_revisions():
        assert migrations.REVISIONS.index(one.module.oldest_code) <= migrations.REVISIONS.index(one.revision)


def test_file_of_the_version_before_is_upgraded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    create_old_file(tmp_path / "app.db", migrations.REVISIONS[-2])
    with monkeypatch.context() as old_code:
        old_code.setattr(migrations, "REVISIONS", migrations.REVISIONS[:-1])
        db = SqliteDatabase(tmp_path / "app.db", create_tables)
        db.write_now(lambda conn: put_value(conn, "kept", "yes"))
        db.close()
        before = _revision(tmp_path / "app.db")

        # The old version still opens what the new one has upgraded
        old_code.undo()
        SqliteDatabase(tmp_path / "app.db", create_tables).close()
        old_code.setattr(migrations, "REVISIONS", migrations.REVISIONS[:-1])
        old = SqliteDatabase(tmp_path / "app.db", create_tables)
    assert old.write_now(lambda conn: get_value(conn, "kept")) == "yes"
    old.close()
    assert before == migrations.REVISIONS[-2] != _revision(tmp_path / "app.db") == migrations.REVISIONS[-1]


def test_invitations_of_the_version_before_get_their_inviters(tmp_path: Path) -> None:
    inviters = {"inv_person": "person:per_1", "inv_command": "system:command_line", "inv_unknown": None}
    create_old_file(tmp_path / "app.db", "0002")
    with closing(sqlite3.connect(tmp_path / "app.db")) as old:
        for number, (invitation_id, actor) in enumerate(inviters.items()):
            old.execute(
                "INSERT INTO invitations (invitation_id, digest, org, name, role, created_at, expires_at)"
                " VALUES (?, ?, 'org', 'Ada', 'admin', 1, 2)",
                [invitation_id, invitation_id],
            )
            for log, who in (("org", actor), ("other", "person:per_other")):
                if actor is not None:
                    old.execute(
                        "INSERT INTO audit_entries (log, number, timestamp, actor, action, object, details, hash)"
                        " VALUES (?, ?, 1, ?, 'person.invite', ?, '{}', '')",
                        [log, number, who, invitation_id],
                    )
        old.commit()

    SqliteDatabase(tmp_path / "app.db", create_tables).close()

    with closing(sqlite3.connect(tmp_path / "app.db")) as upgraded:
        assert dict(upgraded.execute("SELECT invitation_id, invited_by FROM invitations").fetchall()) == inviters


def test_what_is_stored_survives_the_next_start(tmp_path: Path) -> None:
    db = SqliteDatabase(tmp_path / "app.db", create_tables)
    db.write_now(lambda conn: put_value(conn, "kept", "yes"))
    db.close()
    before = _schema(tmp_path / "app.db")

    again = SqliteDatabase(tmp_path / "app.db", create_tables)

    assert again.write_now(lambda conn: get_value(conn, "kept")) == "yes"
    again.close()
    assert _schema(tmp_path / "app.db") == before


def test_start_with_nothing_to_upgrade_does_without_alembic(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    SqliteDatabase(tmp_path / "app.db", create_tables).close()
    monkeypatch.delattr(migrations, "_upgrade")

    SqliteDatabase(tmp_path / "app.db", create_tables).close()


@pytest.mark.parametrize(
    ("change", "schema"),
    [
        ("UPDATE alembic_version SET version_num = '9999'", "9999"),
        ("DELETE FROM alembic_version", "None"),
        ("DROP TABLE alembic_version", "unversioned"),
    ],
)
def test_database_with_an_unknown_schema_is_refused(tmp_path: Path, change: str, schema: str) -> None:
    path = tmp_path / "app.db"
    db = SqliteDatabase(path, create_tables)
    db.write_now(lambda conn: conn.exec_driver_sql(change))
    db.close()

    with pytest.raises(ConfigurationError) as refused:
        SqliteDatabase(path, create_tables)

    newest = migrations.REVISIONS[-1]
    assert str(refused.value) == f"{path}: its schema is {schema}; this version supports up to {newest}"


def test_failed_upgrade_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    upgrade = migrations._upgrade

    def fail(*arguments: Any) -> None:
        upgrade(*arguments)
        raise RuntimeError("no")

    monkeypatch.setattr(migrations, "_upgrade", fail)
    with pytest.raises(RuntimeError):
        SqliteDatabase(tmp_path / "app.db", create_tables)
    assert _schema(tmp_path / "app.db") == {}
    monkeypatch.undo()

    SqliteDatabase(tmp_path / "app.db", create_tables).close()
    assert _revision(tmp_path / "app.db") == migrations.REVISIONS[-1]
