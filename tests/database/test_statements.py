"""Statements on both databases: marks of the drivers inside literals are text, and a list of JSON is one value."""

from collections.abc import Sequence

from sqlalchemy import ColumnClause, Connection, bindparam, func, insert, literal_column, select, update

from app.database import Database
from app.database.columns import upsert_all
from app.database.statements import Row, execute, execute_later, rows, scalar
from app.store.alerts import rules
from app.store.state_tables import setting_values as table

_TEXT = "a WHERE b IN (:name, %%, $1, ?) VALUES (x)"
_LITERAL: ColumnClause[str] = literal_column(f"'{_TEXT}'")


def _put(connection: Connection, given: Sequence[Row]) -> None:
    execute_later(connection, _INSERT, given, ("name", "value"))


_INSERT = insert(table)
_ECHO = select(_LITERAL, bindparam("name", type_=table.c.name.type)).where(bindparam("other") != _LITERAL)
_MARK = update(table).where(table.c.name == bindparam("key"), table.c.value != _LITERAL).values(value=_LITERAL)
_MARKED = select(func.count()).where(table.c.value == _LITERAL, table.c.name.in_(bindparam("names", expanding=True)))


def test_literals_with_marks_of_the_drivers_survive(db: Database) -> None:
    _, [echoed] = db.read_now(lambda conn: rows(conn, _ECHO, {"name": _TEXT, "other": "$1"}))
    assert tuple(echoed) == (_TEXT, _TEXT)

    names = ["a", "b", _TEXT]
    db.write_now(lambda conn: _put(conn, [{"name": name, "value": "1"} for name in names]))
    assert db.write_now(lambda conn: execute(conn, _MARK, {}, key="a")) == 1
    db.write_now(lambda conn: execute_later(conn, _MARK, [{"key": name} for name in names]))

    assert db.read_now(lambda conn: scalar(conn, _MARKED, {"names": names})) == 3
    assert db.read_now(lambda conn: scalar(conn, _MARKED, {"names": []})) == 0


def test_lists_in_a_column_survive_with_several_rows(db: Database) -> None:
    lists = {"balance_low": ["a@example.com", "{b}"], "inactivity": [], "velocity_spike": ["c"], "updated": None}
    given = [
        {"scope": "org", "org": "org", "type": name, "enabled": True, "threshold": 1, "emails": emails, "updated_at": 1}
        for name, emails in lists.items()
    ]

    db.write_now(lambda conn: upsert_all(conn, rules, given, keys=["scope", "type"]))

    found = db.read_now(lambda conn: conn.execute(select(rules.c.type, rules.c.emails)).all())
    assert dict(map(tuple, found)) == lists
