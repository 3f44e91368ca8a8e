"""The store: shared commits, lists that page, and records that keep their promises."""

import asyncio
import re
import sqlite3
import threading
from collections.abc import Callable, Sequence
from dataclasses import MISSING, fields, replace
from functools import partial
from itertools import combinations
from pathlib import Path
from typing import Any, get_args

import pytest
from sqlalchemy import Connection, func, insert, select, text
from sqlalchemy.exc import IntegrityError

from app.core.actors import Actor
from app.core.errors import StorageUnavailableError
from app.core.event_catalogue import EVENTS
from app.core.pages import RecordPage
from app.core.transaction_types import STATUSES, TYPES
from app.database import Database, InvalidCursorError, SqliteDatabase
from app.database.columns import upsert_all
from app.store.approval_requests import NewRequest, add_request, approval_requests_of
from app.store.attempts import Attempt, attempt, insert_attempt, pending_attempts, record_outcome
from app.store.escrows import EscrowFilter, escrows
from app.store.feed import EXCEPTIONS, SEVERITIES, FeedFilter, _listing, append_event, feed, feed_after, feed_row
from app.store.feed import table as feed_table
from app.store.idempotency import (
    LIFETIME,
    IdempotencyRecord,
    Reducible,
    attach_transaction,
    claim,
    find,
    find_own,
    finish,
    keep_within,
    purge,
    release,
)
from app.store.keys import ApiKey, api_key_by_digest, api_keys, insert_api_key, revoke_api_key, touch_api_keys
from app.store.read_tables import policies as policy_table
from app.store.read_tables import transactions as rows
from app.store.read_tables import wallets as wallet_table
from app.store.retention import delete_undecided_requests
from app.store.schema import create_tables
from app.store.state_tables import setting_values
from app.store.transactions import TransactionFilter, transaction, transactions
from app.store.values import get_value, put_value
from app.store.wallets import WalletDetails, insert_wallet_details, wallets
from app.store.x402 import payloads
from app.transactions.models import Transaction
from tests.support.plans import explained
from tests.support.postgres import ON_SQLITE

ORG, OTHER = "org-1", "org-2"


def put(name: str, value: str) -> Callable[[Connection], str]:
    """Return work that sets a value."""

    def work(connection: Connection) -> str:
        put_value(connection, name, value)
        return value

    return work


# Writing


@ON_SQLITE
async def test_writes_at_the_same_time_share_commits_and_each_gets_its_result(db: Database, tmp_path: Path) -> None:
    results = await asyncio.gather(*(db.write(put(f"name-{n}", str(n))) for n in range(200)))
    assert results == [str(n) for n in range(200)]
    with sqlite3.connect(tmp_path / "app.db") as outside:
        assert outside.execute("SELECT count(*) FROM setting_values").fetchone() == (200,)
    outside.close()


async def test_failed_write_undoes_only_itself(db: Database) -> None:
    def fail(connection: Connection) -> None:
        put_value(connection, "bad", "half done")
        raise ValueError("no")

    work = [db.write(put("before", "1")), db.write(fail), db.write(put("after", "2"))]
    before, failed, after = await asyncio.gather(*work, return_exceptions=True)
    assert (before, after) == ("1", "2")
    assert isinstance(failed, ValueError)
    assert db.read_now(lambda c: get_value(c, "bad")) is None
    assert db.read_now(lambda c: get_value(c, "after")) == "2"


async def test_failed_repeatable_write_undoes_only_itself(db: Database) -> None:
    runs: list[str] = []

    def put(name: str, *, fails: bool = False) -> Callable[[Connection], str]:
        def work(conn: Connection) -> str:
            runs.append(name)
            put_value(conn, name, "x")
            if fails:
                raise ValueError(name)
            return name

        return work

    # Given writes for one commit, of which the second fails
    begun = [
        db.write(put("before")),
        db.write(put("first"), repeatable=True),
        db.write(put("bad", fails=True), repeatable=True),
        db.write(put("last"), repeatable=True),
        db.write(put("after")),
    ]
    before, first, bad, last, after = await asyncio.gather(*begun, return_exceptions=True)
    # Then each has its own result, and what may not be repeated ran once
    assert (before, first, last, after) == ("before", "first", "last", "after")
    assert isinstance(bad, ValueError)
    assert {name: runs.count(name) for name in ("before", "after")} == {"before": 1, "after": 1}
    names = set(db.read_now(lambda conn: conn.scalars(select(setting_values.c.name)).all()))
    assert names == {"before", "first", "last", "after"}


