"""The schema's history: Alembic leads every database to the tables that the code uses."""

import re
import sqlite3
from contextlib import closing
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, create_engine

import app.store
from app.core.paths import ConfigurationError
from app.database import SqliteDatabase, migrations
from app.database.columns import metadata
from app.store.values import get_value, put_value


def _schema(path: Path) -> dict[str, str]:
    """Return the DDL of each table and index, without white space and without Alembic's own table."""
    with closing(sqlite3.connect(path)) as connection:
        rows = connection.execute("SELECT name, sql FROM sqlite_master WHERE tbl_name != 'alembic_version'").fetchall()
    return {name: re.sub(r"\s", "", sql or "") for name, sql in rows}


def _revision(path: Path) -> str:
    with closing(sqlite3.connect(path)) as connection:
        return str(connection.execute("SELECT version_num FROM alembic_version").fetchone()[0])


def test_migrated_database_has_the_schema_of_the_tables(tmp_path: Path) -> None:
    for module in iter_modules(app.store.__path__, "app.store."):
        import_module(module.name)
    migrated, created = tmp_path / "migrated.db", tmp_path / "created.db"
    engine = create_engine(f"sqlite:///{created}")
    metadata.create_all(engine)
    engine.dispose()

    db = SqliteDatabase(migrated)
    differences = db.write_now(lambda conn: compare_metadata(MigrationContext.configure(conn), metadata))
    db.close()

    assert differences == []
    assert len(metadata.tables) > 20
    assert _schema(migrated) == _schema(created)


def test_listed_revisions_are_those_of_the_folder(tmp_path: Path) -> None:
    scripts = ScriptDirectory(str(Path(migrations.__file__).parent))

    assert [one.revision for one in scripts.walk_revisions()][::-1] == list(migrations.REVISIONS)
    SqliteDatabase(tmp_path / "app.db").close()
    assert _revision(tmp_path / "app.db") == migrations.REVISIONS[-1]


def test_each_revision_says_which_code_it_still_serves() -> None:
    scripts = ScriptDirectory(str(Path(migrations.__file__).parent))
    for one in scripts.walk_revisions():
        assert migrations.REVISIONS.index(one.module.oldest_code) <= migrations.REVISIONS.index(one.revision)


def test_file_of_the_version_before_is_upgraded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as old_code:
        old_code.setattr(migrations, "REVISIONS", migrations.REVISIONS[:-1])
        db = SqliteDatabase(tmp_path / "app.db")
        db.write_now(lambda conn: put_value(conn, "kept", "yes"))
        db.close()
        before = _revision(tmp_path / "app.db")

        # The old version still opens what the new one has upgraded
        old_code.undo()
        SqliteDatabase(tmp_path / "app.db").close()
        old_code.setattr(migrations, "REVISIONS", migrations.REVISIONS[:-1])
        old = SqliteDatabase(tmp_path / "app.db")
    assert old.write_now(lambda conn: get_value(conn, "kept")) == "yes"
    old.close()
    assert before == migrations.REVISIONS[-2] != _revision(tmp_path / "app.db") == migrations.REVISIONS[-1]


def test_invitations_of_the_version_before_get_their_inviters(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    inviters = {"inv_person": "person:per_1", "inv_command": "system:command_line", "inv_unknown": None}
    with monkeypatch.context() as old_code:
        old_code.setattr(migrations, "REVISIONS", ("0001", "0002"))
        SqliteDatabase(tmp_path / "app.db").close()
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

    SqliteDatabase(tmp_path / "app.db").close()

    with closing(sqlite3.connect(tmp_path / "app.db")) as upgraded:
        assert dict(upgraded.execute("SELECT invitation_id, invited_by FROM invitations").fetchall()) == inviters


def test_what_is_stored_survives_the_next_start(tmp_path: Path) -> None:
    db = SqliteDatabase(tmp_path / "app.db")
    db.write_now(lambda conn: put_value(conn, "kept", "yes"))
    db.close()
    before = _schema(tmp_path / "app.db")

    again = SqliteDatabase(tmp_path / "app.db")

    assert again.write_now(lambda conn: get_value(conn, "kept")) == "yes"
    again.close()
    assert _schema(tmp_path / "app.db") == before


def test_start_with_nothing_to_upgrade_does_without_alembic(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    SqliteDatabase(tmp_path / "app.db").close()
    monkeypatch.delattr(migrations, "_upgrade")

    SqliteDatabase(tmp_path / "app.db").close()


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
    db = SqliteDatabase(path)
    db.write_now(lambda conn: conn.exec_driver_sql(change))
    db.close()

    with pytest.raises(ConfigurationError) as refused:
        SqliteDatabase(path)

    newest = migrations.REVISIONS[-1]
    assert str(refused.value) == f"{path}: its schema is {schema}; this version supports up to {newest}"


def test_failed_upgrade_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    upgrade = migrations._upgrade

    def fail(connection: Connection) -> None:
        upgrade(connection)
        raise RuntimeError("no")

    monkeypatch.setattr(migrations, "_upgrade", fail)
    with pytest.raises(RuntimeError):
        SqliteDatabase(tmp_path / "app.db")
    assert _schema(tmp_path / "app.db") == {}
    monkeypatch.undo()

    SqliteDatabase(tmp_path / "app.db").close()
    assert _revision(tmp_path / "app.db") == migrations.REVISIONS[-1]
