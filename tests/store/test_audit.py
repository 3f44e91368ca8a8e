"""The audit log's hash chain: what it covers, what a verification finds, and what is left of deleted entries."""

import hashlib
import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Connection, delete, text, update

from app.core.actors import Actor
from app.database import Database, SqliteDatabase
from app.store.audit import (
    BrokenLogError,
    LogEntry,
    LogFilter,
    NewLogEntry,
    append,
    delete_entries,
    entries_after,
    heads,
    link,
    log_entries,
    log_head,
    rows_after,
    table,
    verify,
)
from app.store.audit_actions import Action
from app.store.schema import create_tables
from tests.support.plans import explained
from tests.support.postgres import ON_SQLITE

ORG, OTHER = "org-1", "org-2"


def _new(number: int, log: str = ORG, **members: Any) -> NewLogEntry:
    details = {"name": f"Käse \n\x1f€ {number}", "count": number, "none": None, "list": [True, {"b": 1, "a": "x"}]}
    values = {"timestamp": 1_700_000_000_000 + number, "details": details, "object": f"key_{number}", **members}
    return NewLogEntry(log, "key.create", Actor("key", "key_admin"), **values)


def _fill(db: Database, count: int = 5, log: str = ORG) -> list[str]:
    """Append entries and return their hashes, from the first on."""
    return [db.write_now(partial(append, new=_new(number, log))).hash for number in range(count)]


def _verify(db: Database, head: str, log: str = ORG) -> int:
    return db.read_now(lambda conn: verify(conn, log, head))


def _broken(db: Database, head: str) -> str:
    with pytest.raises(BrokenLogError) as found:
        _verify(db, head)
    assert "\n" not in str(found.value)
    return str(found.value)


