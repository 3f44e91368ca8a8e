"""The store of exports: finds what is over without looking at the rest, and forgets what is long gone."""

from dataclasses import replace

import pytest
from sqlalchemy import Connection

from app.core.timestamps import now_ms
from app.database import Database
from app.server.housekeeping import Housekeeping
from app.store.exports import ExportRecord, expire, export, forget, insert_export, live, over, with_status
from tests.support.plans import listening
from tests.support.postgres import ON_SQLITE

_DAY = 86_400_000
_MADE = ExportRecord("exp_0", "org", None, "csv", None, None, "ready", 1, 1, rows=5, finished_at=1, expires_at=10)


def _store(db: Database, *made: ExportRecord) -> None:
    for one in made:
        db.write_now(lambda conn, one=one: insert_export(conn, one))  # type: ignore[misc]


def test_some_of_what_is_over_are_found_and_marked(db: Database) -> None:
    _store(db, *(replace(_MADE, export_id=f"exp_{number}", expires_at=number) for number in range(5)))

    found = db.read_now(lambda conn: over(conn, 2, most=2))
    db.write_now(lambda conn: expire(conn, [one.export_id for one in found]))

    assert len(found) == 2
    assert [one.expires_at for one in db.read_now(lambda conn: over(conn, 2, most=9)) if one not in found]
    assert len(db.read_now(lambda conn: over(conn, 2, most=9))) == 1
    assert len(db.read_now(lambda conn: with_status(conn, "expired"))) == 2


@ON_SQLITE
def test_looks_at_exports_go_through_an_index(db: Database) -> None:
    statements: list[tuple[str, object]] = []

    with listening(lambda _conn, sql, values: statements.append((sql, values))):
        db.read_now(lambda conn: over(conn, 1, most=1))
        db.read_now(lambda conn: live(conn, "org", None))
        db.write_now(lambda conn: forget(conn, 1, most=1))

    def plan(conn: Connection) -> list[str]:
        made = [conn.exec_driver_sql(f"EXPLAIN QUERY PLAN {text}", given) for text, given in statements]  # type: ignore[arg-type]
        return [row[3] for rows in made for row in rows]

    steps = [step for step in db.read_now(plan) if "exports" in step]
    assert any("exports_by_end (status=? AND expires_at<?)" in step for step in steps)
    assert any("exports_by_org (org=? AND status=?)" in step for step in steps)
    assert any("exports_by_status (status=? AND created_at<?)" in step for step in steps)
    assert not [step for step in steps if step.startswith("SCAN")]


def test_what_an_organisation_has_is_counted_without_that_of_others(db: Database) -> None:
    _store(
        db,
        _MADE,
        replace(_MADE, export_id="exp_1", expires_at=7),
        replace(_MADE, export_id="exp_2", status="processing", expires_at=None),
        replace(_MADE, export_id="exp_3", status="expired", expires_at=1),
        replace(_MADE, export_id="exp_4", org="other"),
    )

    found = db.read_now(lambda conn: live(conn, "org", None))

    assert (found.processing, found.ready, found.rows, found.first_end) == (1, 2, 15, 7)
    nothing = db.read_now(lambda conn: live(conn, "nobody", None))
    assert (nothing.processing, nothing.ready, nothing.rows, nothing.first_end) == (0, 0, 0, None)


@pytest.mark.proves("Limits: Exports that expired or failed")
@pytest.mark.asyncio
async def test_exports_are_forgotten_90_days_after_their_request(db: Database) -> None:
    now = now_ms()
    old, new = now - 91 * _DAY, now - 89 * _DAY
    _store(
        db,
        *(replace(_MADE, export_id=f"exp_{number}", status="expired", created_at=old) for number in range(250)),
        replace(_MADE, export_id="exp_failed", status="failed", created_at=old),
        replace(_MADE, export_id="exp_new", status="expired", created_at=new),
        replace(_MADE, export_id="exp_live", created_at=old, expires_at=now + _DAY),
    )

    await Housekeeping(db, interval=60, days=90, requests=0, chain_clock=lambda: now, clock=lambda: now / 1000).tick()

    assert [one.export_id for one in db.read_now(lambda conn: with_status(conn, "expired"))] == ["exp_new"]
    assert db.read_now(lambda conn: with_status(conn, "failed")) == []
    assert db.read_now(lambda conn: export(conn, "exp_live")) is not None
