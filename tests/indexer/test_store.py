"""The indexer's database stores rows once, moves the cursor with them, and notices gaps and deposits."""

import contextlib
import sqlite3
from collections.abc import Callable, Iterator
from operator import attrgetter
from pathlib import Path
from typing import Any

import pytest
from solders.pubkey import Pubkey
from sqlalchemy import Connection

from app.database.postgres._statements import Sender, StatementResult
from app.database.postgres.database import PostgresDatabase
from indexer.accounts import FollowedAccount
from indexer.store import ALLOWANCE_READ, BALANCE_OBSERVED, DEPOSIT, REVERTED, EventStore, EventTables
from tests.support.indexer import (
    ORG,
    RESERVE,
    TOKENS,
    VAULT,
    move,
    org_created,
    transaction,
    vault_created,
    vault_event,
)

ON_A_FILE = pytest.mark.parametrize("store", ["file"], indirect=True)
"""For a test that looks into the file."""


class OnServer:
    """The tables on PostgreSQL, each call in a transaction of its own."""

    def __init__(self, db: PostgresDatabase, *names: str) -> None:
        self._db = db
        self._names = names

    def __getattr__(self, name: str) -> "OnServer":
        return OnServer(self._db, *self._names, name)

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        def call(connection: Connection) -> Any:
            found = attrgetter(".".join(self._names))(EventTables(connection))
            return found(*arguments, **named)

        return self._db.write_now(call)


@pytest.fixture(name="store", params=["file", "server"])
def _store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[EventStore]:
    if request.param == "server":
        yield OnServer(request.getfixturevalue("postgres_db"))  # type: ignore[misc]
        return
    store = EventStore(tmp_path / "chain.db")
    yield store
    store.close()


def names(store: EventStore, after: int = 0) -> list[str]:
    """Return the names of all rows in order."""
    return [row.name for row in store.changes(after, 1000)]


def account(store: EventStore, address: Pubkey) -> FollowedAccount:
    """Return a followed account."""
    found = store.accounts.get(str(address))
    assert found is not None
    return found


def test_transaction_stored_twice_is_one(store: EventStore) -> None:
    made = transaction(1, org_created())
    assert store.record([made]) == 1
    assert store.record([made], cursor=("program", "signature-1")) == 0
    assert names(store) == ["OrgInitialized"]
    assert store.cursor("program") == "signature-1"


