"""The store of allowances: what is due, pages, and those that are not on the chain yet."""

from typing import Any

from sqlalchemy import Table, insert, true, update

from app.database import Database
from app.store.allowances import (
    AllowanceRecord,
    allowance,
    allowances,
    count_granted,
    delete_pending_allowance,
    due_allowances,
    insert_pending_allowance,
    reset_allowances,
    table,
)
from app.store.organisations import reserves
from app.store.read_tables import wallets

_ORG, _WALLET, _NOW = "org", "wal_a", 1_000


def _allowance(number: int, **fields: Any) -> AllowanceRecord:
    texts = ("vault", "policy", "recipient", "destination", "delegate", "tokens", "payer", "reference")
    values: dict[str, Any] = {
        **{name: name for name in texts},
        "allowance_id": f"alw_{number}",
        "org": _ORG,
        "address": f"address-{number}",
        "wallet_id": _WALLET,
        "amount": 5,
        "counter": number,
        "status": "outstanding",
        "expires_at": _NOW + 60,
        "due_at": _NOW + 60,
        "sequence": 7,
        "created_at": number,
        "tx_id": f"tx_{number}",
    }
    return AllowanceRecord(**{**values, **fields})


def _row(of: Table, **fields: Any) -> dict[str, Any]:
    """A row of a table whose other columns mean nothing."""
    empty: dict[type, Any] = {str: "", bool: False}
    return {column.name: empty.get(column.type.python_type, 0) for column in of.columns} | fields


def _fill(db: Database, *found: AllowanceRecord) -> None:
    def fill(conn: Any) -> None:
        conn.execute(insert(reserves), _row(reserves, org=_ORG))
        conn.execute(insert(wallets), _row(wallets, wallet_id=_WALLET, org=_ORG, config_sequence=7))
        for one in found:
            insert_pending_allowance(conn, one)

    db.write_now(fill)


def _due(db: Database, now: int = _NOW) -> list[str]:
    return [one.allowance_id for one in db.read_now(lambda conn: due_allowances(conn, now))]


def test_due_are_those_that_ended_or_lost_their_ground(db: Database) -> None:
    pending = _allowance(3, status="pending", due_at=None, sequence=None)
    settled = _allowance(4, status="settled", due_at=None)
    _fill(db, _allowance(1), _allowance(2, due_at=_NOW + 90, sequence=9), pending, settled)

    assert (_due(db), _due(db, _NOW + 60)) == ([], ["alw_1"])
    for stop, go in (
        (update(wallets).values(frozen=2), update(wallets).values(frozen=0)),
        (update(reserves).values(paused=True), update(reserves).values(paused=False)),
    ):
        db.write_now(lambda conn, stop=stop: conn.execute(stop))  # type: ignore[misc]
        assert _due(db) == ["alw_1", "alw_2"]
        db.write_now(lambda conn, go=go: conn.execute(go))  # type: ignore[misc]
    # Another session or policy since the first was granted, but not since the second.
    db.write_now(lambda conn: conn.execute(update(wallets).values(config_sequence=8)))
    assert _due(db) == ["alw_1"]


def test_lists_count_and_narrow(db: Database) -> None:
    _fill(db, *(_allowance(number, status="settled" if number < 3 else "outstanding") for number in range(5)))

    first = db.read_now(lambda conn: allowances(conn, _ORG, _WALLET, limit=3))
    rest = db.read_now(lambda conn: allowances(conn, _ORG, _WALLET, limit=3, cursor=first.next_cursor))
    settled = db.read_now(lambda conn: allowances(conn, _ORG, _WALLET, status="settled"))

    assert [one.counter for one in first.data + rest.data] == [4, 3, 2, 1, 0]
    assert [one.counter for one in settled.data] == [2, 1, 0]
    assert db.read_now(lambda conn: count_granted(conn, _WALLET, 2)) == 3
    assert db.read_now(lambda conn: allowance(conn, "another", "alw_1")) is None


def test_failed_grant_and_a_reset_leave_no_allowance(db: Database) -> None:
    _fill(db, _allowance(1, status="pending", due_at=None), _allowance(2))

    db.write_now(lambda conn: delete_pending_allowance(conn, "tx_1"))
    db.write_now(lambda conn: delete_pending_allowance(conn, "tx_2"))
    assert [one.counter for one in db.read_now(lambda conn: allowances(conn, _ORG, _WALLET)).data] == [2]
    db.write_now(lambda conn: reset_allowances(conn, true()))

    assert db.read_now(lambda conn: conn.execute(table.select()).all()) == []