def test_many_rows_are_written_as_each_alone_would_be(db: Database) -> None:
    def row(number: int) -> dict[str, Any]:
        texts = ("plain", 'quote " and \\', "{braces,and}", "", None)
        payload = {"text": texts[number % 5], "list": [1, None, {"a": "'"}], "number": number}
        wallet_id, timestamp = texts[number % 5], number * 10**9
        return feed_row(
            event_id=f"evt_{number}", org=ORG, type="x", timestamp=timestamp, payload=payload, wallet_id=wallet_id
        )

    new = [row(number) for number in (5, 3, 4, 1, 2)]
    db.write_now(lambda conn: upsert_all(conn, feed_table, new[:1], keys=["event_id"]))
    changed = [{**one, "summary": "again"} for one in new]
    assert db.write_now(lambda conn: upsert_all(conn, feed_table, new, keys=["event_id"], replace=False)) == 4
    found = db.read_now(lambda conn: conn.execute(select(feed_table).order_by(feed_table.c.position)).all())
    assert [{name: value for name, value in one._asdict().items() if name != "position"} for one in found] == new
    assert db.write_now(lambda conn: upsert_all(conn, feed_table, changed + new[:1], keys=["event_id"])) == 5
    found = db.read_now(lambda conn: conn.execute(select(feed_table).order_by(feed_table.c.position)).all())
    assert [one.summary for one in found] == ["", "again", "again", "again", "again"]


@ON_SQLITE
async def test_result_is_given_only_after_the_commit(db: Database, tmp_path: Path) -> None:
    await db.write(put("name", "value"))
    outside = sqlite3.connect(tmp_path / "app.db")
    assert outside.execute("SELECT value FROM setting_values").fetchone() == ("value",)
    outside.close()


async def test_cancelled_caller_does_not_disturb_others(db: Database) -> None:
    tasks = [asyncio.create_task(db.write(put(f"name-{n}", "x"))) for n in range(10)]
    await asyncio.sleep(0)
    tasks[3].cancel()
    done = await asyncio.gather(*tasks, return_exceptions=True)
    assert [isinstance(one, asyncio.CancelledError) for one in done].count(True) == 1
    assert await db.write(put("later", "y")) == "y"


async def test_writes_from_threads_and_the_event_loop_take_turns(db: Database) -> None:
    def many(start: int) -> None:
        for n in range(start, start + 30):
            db.write_now(put(f"thread-{n}", "x"))

    threads = [threading.Thread(target=many, args=(start,)) for start in (0, 100)]
    for thread in threads:
        thread.start()
    await asyncio.gather(*(db.write(put(f"loop-{n}", "x")) for n in range(50)))
    await asyncio.gather(*(asyncio.to_thread(thread.join) for thread in threads))
    assert db.read_now(lambda c: c.scalar(select(func.count()).select_from(setting_values))) == 110


@ON_SQLITE
async def test_wait_for_another_process_blocks_nothing_else(db: Database, tmp_path: Path) -> None:
    outside = sqlite3.connect(tmp_path / "app.db", isolation_level=None)
    outside.execute("BEGIN IMMEDIATE")
    begun = asyncio.get_running_loop().time()
    writing = asyncio.create_task(db.write(put("name", "value")))

    given_up = asyncio.create_task(db.write(put("given up", "value")))
    for _ in range(100):
        await asyncio.sleep(0)
    given_up.cancel()

    assert asyncio.get_running_loop().time() - begun < 5
    assert not writing.done()
    assert await db.read(lambda c: get_value(c, "name")) is None
    outside.rollback()
    outside.close()
    assert await writing == "value"
    assert db.read_now(lambda c: get_value(c, "given up")) is None