def test_batch_takes_as_many_round_trips_as_one_transaction(
    postgres_db: PostgresDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    store: Any = OnServer(postgres_db)
    store.record([transaction(1, org_created()), transaction(2, vault_created())])
    counts, sent, place = [], list[str](), 3
    run = Sender.run

    def send(self: Sender, sql: str, values: Any = ()) -> StatementResult:
        sent.append(sql)
        return run(self, sql, values)

    monkeypatch.setattr(Sender, "run", send)
    for size in (1, 100):
        batch = [
            transaction(n, vault_event("WalletUpdated", n), moves=(move(TOKENS, n - 3, n - 2),))
            for n in range(place, place + size)
        ]
        place += size
        sent.clear()
        assert store.record(batch) == 2 * size  # each event, and the deposit that it does not explain
        counts.append(len(sent))
        store.finalize([one.signature for one in batch])
    # Transactions, accounts twice, streams, events
    assert counts == [5, 5]
    assert [*store.unfinalized(1000, 10)] == ["signature-1", "signature-2"]


def test_rows_carry_their_transaction_and_plain_values(store: EventStore) -> None:
    store.record([transaction(7, vault_event("WalletFunded", 1, org_sequence=1, amount=2**60, reference=b"\xab" * 16))])
    [row] = store.changes(0, 10)
    assert (row.signature, row.instruction, row.inner, row.slot, row.block_time) == ("signature-7", 0, 0, 7, 1007)
    assert (row.fee_payer, row.message_hash, row.org) == ("payer", "hash", str(ORG))
    assert row.data["vault"] == str(VAULT)
    assert row.data["reference"] == "ab" * 16
    assert row.data["amount"] == 2**60


def test_cursor_moves_only_with_what_is_stored(store: EventStore) -> None:
    broken = transaction(2, vault_event("WalletFrozen", 1, reason=object()))
    with pytest.raises(TypeError):
        store.record([transaction(1, org_created()), broken], cursor=("program", "signature-2"))
    assert store.cursor("program") is None
    assert names(store) == []


def test_changes_are_read_on_from_an_id(store: EventStore) -> None:
    store.record([transaction(n, vault_event("WalletUpdated", n)) for n in range(1, 6)])
    first = store.changes(0, 2)
    rest = store.changes(first[-1].id, 10)
    assert [row.data["sequence"] for row in (*first, *rest)] == [1, 2, 3, 4, 5]


def test_ids_of_a_new_file_are_above_those_of_the_old(tmp_path: Path) -> None:
    ids = []
    for name in ("old.db", "new.db"):
        store = EventStore(tmp_path / name)
        store.record([transaction(1, org_created())])
        ids.append(store.changes(0, 1)[0].id)
        store.close()
    assert ids[1] > ids[0]


def test_missing_event_shows_as_a_gap_until_it_is_stored(store: EventStore) -> None:
    store.record([transaction(1, org_created()), transaction(2, vault_created())])
    store.record([transaction(4, vault_event("WalletUpdated", 3))])
    assert store.streams_with_gaps() == [str(VAULT)]
    store.record([transaction(3, vault_event("WalletUpdated", 2))])
    assert store.streams_with_gaps() == []


def test_funding_counts_for_the_vault_and_for_the_organisation(store: EventStore) -> None:
    store.record([transaction(1, org_created()), transaction(2, vault_created())])
    store.record([transaction(3, vault_event("WalletFunded", 2, org_sequence=3, amount=1))])
    assert store.streams_with_gaps() == [str(ORG)]
    store.record([transaction(4, org_created(sequence=2))])
    assert store.streams_with_gaps() == []


def test_other_organisations_are_left_out_when_wanted(tmp_path: Path) -> None:
    store = EventStore(tmp_path / "chain.db", orgs=[str(ORG)])
    other = Pubkey.new_unique()
    store.record([transaction(1, org_created(org=other, reserve=Pubkey.new_unique())), transaction(2, org_created())])
    assert [row.org for row in store.changes(0, 10)] == [str(ORG)]
    store.close()


def test_transfer_from_outside_is_a_deposit(store: EventStore) -> None:
    store.record([transaction(1, org_created()), transaction(2, vault_created())])
    store.record([transaction(3, moves=(move(RESERVE, 0, 500),)), transaction(4, moves=(move(TOKENS, 0, 30),))])
    reserve, vault = (row for row in store.changes(0, 10) if row.name == DEPOSIT)
    assert reserve.data == {"token_account": str(RESERVE), "vault": None, "amount": 500, "balance": 500}
    assert vault.data == {"token_account": str(TOKENS), "vault": str(VAULT), "amount": 30, "balance": 30}


def test_the_programs_own_transfers_are_no_deposits(store: EventStore) -> None:
    store.record([transaction(1, org_created()), transaction(2, vault_created())])
    store.record([transaction(3, moves=(move(RESERVE, 0, 500),))])
    funding = vault_event("WalletFunded", 2, org_sequence=2, amount=100)
    store.record([transaction(4, funding, moves=(move(RESERVE, 500, 400), move(TOKENS, 0, 100)))])
    payment = vault_event("PaymentExecuted", 3, amount=40)
    store.record([transaction(5, payment, moves=(move(TOKENS, 100, 60),))])
    withdrawal = vault_event("WalletWithdrawn", 4, amount=60)
    store.record([transaction(6, withdrawal, moves=(move(TOKENS, 60, 0), move(RESERVE, 400, 460)))])
    assert names(store).count(DEPOSIT) == 1
    assert store.accounts.suspects() == []


def test_payment_to_another_vault_or_with_a_gift_is_a_deposit_of_the_rest(store: EventStore) -> None:
    store.record([transaction(1, org_created()), transaction(2, vault_created())])
    payment = vault_event("PaymentExecuted", 2, amount=40)
    store.record([transaction(3, payment, moves=(move(TOKENS, 100, 75), move(RESERVE, 0, 40, index=2)))])
    deposits = [(row.data["token_account"], row.data["amount"]) for row in store.changes(0, 10) if row.name == DEPOSIT]
    assert deposits == [(str(TOKENS), 15), (str(RESERVE), 40)]


def test_unexpected_balance_makes_an_account_suspect(store: EventStore) -> None:
    store.record([transaction(1, org_created()), transaction(2, vault_created())])
    payment = vault_event("PaymentExecuted", 2, amount=40)
    store.record([transaction(3, payment, moves=(move(TOKENS, 100, 60),))])
    assert store.accounts.suspects() == [str(TOKENS)]
    store.accounts.clear_suspect(str(TOKENS))
    assert store.accounts.suspects() == []


def test_observed_balance_is_stored_unless_something_newer_is(store: EventStore) -> None:
    store.record([transaction(1, org_created()), transaction(2, moves=(move(RESERVE, 0, 500),))])
    assert not store.observe(account(store, RESERVE), 400, 1)
    assert not store.observe(FollowedAccount(str(TOKENS), str(ORG), None, 0, 0, suspect=False), 400, 9)
    assert BALANCE_OBSERVED not in names(store)
    # The same balance, too: readers of the rows may have arrived at a different one
    for slot, balance in ((8, 500), (9, 400)):
        assert store.observe(account(store, RESERVE), balance, slot)
        row = store.changes(0, 10)[-1]
        assert (row.name, row.slot, row.org, row.data["balance"]) == (BALANCE_OBSERVED, slot, str(ORG), balance)


def test_balance_read_before_the_account_moved_is_not_stored(store: EventStore) -> None:
    store.record([transaction(1, org_created()), transaction(2, moves=(move(RESERVE, 0, 500),), slot=5)])
    known = account(store, RESERVE)
    # Its slot was not over when it was read.
    store.record([transaction(3, moves=(move(RESERVE, 500, 400),), slot=5)])
    assert not store.observe(known, 500, 5)
    assert account(store, RESERVE).balance == 400
    assert BALANCE_OBSERVED not in names(store)


def test_reverted_transaction_takes_its_rows_and_the_cursor_with_it(store: EventStore) -> None:
    store.record([transaction(1, org_created()), transaction(2, vault_created())], cursor=("program", "signature-2"))
    last = store.changes(0, 10)[-1].id
    store.roll_back(["signature-2", "never-seen"])
    assert names(store) == ["OrgInitialized", REVERTED]
    [added] = store.changes(last, 10)
    assert (added.name, added.signature, added.org) == (REVERTED, "signature-2", None)
    assert store.cursor("program") is None
    store.record([transaction(2, vault_created())])
    assert names(store, added.id) == ["WalletCreated"]
    assert store.streams_with_gaps() == []


def test_finality_is_marked_and_only_final_slots_are_asked_about(store: EventStore) -> None:
    store.record([transaction(n, vault_event("WalletUpdated", n)) for n in (1, 2, 3)])
    assert [*store.unfinalized(2, 10)] == ["signature-1", "signature-2"]
    store.finalize(["signature-1", "signature-2"])
    assert [*store.unfinalized(9, 10)] == ["signature-3"]
    assert store.last_finalized() == "signature-2"


@ON_A_FILE
def test_final_and_unfinal_transactions_are_found_by_an_index(store: EventStore, tmp_path: Path) -> None:
    store.record([transaction(slot, org_created()) for slot in range(1, 4)])
    store.finalize(["signature-1", "signature-2"])
    asked: list[str] = []
    store._file.conn.set_trace_callback(asked.append)

    assert store.last_finalized() == "signature-2"
    assert store.last_finalized(1) == "signature-1"
    assert [*store.unfinalized(3, 10)] == ["signature-3"]

    with contextlib.closing(sqlite3.connect(tmp_path / "chain.db")) as reader:
        plans = [row[3] for query in asked for row in reader.execute(f"EXPLAIN QUERY PLAN {query}")]
    assert len(plans) == 3
    assert all("USING INDEX" in plan or "USING COVERING INDEX" in plan for plan in plans), plans


def test_events_are_whole_up_to_a_sequence_number_without_a_hole_before(store: EventStore) -> None:
    org, vault = str(ORG), str(VAULT)
    store.record([transaction(1, org_created()), transaction(2, vault_created()), transaction(3, vault_event("X", 3))])
    assert [store.holds(org, upto) for upto in (0, 1, 2)] == [True, True, False]
    assert not store.holds(vault, 1)
    store.record([transaction(4, vault_event("Y", 2))])
    assert [store.holds(vault, upto) for upto in (3, 4)] == [True, False]
    assert [store.holds("another", upto) for upto in (0, 1)] == [True, False]


def test_unknown_signatures_keep_their_order(store: EventStore) -> None:
    store.record([transaction(1), transaction(3)])
    asked = [f"signature-{n}" for n in range(1200)]
    assert store.unknown(asked) == [one for one in asked if one not in {"signature-1", "signature-3"}]


def test_file_of_another_version_is_emptied(tmp_path: Path) -> None:
    store = EventStore(tmp_path / "chain.db")
    store.record([transaction(1, org_created())], cursor=("program", "signature-1"))
    store._file.conn.execute("PRAGMA user_version = 99")
    store.close()
    with contextlib.closing(sqlite3.connect(tmp_path / "chain.db")) as old:
        old.execute("CREATE TABLE events (signature TEXT PRIMARY KEY)")
    again = EventStore(tmp_path / "chain.db")
    assert names(again) == []
    assert again.cursor("program") is None
    assert "events" not in again._file.table_names()
    again.close()


WRITES: dict[str, Callable[[EventStore], object]] = {
    "record": lambda store: store.record([transaction(2, org_created())], cursor=("program", "signature-2")),
    "finalize": lambda store: store.finalize(["signature-1"]),
    "revert": lambda store: store.roll_back(["signature-1"]),
    "observe": lambda store: store.observe(account(store, TOKENS), 5, 9),
    "mark_suspect": lambda store: store.mark_suspect(str(TOKENS)),
    "clear_suspect": lambda store: store.clear_suspect(str(TOKENS)),
}


@ON_A_FILE
@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES)
def test_write_is_on_disk_and_its_lock_free_when_it_returns(
    store: EventStore, tmp_path: Path, write: Callable[[EventStore], object]
) -> None:
    # Given a store that has written something
    store.record([transaction(1, org_created(), vault_created())])
    write(store)
    # Then another one reads the same rows, and can write at once
    other = sqlite3.connect(tmp_path / "chain.db", timeout=0)
    with contextlib.closing(other):
        assert [row[0] for row in other.execute("SELECT id FROM chain_events ORDER BY id")] == [
            row.id for row in store.changes(0, 100)
        ]
        other.execute("DELETE FROM chain_events")
        other.commit()


