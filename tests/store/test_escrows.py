"""The store of escrows: lists that page, what is due, and texts that belong to what is on the chain."""

import hashlib
from dataclasses import replace
from typing import Any

from sqlalchemy import text, true, update

from app.database import Database
from app.store.attempts import Attempt, insert_attempt
from app.store.escrows import (
    EscrowFilter,
    EscrowRecord,
    delete_pending_escrow,
    due,
    escrow,
    escrow_of_transaction,
    escrows,
    insert_pending_escrow,
    remember_dispute,
    remember_output,
    remember_task,
    reset_escrows,
)
from app.store.read_tables import escrows as table
from tests.support.plans import listening
from tests.support.postgres import ON_SQLITE

_ORG = "org-1"
_DAY = 86_400


def _escrow(number: int, **fields: Any) -> EscrowRecord:
    made = EscrowRecord(
        escrow_id=f"escrow_{number:03}",
        org=_ORG,
        address=f"address-{number}",
        wallet_id="wal_a",
        vault="vault-a",
        receiver="vault-b",
        to_wallet="wal_b",
        payer="payer",
        policy="policy",
        amount=5,
        task_hash="00",
        output_commitment=None,
        proof_kinds=7,
        counter=number,
        status="pending",
        deadline=1_000 + number,
        created_at=number,
        tx_id=f"tx_{number}",
    )
    return replace(made, **fields)


def _put(db: Database, *made: EscrowRecord) -> None:
    for one in made:
        db.write_now(lambda c, one=one: insert_pending_escrow(c, one))  # type: ignore[misc]


def _find(db: Database, number: int) -> EscrowRecord | None:
    return db.read_now(lambda c: escrow(c, _ORG, f"escrow_{number:03}"))


def test_escrow_is_found_by_its_id_and_by_its_transaction(db: Database) -> None:
    _put(db, _escrow(1))

    assert _find(db, 1) == _escrow(1)
    assert db.read_now(lambda c: escrow_of_transaction(c, _ORG, "tx_1")) == _escrow(1)
    assert db.read_now(lambda c: escrow(c, "org-2", "escrow_001")) is None
    assert db.read_now(lambda c: escrow_of_transaction(c, "org-2", "tx_1")) is None


def test_lists_page_newest_first_and_narrow_to_a_side_and_a_status(db: Database) -> None:
    _put(db, *(_escrow(n, status="locked") for n in (1, 2, 3)))
    _put(db, _escrow(4, to_wallet=None), _escrow(5, wallet_id="wal_b", to_wallet="wal_c"), _escrow(6, org="org-2"))

    def listed(**options: Any) -> list[int]:
        narrowed = EscrowFilter(**{name: options.pop(name) for name in ("wallet_id", "status") if name in options})
        page = db.read_now(lambda c: escrows(c, _ORG, narrowed, **options))
        return [one.counter for one in page.data]

    assert listed() == [5, 4, 3, 2, 1]
    assert listed(wallet_id="wal_a") == [4, 3, 2, 1]
    assert listed(wallet_id="wal_b") == [5, 3, 2, 1]
    assert listed(wallet_id="wal_c") == [5]
    assert listed(wallet_id="wal_b", status="locked") == [3, 2, 1]
    assert listed(status="pending") == [5, 4]
    first = db.read_now(lambda c: escrows(c, _ORG, limit=3))
    assert first.has_more
    assert listed(limit=3, cursor=first.next_cursor) == [2, 1]


@ON_SQLITE
def test_what_is_due_comes_in_one_indexed_query_of_all_organisations(db: Database) -> None:
    _put(db, _escrow(1, status="locked", due_at=50), _escrow(2, status="disputed", due_at=30 * _DAY, org="org-2"))
    _put(db, _escrow(3, status="released"), _escrow(4), _escrow(5, status="locked", due_at=51))
    asked: list[str] = []

    with listening(lambda _conn, statement, _values: asked.append(statement)):
        assert [one.address for one in db.read_now(lambda c: due(c, 50))] == ["address-1"]
    assert len(asked) == 1
    assert [one.address for one in db.read_now(lambda c: due(c, 30 * _DAY))] == ["address-1", "address-5", "address-2"]
    assert db.read_now(lambda c: due(c, 49)) == []
    plan = db.read_now(lambda c: c.execute(text("EXPLAIN QUERY PLAN " + asked[0].replace("?", "1"))).all())
    assert "USING INDEX escrows_due" in str(plan)


def test_pending_escrow_gives_way_to_another_but_not_what_the_chain_says(db: Database) -> None:
    _put(db, _escrow(1), _escrow(1, amount=6, tx_id="tx_other"))
    assert _find(db, 1) == _escrow(1, amount=6, tx_id="tx_other")
    db.write_now(lambda c: delete_pending_escrow(c, "tx_1"))
    assert _find(db, 1) is not None
    db.write_now(lambda c: c.execute(update(table).values(status="locked")))

    _put(db, _escrow(1, amount=7))
    db.write_now(lambda c: delete_pending_escrow(c, "tx_other"))

    assert _find(db, 1) == _escrow(1, amount=6, tx_id="tx_other", status="locked")


def test_reset_keeps_what_is_pending(db: Database) -> None:
    _put(db, _escrow(1), _escrow(2, status="disputed", due_at=9, disputed_at=8, reason_hash="00"), _escrow(3))
    _put(db, _escrow(4, status="released", settled_at=9))
    for number in (1, 2):
        made = Attempt(tx_id=f"tx_{number}", org=_ORG, type="escrow_lock", status="pending", created_at=1)
        db.write_now(lambda c, made=made: insert_attempt(c, made))  # type: ignore[misc]

    db.write_now(lambda conn: reset_escrows(conn, true()))

    assert [_find(db, number) for number in (1, 2, 3, 4)] == [_escrow(1), _escrow(2), None, None]


def test_texts_are_shown_only_with_the_hashes_that_the_chain_has(db: Database) -> None:
    task, reason = (hashlib.sha256(words.encode()).hexdigest() for words in ("task", "reason"))
    expected = hashlib.sha256(bytes.fromhex("aa" * 32)).hexdigest()
    committed = {"task_hash": task, "reason_hash": reason, "output_hash": "ab", "output_commitment": expected}
    _put(db, _escrow(1, **committed), _escrow(2, output_hash="cd"))
    for number in (1, 2):
        name = f"escrow_{number:03}"
        db.write_now(lambda c, name=name: remember_task(c, name, "task", "aa" * 32))  # type: ignore[misc]
        db.write_now(lambda c, name=name: remember_output(c, name, "ab", "https://files.example"))  # type: ignore[misc]
        db.write_now(lambda c, name=name: remember_dispute(c, name, "reason", "wal_b"))  # type: ignore[misc]

    known, unknown = _find(db, 1), _find(db, 2)

    assert known is not None
    assert unknown is not None
    texts = (known.task_description, known.output_url, known.dispute_reason, known.disputed_for)
    assert texts == ("task", "https://files.example", "reason", "wal_b")
    others = (unknown.task_description, unknown.output_url, unknown.dispute_reason, unknown.disputed_for)
    assert others == (None, None, None, None)