@pytest.mark.proves("AuditLogEntry(hash)")
def test_hashes_can_be_recomputed_from_what_the_api_shows(db: Database) -> None:
    hashes = _fill(db)

    previous = "0" * 64
    for entry, expected in zip(db.read_now(lambda conn: entries_after(conn, ORG, 0, limit=10)), hashes, strict=True):
        shown = json.loads(json.dumps(entry.members()))
        canonical = json.dumps(shown, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
        previous = hashlib.sha256(previous.encode() + canonical.encode()).hexdigest()
        assert previous == entry.hash == expected
        assert set(shown) == {
            *("number", "log", "timestamp", "actor", "action", "object", "address", "request_id", "details"),
        }


@pytest.mark.proves("AuditLogEntry(number)")
def test_every_log_is_a_chain_of_its_own(db: Database) -> None:
    first = db.write_now(lambda conn: append(conn, _new(1)))
    other = db.write_now(lambda conn: append(conn, _new(1, OTHER)))
    second = db.write_now(lambda conn: append(conn, _new(2)))

    assert (first.number, other.number, second.number) == (1, 1, 2)
    assert len({first.hash, other.hash, second.hash}) == 3
    assert _verify(db, second.hash) == 2
    assert _verify(db, other.hash, OTHER) == 1


@ON_SQLITE
def test_two_processes_append_to_one_chain(db: Database, tmp_path: Path) -> None:
    other = SqliteDatabase(tmp_path / "app.db", create_tables)

    def fill(database: Database) -> None:
        _fill(database, 50)

    with ThreadPoolExecutor(2) as pool:
        for done in [pool.submit(fill, database) for database in (db, other)]:
            done.result()
    other.close()

    head = db.read_now(lambda conn: log_head(conn, ORG))
    assert head is not None
    assert _verify(db, head.hash) == 100


def test_entry_is_stored_with_its_effect_or_not_at_all(db: Database) -> None:
    hashes = _fill(db, 2)

    def fail(conn: Connection) -> None:
        append(conn, _new(3))
        raise RuntimeError("the effect failed")

    with pytest.raises(RuntimeError):
        db.write_now(fail)

    assert _verify(db, hashes[-1]) == 2


@pytest.mark.parametrize("noted", range(5))
def test_untouched_log_has_every_head_that_was_noted(db: Database, noted: int) -> None:
    hashes = _fill(db)

    assert _verify(db, hashes[noted]) == 5


@pytest.mark.parametrize(
    "changes",
    [
        {"actor": Actor("key", "key_other")},
        {"action": "key.revoke"},
        {"object": "key_9"},
        {"timestamp": 1},
        {"address": "192.0.2.1"},
        {"details": {}},
        {"request_id": "req_x"},
    ],
)
def test_rewritten_entry_is_found(db: Database, changes: dict[str, Any]) -> None:
    hashes = _fill(db)
    db.write_now(lambda conn: conn.execute(update(table).where(table.c.number == 3).values(**changes)))

    assert "entry 3 of" in _broken(db, hashes[-1])


def _rewrite_from(conn: Connection, number: int) -> None:
    """Do what somebody does who may write the database: change an entry and make all hashes fit again."""
    conn.execute(update(table).where(table.c.number == number).values(object="somebody-else"))
    previous = entries_after(conn, ORG, number - 2, limit=1)[0].hash
    for entry in entries_after(conn, ORG, number - 1, limit=100):
        previous = link(previous, entry)
        conn.execute(update(table).where(table.c.number == entry.number).values(hash=previous))
    conn.execute(update(heads).values(hash=previous))


def test_log_written_anew_with_fitting_hashes_lacks_the_head(db: Database) -> None:
    hashes = _fill(db)
    db.write_now(lambda conn: _rewrite_from(conn, 3))

    assert f"none has the hash {hashes[-1]}" in _broken(db, hashes[-1])
    # What was before the change is as it was.
    assert _verify(db, hashes[1]) == 5


@pytest.mark.proves("AuditLogEntry(number)")
def test_removed_entry_is_found(db: Database) -> None:
    hashes = _fill(db)
    db.write_now(lambda conn: conn.execute(delete(table).where(table.c.number.in_([2, 3]))))

    assert _broken(db, hashes[-1]) == "entries 2 to 3 are missing"


def test_removed_beginning_is_found(db: Database) -> None:
    hashes = _fill(db)
    db.write_now(lambda conn: conn.execute(delete(table).where(table.c.number == 1)))

    assert _broken(db, hashes[-1]) == "entry 1 is missing, and no checkpoint ends there"


def _shorten(conn: Connection, number: int, *, moves_head: bool) -> None:
    conn.execute(delete(table).where(table.c.number > number))
    if moves_head:
        [last] = entries_after(conn, ORG, number - 1, limit=1)
        conn.execute(update(heads).values(number=number, hash=last.hash))


@pytest.mark.parametrize(
    ("moves_head", "reason"),
    [(False, "the log ends with entry 3, but its stored head is entry 5"), (True, "the entries up to 3 agree")],
)
def test_shortened_log_is_found(db: Database, *, moves_head: bool, reason: str) -> None:
    hashes = _fill(db)
    db.write_now(lambda conn: _shorten(conn, 3, moves_head=moves_head))

    assert reason in _broken(db, hashes[-1])


def test_emptied_log_is_found(db: Database) -> None:
    hashes = _fill(db)

    def empty(conn: Connection) -> None:
        conn.execute(delete(table))
        conn.execute(delete(heads))

    db.write_now(empty)

    assert "entry 0" in _broken(db, hashes[-1])


def test_verification_goes_on_from_the_checkpoint(db: Database) -> None:
    hashes = _fill(db, 10)
    before = 1_700_000_000_000 + 6

    assert db.write_now(lambda conn: delete_entries(conn, ORG, before, most=4)) == 4
    assert db.write_now(lambda conn: delete_entries(conn, ORG, before, most=4)) == 2
    assert db.write_now(lambda conn: delete_entries(conn, ORG, before, most=4)) == 0

    left = db.read_now(lambda conn: entries_after(conn, ORG, 0, limit=100))
    assert [entry.number for entry in left] == [7, 8, 9, 10, 11, 12]
    assert [entry.details for entry in left if entry.action == "audit.checkpoint"] == [
        {"number": 4, "hash": hashes[3]},
        {"number": 6, "hash": hashes[5]},
    ]
    # The heads from the checkpoint on are known, earlier ones are gone with their entries.
    for noted in hashes[5:]:
        assert _verify(db, noted) == 12
    assert "older than the checkpoint" in _broken(db, hashes[4])


def test_checkpoint_of_everything_is_what_is_left(db: Database) -> None:
    hashes = _fill(db)

    assert db.write_now(lambda conn: delete_entries(conn, ORG, 1_800_000_000_000, most=100)) == 5

    head = db.read_now(lambda conn: log_head(conn, ORG))
    assert head is not None
    assert _verify(db, head.hash) == _verify(db, hashes[-1]) == 6


def test_more_than_the_checkpoint_covers_is_missing(db: Database) -> None:
    hashes = _fill(db, 10)
    db.write_now(lambda conn: delete_entries(conn, ORG, 1_700_000_000_000 + 6, most=100))
    db.write_now(lambda conn: conn.execute(delete(table).where(table.c.number == 7)))

    assert _broken(db, hashes[-1]) == "entries 1 to 7 are missing, and no checkpoint ends there"


def _forge_checkpoint(conn: Connection, number: int, hash_: str) -> None:
    conn.execute(delete(table).where(table.c.number <= number))
    details = {"number": number, "hash": hash_}
    conn.execute(update(table).where(table.c.action == "audit.checkpoint").values(details=details))


def test_moved_checkpoint_is_found(db: Database) -> None:
    hashes = _fill(db, 10)
    db.write_now(lambda conn: delete_entries(conn, ORG, 1_700_000_000_000 + 6, most=100))
    db.write_now(lambda conn: _forge_checkpoint(conn, 8, hashes[7]))

    assert "entry 11 of" in _broken(db, hashes[-1])


@pytest.mark.proves("GET /v1/audit-log(limit, cursor)")
@pytest.mark.parametrize(
    ("wanted", "matches"),
    [
        (LogFilter(), lambda _number: True),
        (LogFilter(actor=Actor("key", "even")), lambda number: number % 2 == 0),
        (LogFilter(action="key.revoke"), lambda number: number % 3 == 0),
        (LogFilter(object="key_4"), lambda number: number == 4),
        (LogFilter(start=1_700_000_000_003, end=1_700_000_000_007), lambda number: 3 <= number < 7),
        (LogFilter(actor=Actor("key", "even"), action="key.revoke", start=1), lambda number: number % 6 == 0),
    ],
)
def test_log_is_filtered_and_paged(db: Database, wanted: LogFilter, matches: Callable[[int], bool]) -> None:
    for number in range(12):
        action: Action = "key.revoke" if number % 3 == 0 else "key.create"
        actor = Actor("key", "odd" if number % 2 else "even")
        new = NewLogEntry(ORG, action, actor, f"key_{number}", timestamp=1_700_000_000_000 + number)
        db.write_now(partial(append, new=new))
    db.write_now(lambda conn: append(conn, _new(1, OTHER)))

    found, cursor = [], None
    while True:
        page = db.read_now(partial(log_entries, log=ORG, wanted=wanted, limit=2, cursor=cursor))
        found += [entry.object for entry in page.data if isinstance(entry, LogEntry)]
        if not page.has_more:
            break
        cursor = page.next_cursor

    assert found == [f"key_{number}" for number in reversed(range(12)) if matches(number)]


def test_list_is_in_the_order_of_the_numbers(db: Database) -> None:
    for timestamp in (5, 9, 1, 7, 3):
        db.write_now(partial(append, new=_new(0, timestamp=timestamp)))

    found, cursor = [], None
    for _ in range(2):
        page = db.read_now(partial(log_entries, log=ORG, wanted=LogFilter(start=2), limit=2, cursor=cursor))
        found += [entry.number for entry in page.data]
        cursor = page.next_cursor

    assert found == [5, 4, 2, 1]


@ON_SQLITE
@pytest.mark.parametrize(
    ("wanted", "index"),
    [
        (LogFilter(), "sqlite_autoindex_audit_entries_1 (log=? AND number<?)"),
        (LogFilter(start=1, end=2), "sqlite_autoindex_audit_entries_1 (log=? AND number<?)"),
        (LogFilter(actor=Actor("key", "a"), start=1), "audit_entries_by_actor (log=? AND actor=? AND number<?)"),
        (LogFilter(action="key.create", end=9**9), "audit_entries_by_action (log=? AND action=? AND number<?)"),
        (LogFilter(object="o", action="key.create"), "audit_entries_by_object (log=? AND object=? AND number<?)"),
    ],
)
def test_every_list_is_read_in_the_order_of_an_index(db: Database, wanted: LogFilter, index: str) -> None:
    for number in range(3):
        new = replace(_new(number), actor=Actor("key", "a"), object="o", timestamp=1)
        db.write_now(partial(append, new=new))
    plans: list[str] = []

    def read(conn: Connection) -> None:
        page = log_entries(conn, ORG, wanted, limit=1)

        plans.extend(explained(conn, lambda: log_entries(conn, ORG, wanted, limit=1, cursor=page.next_cursor)))

    db.read_now(read)

    assert plans == [f"SEARCH audit_entries USING INDEX {index}"]


_ALTERED = {
    "details that are no JSON": "details = 'garbage'",
    "details that are no text": "details = x'ff'",
    "details in another encoding": "details = CAST(x'ff' AS TEXT)",
    "details that are a list": "details = '[1]'",
    "details that are null": "details = 'null'",
    "details with half a character": 'details = \'{"a": "\\ud800"}\'',
    "details with no number": "details = '{\"a\": 1e999}'",
    "deep details": f"details = '{'[' * 100_000}'",
    "an actor without a type": "actor = 'garbage'",
    "an actor in another encoding": "actor = CAST(x'66ff' AS TEXT)",
    "a time without a date": "timestamp = 99999999999999999",
    "a time that is no number": "timestamp = 'soon'",
    "an object that is no text": "object = x'ff'",
    "a hash that is no text": "hash = x'ff'",
}


@ON_SQLITE
@pytest.mark.parametrize("how", list(_ALTERED))
def test_altered_row_is_named_and_hides_no_other(db: Database, how: str) -> None:
    hashes = _fill(db)
    db.write_now(lambda conn: conn.execute(text(f"UPDATE audit_entries SET {_ALTERED[how]} WHERE number = 3")))

    column = _ALTERED[how].partition(" ")[0]
    assert f"entry 3 cannot be read: its column {column} was rewritten" in _broken(db, hashes[-1])
    listed = db.read_now(lambda conn: rows_after(conn, ORG, 0, limit=10))
    assert [(one.number, isinstance(one, LogEntry)) for one in listed] == [
        *((1, True), (2, True), (3, False), (4, True), (5, True))
    ]
    assert db.read_now(lambda conn: log_entries(conn, ORG, LogFilter())).data == listed[::-1]
    # And what cannot be read is not deleted as old either.
    assert db.write_now(lambda conn: delete_entries(conn, ORG, 1_800_000_000_000, most=100)) == 2


@ON_SQLITE
@pytest.mark.parametrize("number", ["'three'", "x'03'"])
def test_entry_whose_number_was_altered_is_missing(db: Database, number: str) -> None:
    hashes = _fill(db)
    db.write_now(lambda conn: conn.execute(text(f"UPDATE audit_entries SET number = {number} WHERE number = 3")))

    assert _broken(db, hashes[-1]) == "entry 3 is missing"
    listed = db.read_now(lambda conn: log_entries(conn, ORG, LogFilter())).data
    assert [one.number for one in listed] == [5, 4, 2, 1]


@ON_SQLITE
def test_altered_checkpoint_is_named(db: Database) -> None:
    hashes = _fill(db, 10)
    db.write_now(lambda conn: delete_entries(conn, ORG, 1_700_000_000_000 + 6, most=100))
    db.write_now(lambda conn: conn.execute(text("UPDATE audit_entries SET details = 'x' WHERE number = 11")))

    assert "entry 11 cannot be read" in _broken(db, hashes[-1])


@pytest.mark.proves("Actor(type)")
@pytest.mark.parametrize("name", ["", "key", "key:", ":key_1", "robot:1", "KEY:1"])
def test_actor_is_a_type_and_an_id(name: str) -> None:
    with pytest.raises(ValueError, match="a type and an id"):
        Actor.parse(name)
    for actor in (Actor("key", "key_1"), Actor("chain", "a:b"), Actor("person", "p"), Actor("system", "keeper")):
        assert Actor.parse(str(actor)) == actor