def test_rows_stored_again_after_a_crash_have_higher_ids(tmp_path: Path) -> None:
    # Given a file as it was before the last commits
    store = EventStore(tmp_path / "chain.db")
    store.close()
    before = (tmp_path / "chain.db").read_bytes()
    store = EventStore(tmp_path / "chain.db")
    store.record([transaction(1, org_created())])
    [lost] = store.changes(0, 10)
    store.close()
    # When the crash takes them, and they are read from the chain again
    (tmp_path / "chain.db").write_bytes(before)
    store = EventStore(tmp_path / "chain.db")
    store.record([transaction(1, org_created())])
    # Then a reader who remembers the last id sees them as new
    assert [row.signature for row in store.changes(lost.id, 10)] == ["signature-1"]
    store.close()


def test_settled_allowance_is_read_once_and_not_after_its_rollback(store: EventStore) -> None:
    named = {"allowance": "allowance", "destination": "destination", "delegate": "delegate"}
    settled = [vault_event("AllowanceSettled", number, **named, spent=5) for number in (2, 3)]
    store.record([transaction(2, settled[0])])
    # Where the tokens are, only the grant tells.
    assert store.unread.all() == []
    store.record([transaction(1, vault_event("AllowanceGranted", 1, **named, tokens="tokens"))])
    [one] = store.unread.all()
    assert (one.signature, one.granted, one.tokens, one.settlement["spent"]) == (
        "signature-2",
        "signature-1",
        "tokens",
        5,
    )

    store.record_reading(one, {"vault": str(VAULT), "seen": 5})
    store.record_reading(one, {"vault": str(VAULT), "seen": 4})

    assert store.unread.all() == []
    [row] = [row for row in store.changes(0, 100) if row.name == ALLOWANCE_READ]
    assert (row.signature, row.data["seen"], row.org) == ("signature-2", 5, str(ORG))
    store.record([transaction(3, settled[1])])
    [late] = store.unread.all()
    store.roll_back(["signature-2", "signature-3"])
    store.record_reading(late, {"vault": str(VAULT), "seen": 5})
    assert store.unread.all() == []
    assert ALLOWANCE_READ not in names(store)