@ON_SQLITE
async def test_lock_that_another_process_keeps_is_storage_unavailable(
    db: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("app.database.sqlite._BUSY_TIMEOUT", 0.05)
    outside = sqlite3.connect(tmp_path / "app.db", isolation_level=None)
    outside.execute("BEGIN IMMEDIATE")
    for _ in range(2):
        with pytest.raises(StorageUnavailableError):
            await db.write(put("name", "value"))
    with pytest.raises(StorageUnavailableError):
        async with db.transaction():
            pytest.fail("it began")
    with pytest.raises(sqlite3.OperationalError, match="locked"):
        db.write_now(put("name", "value"))
    outside.rollback()
    outside.close()
    assert await db.write(put("name", "value")) == "value"


async def test_long_transaction_is_seen_whole_and_other_writes_wait_for_it(db: Database) -> None:
    async with db.transaction() as step:
        assert await step(put("first", "1")) == "1"
        writing = asyncio.create_task(db.write(put("other", "2")))
        assert await step(lambda c: get_value(c, "first")) == "1"
        assert await db.read(lambda c: get_value(c, "first")) is None
        assert not writing.done()
    assert await writing == "2"
    assert db.read_now(lambda c: [get_value(c, name) for name in ("first", "other")]) == ["1", "2"]


async def test_failed_or_cancelled_long_transaction_leaves_nothing(db: Database) -> None:
    begun, go_on = threading.Event(), threading.Event()

    def slow(connection: Connection) -> None:
        begun.set()
        assert go_on.wait(10)
        put_value(connection, "slow", "x")

    async def long(work: Callable[[Connection], Any]) -> None:
        async with db.transaction() as step:
            await step(put("first", "x"))
            await step(work)

    with pytest.raises(ZeroDivisionError):
        await long(lambda _connection: 1 / 0)
    running = asyncio.create_task(long(slow))
    await asyncio.to_thread(begun.wait, 10)
    running.cancel()
    waiting = asyncio.create_task(long(slow))
    await asyncio.sleep(0)
    waiting.cancel()
    go_on.set()
    ended = await asyncio.gather(running, waiting, return_exceptions=True)
    assert [type(one) for one in ended] == [asyncio.CancelledError] * 2
    assert await db.write(put("after", "y")) == "y"
    assert db.read_now(lambda c: [get_value(c, name) for name in ("first", "slow", "after")]) == [None, None, "y"]


async def test_closing_waits_for_a_read_that_nobody_waits_for_any_more(tmp_path: Path) -> None:
    db = SqliteDatabase(tmp_path / "app.db", create_tables)
    begun, go_on, found = threading.Event(), threading.Event(), list[Any]()

    def read(connection: Connection) -> None:
        begun.set()
        go_on.wait(10)
        found.extend(connection.execute(select(setting_values.c.name).where(setting_values.c.name == "nobody")))
        found.append("read")

    reading = asyncio.create_task(db.read(read, in_thread=True))
    assert await asyncio.to_thread(begun.wait, 10)
    reading.cancel()
    closing = asyncio.create_task(asyncio.to_thread(db.close))
    done, _ = await asyncio.wait([closing], timeout=0.05)

    assert not done
    go_on.set()
    await closing
    assert found == ["read"]


async def test_commit_does_not_wait_for_those_that_read(db: Database) -> None:
    go_on = threading.Event()
    waiting = [asyncio.create_task(db.read(lambda _: go_on.wait(10), in_thread=True)) for _ in range(100)]
    await asyncio.sleep(0)

    try:
        async with asyncio.timeout(5):
            await db.write(put("name", "value"))
            assert not any(one.done() for one in waiting)
    finally:
        go_on.set()
        await asyncio.gather(*waiting)


async def test_reader_sees_no_half_written_work(db: Database) -> None:
    seen: list[str | None] = []

    def work(connection: Connection) -> None:
        put_value(connection, "name", "new")
        seen.append(db.read_now(lambda c: get_value(c, "name")))

    await db.write(work)
    assert seen == [None]
    assert await db.read(lambda c: get_value(c, "name"), in_thread=True) == "new"


@ON_SQLITE
def test_commits_reach_the_disk(db: Database) -> None:
    def pragma(name: str) -> object:
        return db.write_now(lambda c: c.exec_driver_sql(f"PRAGMA {name}").scalar())

    assert pragma("journal_mode") == "wal"
    assert pragma("synchronous") == 2


# Attempts and transactions


def new_attempt(number: int, **values: object) -> Attempt:
    """Return a pending payment."""
    made = Attempt(
        tx_id=f"tx_{number:05}",
        org=ORG,
        type="payment",
        status="pending",
        created_at=number * 1000,
        wallet_id="wal_1",
        recipient="shop.example",
        recipient_address="Address1",
        amount=number,
        memo="lunch",
        signature=f"signature-{number}",
        raw=b"signed",
        last_valid_block_height=100,
    )
    return replace(made, **values)  # type: ignore[arg-type]


def test_attempt_is_shown_as_a_transaction_at_once_and_settled_once(db: Database) -> None:
    db.write_now(lambda c: insert_attempt(c, new_attempt(1)))
    shown = db.read_now(lambda c: transaction(c, ORG, "tx_00001"))
    assert shown is not None
    assert (shown.status, shown.memo, shown.signature, shown.slot) == (
        "pending",
        "lunch",
        "signature-1",
        None,
    )
    assert db.read_now(lambda c: transaction(c, OTHER, "tx_00001")) is None
    assert db.write_now(lambda c: record_outcome(c, "tx_00001", "failed", now=5, slot=7, error="expired"))
    assert not db.write_now(lambda c: record_outcome(c, "tx_00001", "confirmed", now=6, slot=8))
    shown = db.read_now(lambda c: transaction(c, ORG, "tx_00001"))
    kept = db.read_now(lambda c: attempt(c, "tx_00001"))
    assert shown is not None
    assert kept is not None
    assert (shown.status, shown.slot, shown.error) == ("failed", 7, "expired")
    assert (kept.status, kept.raw) == ("failed", b"signed")


def test_attempts_that_move_no_money_are_not_listed(db: Database) -> None:
    db.write_now(lambda c: insert_attempt(c, new_attempt(1, type="freeze_wallet", amount=0)))
    assert db.read_now(lambda c: transaction(c, ORG, "tx_00001")) is None
    assert db.read_now(lambda c: attempt(c, "tx_00001")) is not None


def test_pending_attempts_are_found_oldest_first(db: Database) -> None:
    for number in (3, 1, 2):
        db.write_now(partial(insert_attempt, attempt=new_attempt(number)))
    db.write_now(lambda c: record_outcome(c, "tx_00001", "failed", now=1))
    assert [one.tx_id for one in db.read_now(pending_attempts)] == ["tx_00002", "tx_00003"]


def test_amounts_up_to_64_bits_survive(db: Database) -> None:
    db.write_now(lambda c: insert_attempt(c, new_attempt(1, amount=2**64 - 1, status="blocked")))
    shown = db.read_now(lambda c: transaction(c, ORG, "tx_00001"))
    assert shown is not None
    assert shown.amount == 2**64 - 1


def fill(connection: Connection, count: int) -> None:
    """Insert many confirmed rows, three to a moment."""
    values = [
        {
            "tx_id": f"tx_{n:06}",
            "org": ORG,
            "wallet_id": f"wal_{n % 20}",
            "type": "funding" if n % 10 == 0 else "payment",
            "recipient": f"Address{n % 50}" if n % 50 == 7 else f"shop-{n % 50}.example",
            "recipient_address": f"Address{n % 50}",
            "amount": n,
            "status": "blocked" if n % 97 == 0 else "confirmed",
            "policy_triggered": False,
            "timestamp": n // 3,
        }
        for n in range(count)
    ]
    connection.execute(insert(rows), values)


def _seven(n: int) -> bool:
    return n % 100 == 7 and n % 97 != 0


@pytest.mark.proves("Conventions: Lists")
@pytest.mark.parametrize(
    ("narrowed", "expected"),
    [
        (TransactionFilter(), lambda n: n >= 0),
        (TransactionFilter(wallet_id="wal_7"), lambda n: n % 20 == 7),
        (TransactionFilter(status="blocked"), lambda n: n % 97 == 0),
        (TransactionFilter(type="funding", wallet_id="wal_10"), lambda n: n % 20 == 10),
        (TransactionFilter(recipient="shop-3.example"), lambda n: n % 50 == 3),
        (TransactionFilter(recipient="Address3"), lambda n: n % 50 == 3),
        (TransactionFilter(recipient="Address7", wallet_id="wal_7", status="confirmed"), _seven),
        (TransactionFilter(start=100, end=200), lambda n: 100 <= n // 3 < 200),
    ],
)
def test_pages_give_every_row_once_newest_first(
    db: Database, narrowed: TransactionFilter, expected: Callable[[int], bool]
) -> None:
    db.write_now(lambda c: fill(c, 1000))
    found, cursor = [], None
    while True:
        page = db.read_now(partial(transactions, org=ORG, narrowed=narrowed, limit=7, cursor=cursor))
        found += [one.tx_id for one in page.data]
        assert page.has_more == (page.next_cursor is not None)
        cursor = page.next_cursor
        if cursor is None:
            break
    wanted = [(n // 3, f"tx_{n:06}") for n in range(1000) if expected(n)]
    assert found == [tx_id for _, tx_id in sorted(wanted, reverse=True)]
    assert db.read_now(lambda c: transactions(c, OTHER, narrowed)).data == []


@ON_SQLITE
@pytest.mark.parametrize(
    "narrowed",
    [
        TransactionFilter(),
        TransactionFilter(wallet_id="wal_7"),
        TransactionFilter(status="blocked"),
        TransactionFilter(type="funding"),
        TransactionFilter(recipient="Address3"),
        TransactionFilter(start=100, end=200),
    ],
)
def test_no_list_reads_the_whole_table(db: Database, narrowed: TransactionFilter) -> None:
    db.write_now(lambda c: fill(c, 100))
    plans = _plans(db, lambda connection: transactions(connection, ORG, narrowed))
    assert plans
    assert not [plan for plan in plans if plan.startswith("SCAN transactions")]


@ON_SQLITE
@pytest.mark.parametrize(
    ("read", "indexes"),
    [
        (TransactionFilter(), ["newest"]),
        (TransactionFilter(wallet_id="wal_7"), ["by_wallet"]),
        (TransactionFilter(wallet_id="wal_7", type="payment", status="confirmed"), ["by_wallet_kind"]),
        (TransactionFilter(wallet_id="wal_7", type="payment"), ["by_wallet_kind"]),
        (TransactionFilter(wallet_id="wal_7", status="failed"), ["by_wallet_kind"]),
        (TransactionFilter(type="payment", status="blocked"), ["by_kind"]),
        (TransactionFilter(status="confirmed", start=5), ["by_kind"]),
        (TransactionFilter(recipient="Address3"), ["by_address", "by_recipient"]),
        (TransactionFilter(recipient="Address3", status="failed"), ["by_address", "by_recipient"]),
        (
            TransactionFilter(recipient="Address3", wallet_id="wal_7", type="payment"),
            ["by_wallet_address", "by_wallet_recipient"],
        ),
        (FeedFilter(), ["newest"]),
        (FeedFilter(wallet_id="wal_7"), ["by_wallet", "by_other"]),
        (FeedFilter(wallet_id="wal_7", severity="info"), ["by_wallet_kind", "by_other_kind"]),
        (FeedFilter(wallet_id="wal_7", types=["transaction.completed"]), ["by_wallet_kind", "by_other_kind"]),
        (FeedFilter(severity="critical"), ["by_kind"]),
        (FeedFilter(types=["wallet.frozen", "escrow.refunded"], end=9), ["by_kind"]),
        (EscrowFilter(wallet_id="wal_7", status="released"), ["by_wallet_status", "by_receiver_status"]),
        (EscrowFilter(wallet_id="wal_7", status="locked"), ["by_wallet_status", "by_receiver_status"]),
        (EscrowFilter(wallet_id="wal_7"), ["by_wallet", "by_receiver"]),
        (EscrowFilter(status="locked"), ["by_status"]),
    ],
)
def test_lists_use_the_indexes_of_their_filter_and_in_their_order(
    db: Database, read: TransactionFilter | FeedFilter | EscrowFilter, indexes: list[str]
) -> None:
    def found(connection: Connection) -> object:
        match read:
            case TransactionFilter():
                return transactions(connection, ORG, read)
            case FeedFilter():
                return feed(connection, ORG, read)
        return escrows(connection, ORG, read)

    plans = [plan for plan in _plans(db, found) if plan.startswith("SEARCH") and "details" not in plan]

    assert {re.search(r"USING INDEX [a-z]+_(\w+)", plan)[1] for plan in plans} == set(indexes)  # type: ignore[index]
    # An order that the index does not give would have the database read everything that the filter lets through.
    assert len([plan for plan in _plans(db, found) if "TEMP B-TREE" in plan]) == 0


@ON_SQLITE
def test_list_of_payments_for_resources_reads_hardly_more_than_a_page(db: Database) -> None:
    def crowd(connection: Connection, numbers: range) -> None:
        for n in numbers:
            base = {"org": ORG, "wallet_id": f"wal_{n % 2}", "tx_id": f"tx_{n:06}"}
            row = {"amount": 1, "policy_triggered": False, "type": "payment", "status": "confirmed", "timestamp": n}
            connection.execute(insert(rows), [base | row])
            paid = {"url": "u", "scheme": "exact", "network": "n", "pay_to": "p", "facilitator": "f", "version": 2}
            paid |= {"host": f"{n % 3}.example", "header": "h", "lane": "enforced", "fetched": True, "created_at": n}
            connection.execute(insert(payloads), [base | paid])

    def steps(narrowed: TransactionFilter) -> int:
        return _steps(db, lambda c: transactions(c, ORG, narrowed), found=20)

    wallets = (None, "wal_1")
    filters = [TransactionFilter(x402_host=host, wallet_id=one) for host in ("*", "1.example") for one in wallets]
    db.write_now(lambda c: crowd(c, range(120)))
    among_few = [steps(one) for one in filters]
    db.write_now(lambda c: crowd(c, range(120, 1200)))

    assert [steps(one) < 1.5 * few for one, few in zip(filters, among_few, strict=True)] == [True] * 4


def _combinations(names: Sequence[str]) -> list[tuple[str, ...]]:
    return [some for count in range(1, len(names) + 1) for some in combinations(names, count)]


@ON_SQLITE
@pytest.mark.parametrize("given", _combinations(["wallet_id", "status", "type", "recipient"]))
def test_no_filters_scan_transactions_that_match_all_but_one_of_them(db: Database, given: tuple[str, ...]) -> None:
    wanted = {"wallet_id": "wal_quiet", "status": "failed", "type": "escrow_lock", "recipient": "shop.example"}
    narrowed = replace(TransactionFilter(), **{name: wanted[name] for name in given})  # type: ignore[arg-type]
    found = {"wallet_id": "wal_noisy", "status": "confirmed", "type": "payment", "recipient": "Address"}

    def crowd(connection: Connection, numbers: range) -> None:
        base = {"org": ORG, "amount": 1, "policy_triggered": False, "recipient_address": "Address"}
        near = [found | {name: wanted[name] for name in given if name != missed} for missed in given]
        values = [
            base | one | {"tx_id": f"{place}-{n}", "timestamp": n} for n in numbers for place, one in enumerate(near)
        ]
        connection.execute(insert(rows), values)

    db.write_now(lambda c: crowd(c, range(10)))
    among_few = _steps(db, lambda c: transactions(c, ORG, narrowed))
    db.write_now(lambda c: crowd(c, range(10, 1000)))

    assert _steps(db, lambda c: transactions(c, ORG, narrowed)) < 1.5 * among_few


@ON_SQLITE
@pytest.mark.parametrize("given", _combinations(["wallet_id", "types", "severity"]))
def test_no_filters_scan_events_that_match_all_but_one_of_them(db: Database, given: tuple[str, ...]) -> None:
    wanted = {"wallet_id": "wal_quiet", "types": "escrow.refunded", "severity": "critical"}
    others = {"wallet_id": "wal_noisy", "types": "wallet.created", "severity": "info"}
    narrowed = FeedFilter(
        types=[wanted["types"]] if "types" in given else None,
        wallet_id=wanted["wallet_id"] if "wallet_id" in given else None,
        severity=wanted["severity"] if "severity" in given else None,
    )

    def crowd(connection: Connection, numbers: range) -> None:
        for missed in given:
            one = others | {name: wanted[name] for name in given if name != missed}
            for n in numbers:
                append_event(
                    connection,
                    event_id=f"{missed}-{n}",
                    org=ORG,
                    type=one["types"],
                    timestamp=n,
                    payload={},
                    wallet_id=one["wallet_id"],
                    severity=one["severity"],
                )

    db.write_now(lambda c: crowd(c, range(10)))
    among_few = _steps(db, lambda c: feed(c, ORG, narrowed))
    db.write_now(lambda c: crowd(c, range(10, 1000)))

    assert _steps(db, lambda c: feed(c, ORG, narrowed)) < 1.5 * among_few


def _steps(db: Database, read: Callable[[Connection], RecordPage[Any]], *, found: int = 0) -> int:
    """How many instructions SQLite's virtual machine runs to find this many rows."""
    count = 0

    def step() -> None:
        nonlocal count
        count += 1

    def counted(connection: Connection) -> RecordPage[Any]:
        driver: Any = connection.connection.dbapi_connection
        driver.set_progress_handler(step, 1)
        page = read(connection)
        driver.set_progress_handler(None, 1)
        return page

    assert len(db.read_now(counted).data) == found
    return count


@ON_SQLITE
def test_wallets_of_a_tag_are_found_without_those_of_other_organisations(db: Database) -> None:
    def crowd(connection: Connection, numbers: range) -> None:
        for n in numbers:
            made = WalletDetails(f"wal_{n}", OTHER, f"vault-{n}", f"agent-{n}", "label", ("prod",), n)
            insert_wallet_details(connection, made)

    def own(connection: Connection) -> None:
        for table in (policy_table, wallet_table):
            given: dict[str, Any] = {column.name: 0 for column in table.columns if not column.nullable}
            connection.execute(insert(table).values(given | {"org": ORG} | ({"key": b""} if "key" in given else {})))

    db.write_now(own)
    db.write_now(lambda c: crowd(c, range(10)))
    among_few = _steps(db, lambda c: wallets(c, ORG, 1, tags=("prod", "live")))
    db.write_now(lambda c: crowd(c, range(10, 1000)))

    assert _steps(db, lambda c: wallets(c, ORG, 1, tags=("prod", "live"))) < 1.5 * among_few


def test_lists_know_every_status_type_and_severity() -> None:
    assert set(STATUSES) == set(get_args(Transaction.model_fields["status"].annotation))
    assert set(TYPES) == set(get_args(Transaction.model_fields["type"].annotation))
    assert set(SEVERITIES) == set(EVENTS) - {"ping"}
    assert set(EXCEPTIONS) == {kind.type for kind in EVENTS.values() if kind.exception}


@ON_SQLITE
@pytest.mark.parametrize(
    ("wallet_id", "status", "sought"),
    [
        (None, "pending", "newest (org=? AND created_at>?)"),
        (None, "approved", "newest (org=? AND created_at>?)"),
        ("wal_7", "approved", "by_wallet (wallet_id=? AND created_at>?)"),
        ("wal_7", "used", "by_wallet (wallet_id=?)"),
    ],
)
def test_search_for_a_passing_status_is_limited_to_its_time(
    db: Database, wallet_id: str | None, status: str, sought: str
) -> None:
    plans = _plans(db, lambda conn: approval_requests_of(conn, ORG, 1, wallet_id=wallet_id, status=status))

    assert plans[0] == f"SEARCH approval_requests USING INDEX approval_requests_{sought}"
    assert not [plan for plan in plans if "TEMP B-TREE" in plan]


@ON_SQLITE
def test_storing_an_approval_request_scans_no_earlier_ones(db: Database) -> None:
    values: dict[str, Any] = dict.fromkeys((one.name for one in fields(NewRequest) if one.default is MISSING), "1")
    numbers = dict.fromkeys(("amount", "policy_version", "threshold", "created_at"), 1)
    new = NewRequest(**values | numbers | {"purpose": "payment", "requested_by": Actor("key", "key_1")})

    plans: list[str] = []
    db.write_now(lambda conn: plans.extend(explained(conn, lambda: add_request(conn, new))))

    asked = [plan.removeprefix("SEARCH approval_requests USING INDEX ") for plan in plans]
    assert asked[0].startswith("approval_requests_by_payment (wallet_id=? AND recipient_address=? AND amount=?)")
    assert "approval_requests_by_wallet (wallet_id=? AND created_at>?)" in asked


@ON_SQLITE
def test_requests_that_are_to_be_forgotten_are_found_among_the_undecided(db: Database) -> None:
    plans: list[str] = []
    db.write_now(lambda conn: plans.extend(explained(conn, lambda: delete_undecided_requests(conn, 1, most=5))))

    assert "SEARCH approval_requests USING INDEX approval_requests_undecided (created_at<?)" in plans


def _plans(db: Database, read: Callable[[Connection], object]) -> list[str]:
    """How SQLite means to go about what `read` asks for."""
    return db.read_now(lambda connection: explained(connection, lambda: read(connection)))


@pytest.mark.parametrize(
    "cursor",
    [
        "",
        "x",
        "%%%",
        "AAAA",
        "bnVsbA",
        "WzEsMl0",
        "WyJhIiwiYiJd",
        "W3RydWUsImEiXQ",
        "Wy0xLCJhIl0",
        "é",
        "A" * 10_000,
        "W" * 200,
    ],
)
def test_cursors_that_no_list_gave_are_refused(db: Database, cursor: str) -> None:
    with pytest.raises(InvalidCursorError):
        db.read_now(lambda c: transactions(c, ORG, cursor=cursor))


def test_cursor_of_another_list_is_refused(db: Database) -> None:
    def fill_feed(connection: Connection) -> None:
        for n in range(2):
            append_event(connection, event_id=f"evt_{n}", org=ORG, type="wallet.frozen", timestamp=n, payload={})

    db.write_now(fill_feed)
    given = db.read_now(lambda c: feed(c, ORG, limit=1)).next_cursor
    assert given is not None

    with pytest.raises(InvalidCursorError):
        db.read_now(lambda c: transactions(c, ORG, cursor=given))


def test_cursor_of_another_organisation_or_filter_is_refused(db: Database) -> None:
    db.write_now(lambda c: fill(c, 10))
    given = db.read_now(lambda c: transactions(c, ORG, limit=1)).next_cursor

    assert db.read_now(lambda c: transactions(c, ORG, limit=3, cursor=given)).data
    with pytest.raises(InvalidCursorError):
        db.read_now(lambda c: transactions(c, OTHER, cursor=given))
    with pytest.raises(InvalidCursorError):
        db.read_now(lambda c: transactions(c, ORG, TransactionFilter(start=0), cursor=given))


# Feed


def test_feed_keeps_few_statements_for_all_numbers_of_types(db: Database) -> None:
    types = sorted(SEVERITIES)
    _listing.cache_clear()

    for count in range(len(types) + 1):
        chosen = FeedFilter(types=types[:count])
        db.read_now(lambda c, chosen=chosen: feed(c, ORG, chosen))  # type: ignore[misc]

    assert _listing.cache_info().currsize <= 8


def test_feed_keeps_an_event_once_and_filters(db: Database) -> None:
    def fill_feed(connection: Connection) -> None:
        for n in range(30):
            kind = "wallet.frozen" if n % 10 == 0 else "transaction.completed"
            for _ in range(2):
                append_event(
                    connection,
                    event_id=f"evt_{n}",
                    org=ORG,
                    type=kind,
                    timestamp=1000,
                    wallet_id=f"wal_{n % 2}",
                    payload={"n": n},
                )

    db.write_now(fill_feed)
    everything = db.read_now(lambda c: feed(c, ORG, limit=100)).data
    assert [one.payload["n"] for one in everything] == list(range(29, -1, -1))
    critical = db.read_now(lambda c: feed(c, ORG, FeedFilter(severity="critical"))).data
    assert [one.type for one in critical] == ["wallet.frozen"] * 3
    narrowed = FeedFilter(types=("wallet.frozen",), wallet_id="wal_0", start=1000, end=1001)
    assert len(db.read_now(lambda c: feed(c, ORG, narrowed)).data) == 3
    first = db.read_now(lambda c: feed(c, ORG, limit=4))
    second = db.read_now(lambda c: feed(c, ORG, limit=4, cursor=first.next_cursor))
    assert [one.payload["n"] for one in (*first.data, *second.data)] == list(range(29, 21, -1))
    oldest = db.read_now(lambda c: feed_after(c, 0, 2))
    assert [one.event_id for one in oldest] == ["evt_0", "evt_1"]
    assert [one.event_id for one in db.read_now(lambda c: feed_after(c, oldest[-1].position, 1))] == ["evt_2"]


# Idempotency


RECORD = IdempotencyRecord(
    org=ORG, key="k", method="POST", path="/v1/payments", body_hash="h", state="running", created_at=0, expires_at=10
)


@pytest.mark.proves("Limits: Lifetime of an idempotency key")
def test_key_is_held_until_it_is_freed_or_its_answer_is_old(db: Database) -> None:
    assert db.write_now(lambda c: claim(c, RECORD))
    assert not db.write_now(lambda c: claim(c, replace(RECORD, created_at=10**15)))
    db.write_now(lambda c: release(c, ORG, "k"))
    assert db.write_now(lambda c: claim(c, RECORD))
    db.write_now(lambda c: attach_transaction(c, ORG, "k", "tx_1"))
    db.write_now(lambda c: finish(c, ORG, "k", 200, "{}", 100))
    db.write_now(lambda c: release(c, ORG, "k"))
    answered = db.read_now(lambda c: find(c, ORG, "k", 100 + LIFETIME - 1))
    assert answered is not None
    assert (answered.status_code, answered.response, answered.tx_id) == (200, "{}", "tx_1")
    assert db.read_now(lambda c: find(c, ORG, "k", 100 + LIFETIME)) is None
    assert db.read_now(lambda c: find(c, OTHER, "k", 0)) is None
    assert not db.write_now(lambda c: claim(c, replace(RECORD, created_at=100 + LIFETIME - 1)))
    assert db.write_now(lambda c: claim(c, replace(RECORD, created_at=100 + LIFETIME, path="/v1/other")))
    renewed = db.read_now(lambda c: find(c, ORG, "k", 0))
    assert renewed is not None
    assert (renewed.state, renewed.path, renewed.tx_id, renewed.response) == ("running", "/v1/other", None, None)


def test_callers_of_two_scopes_hold_one_key(db: Database) -> None:
    def place(scope: str, now: int = 5) -> tuple[str, str | None]:
        key, found = db.read_now(lambda c: find_own(c, ORG, "k", scope, now))
        return key, None if found is None else found.path

    # The first is found under the key itself, where a version without scopes looks for it
    assert place("wal_1") == place("wal_2") == ("k", None)
    assert db.write_now(lambda c: claim(c, replace(RECORD, scope="wal_1", path="/1")))
    assert place("wal_1") == ("k", "/1")
    assert place("wal_2") == ("wal_2\nk", None)
    assert place("") == ("\nk", None)
    assert db.write_now(lambda c: claim(c, replace(RECORD, key="wal_2\nk", scope="wal_2", path="/2")))
    assert place("wal_2") == ("wal_2\nk", "/2")

    # The first ends: the other stays where it is, and cannot be claimed a second time
    db.write_now(lambda c: release(c, ORG, "k"))
    assert place("wal_2") == ("wal_2\nk", "/2")
    assert not db.write_now(lambda c: claim(c, replace(RECORD, scope="wal_2")))
    assert db.write_now(lambda c: claim(c, replace(RECORD, scope="wal_1", path="/1")))
    assert not db.write_now(lambda c: claim(c, replace(RECORD, key="wal_1\nk", scope="wal_1")))
    db.write_now(lambda c: finish(c, ORG, "k", 200, "{}", 100))
    assert place("wal_1", 100 + LIFETIME) == ("k", None)


def test_record_without_a_scope_is_everyones_in_the_organisation(db: Database) -> None:
    assert db.write_now(lambda c: claim(c, RECORD))
    for scope in ("", "wal_1", "key_1"):
        key, found = db.read_now(lambda c, scope=scope: find_own(c, ORG, "k", scope, 5))  # type: ignore[misc]
        assert (key, found) == ("k", RECORD)
        own = replace(RECORD, key=f"{scope}\nk", scope=scope)
        assert not db.write_now(lambda c, own=own: claim(c, own))  # type: ignore[misc]


def test_answer_is_stored_only_by_the_node_that_runs_the_request(db: Database) -> None:
    db.write_now(lambda c: claim(c, replace(RECORD, node="mine")))
    assert not db.write_now(lambda c: finish(c, ORG, "k", 200, "{}", 0, node="other"))
    held = db.read_now(lambda c: find(c, ORG, "k", 0))
    assert held is not None
    assert (held.state, held.response) == ("running", None)
    assert db.write_now(lambda c: finish(c, ORG, "k", 200, "{}", 0, node="mine"))
    assert not db.write_now(lambda c: finish(c, ORG, "k", 200, "{}", 0, node="mine"))


def test_running_key_is_kept_until_it_is_answered_and_its_time_is_up(db: Database) -> None:
    db.write_now(lambda c: claim(c, RECORD))
    assert db.write_now(lambda c: purge(c, 10**15)) == 0
    db.write_now(lambda c: finish(c, ORG, "k", 200, "{}", 0))
    assert db.write_now(lambda c: purge(c, LIFETIME)) == 1


def test_oldest_answers_beyond_a_wallets_quota_are_reduced(db: Database) -> None:
    def add(conn: Connection, number: int, wallet_id: str) -> None:
        key = f"{wallet_id}-{number}"
        claim(conn, replace(RECORD, key=key, created_at=number))
        finish(conn, ORG, key, 200, "whole", 100)
        keep_within(conn, ORG, key, 10, Reducible(wallet_id, f"short {key}", 25))

    def answers(wallet_id: str) -> list[str | None]:
        held = (db.read_now(lambda c, key=f"{wallet_id}-{number}": find(c, ORG, key, 0)) for number in range(4))  # type: ignore[misc]
        return [None if one is None else one.response for one in held]

    for number in range(4):
        db.write_now(lambda c, number=number: add(c, number, "wal_1"))  # type: ignore[misc]
    db.write_now(lambda c: add(c, 0, "wal_2"))
    assert answers("wal_1") == ["short wal_1-0", "short wal_1-1", "whole", "whole"]
    assert answers("wal_2") == ["whole", None, None, None]


# Keys


def test_key_is_found_by_its_digest_and_revoked_once(db: Database) -> None:
    key = ApiKey("key_1", ORG, "admin", None, "first", "digest", "avk_live_ab", 1)
    db.write_now(lambda c: insert_api_key(c, key))
    db.write_now(lambda c: touch_api_keys(c, {"key_1": 5}))
    found = db.read_now(lambda c: api_key_by_digest(c, "digest"))
    assert found == replace(key, last_used_at=5)
    assert not db.write_now(lambda c: revoke_api_key(c, OTHER, "key_1", 7))
    assert db.write_now(lambda c: revoke_api_key(c, ORG, "key_1", 7))
    assert not db.write_now(lambda c: revoke_api_key(c, ORG, "key_1", 8))
    assert [one.revoked_at for one in db.read_now(lambda c: api_keys(c, ORG))] == [7]


async def test_errors_of_the_database_do_not_show_what_was_to_be_stored(db: Database) -> None:
    def twice(connection: Connection) -> None:
        for _ in range(2):
            put = "INSERT INTO setting_values (name, value) VALUES (:name, :value)"
            connection.execute(text(put), {"name": "n", "value": "private memo"})

    with pytest.raises(IntegrityError) as failure:
        await db.write(twice)

    assert "private memo" not in str(failure.value)
