"""The ledger of committed attempts."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from app.core.timestamps import now_ms
from app.database import commit_log as ledger
from app.database.commit_log import CommitLog
from app.database.postgres.database import PostgresDatabase
from app.store.attempts import Attempt, insert_attempt
from app.store.guard import CHECKED, guard_values, mark_checked, raised_at, report_lost_commits
from app.store.idempotency import LIFETIME


def _store(db: PostgresDatabase, tx_id: str) -> None:
    attempt = Attempt(tx_id=tx_id, org="org", type="freeze", status="pending", created_at=now_ms())
    db.write_now(lambda conn: insert_attempt(conn, attempt))


def _lines(folder: Path) -> list[str]:
    return [line.split()[0] for line in (folder / "committed-1").read_text().splitlines()]


def _missing(db: PostgresDatabase, kept: CommitLog) -> Mapping[str, int]:
    return db.read_now(lambda conn: kept.missing(conn, now_ms() - LIFETIME))


def test_attempt_that_the_database_lacks_is_missing_also_after_a_kill(
    postgres_db: PostgresDatabase, tmp_path: Path
) -> None:
    first = CommitLog(tmp_path, "1")
    for tx_id in ("kept", "lost"):
        first.add(tx_id, "org")
    _store(postgres_db, "kept")
    # As a crash leaves it, and with what another process in the folder has committed
    with (tmp_path / "committed-1").open("a") as file:
        file.write("half or")
    CommitLog(tmp_path, "2").add("also_lost", "other")
    for found in (first, CommitLog(tmp_path, "1")):
        assert set(_missing(postgres_db, found)) >= {"org"}
    assert set(_missing(postgres_db, CommitLog(tmp_path, "1"))) == {"org", "other"}


def test_attempt_older_than_its_idempotency_key_is_not_missed(postgres_db: PostgresDatabase, tmp_path: Path) -> None:
    (tmp_path / "committed-1").write_text(f"old org {now_ms() - LIFETIME - 1}\n")
    assert _missing(postgres_db, CommitLog(tmp_path, "1")) == {}


def test_ledger_keeps_the_newest_attempts_in_a_bounded_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ledger, "KEPT", 3)
    kept = CommitLog(tmp_path, "1")
    for number in range(20):
        kept.add(f"tx_{number}", "org")
        kept.add(f"tx_{number}", "org")
        assert len(_lines(tmp_path)) <= 7
    assert _lines(tmp_path)[-1] == "tx_19"
    CommitLog(tmp_path, "1")
    assert _lines(tmp_path) == ["tx_17", "tx_18", "tx_19"]


def test_folder_that_cannot_be_written_stops_no_payment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = CommitLog(tmp_path, "1")

    def full(*_given: Any, **_options: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "open", full)
    kept.add("tx", "org")


def test_loss_that_was_checked_is_not_reported_again(db: Any) -> None:
    lost = {"org": now_ms() - 1_000}
    db.write_now(lambda conn: report_lost_commits(conn, {"org": now_ms() - LIFETIME - 1}))
    assert db.read_now(guard_values) == {}
    db.write_now(lambda conn: report_lost_commits(conn, lost))
    first = db.read_now(guard_values)
    assert raised_at(first) > lost["org"]
    db.write_now(lambda conn: report_lost_commits(conn, lost))
    assert db.read_now(guard_values) == first
    assert db.write_now(mark_checked)
    db.write_now(lambda conn: report_lost_commits(conn, lost))
    assert db.read_now(guard_values)[CHECKED] != "no"
    # A later transaction is another loss
    db.write_now(lambda conn: report_lost_commits(conn, {"org": now_ms() + 1_000}))
    assert db.read_now(guard_values)[CHECKED] == "no"
