"""Escrows in the read models: what each event leads to, in any order, once or again."""

import hashlib
import random
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from solders.keypair import Keypair
from solders.pubkey import Pubkey

from app.chain.escrow_instructions import OpenEscrow
from app.core.identifiers import ESCROW_EVENT_INNER_INDEX, escrow_id, transaction_id, wallet_id
from app.database import Database, SqliteDatabase
from app.database.record_tables import insert_record
from app.projection.projector import Projector
from app.store.attempts import Attempt, attempt, insert_attempt
from app.store.escrows import EscrowRecord, due, escrow, insert_pending_escrow
from app.store.feed import FeedEvent, feed
from app.store.read_tables import TransactionRecord, escrows, transactions, wallets
from app.store.schema import create_tables
from app.store.transactions import transactions as list_transactions
from app.store.wallets import wallet
from indexer import Indexer, StoredEvent
from tests.projection.test_projector import changes_of, check_rollbacks, model, organisation_of
from tests.support.chain import USDC, Stage

_TASK = hashlib.sha256(b"task").digest()
_OUTPUT = hashlib.sha256(b"output").digest()
_TIMEOUT = 3_600


@dataclass
class History:
    """Real rows of escrows from one vault to another: completed, decided in all three ways, disputed and locked."""

    stage: Stage
    rows: list[StoredEvent]
    sender: Pubkey
    receiver: Pubkey

    @property
    def org(self) -> str:
        return str(self.stage.org)

    def address(self, counter: int) -> str:
        return str(self.stage.addresses.escrow(self.sender, counter))

    def of(self, counter: int) -> list[StoredEvent]:
        """The rows about one escrow, oldest first."""
        return [row for row in self.rows if row.data.get("escrow") == self.address(counter)]

    def without(self, *names: str) -> list[StoredEvent]:
        return [row for row in self.rows if row.name not in names]

    async def projected(self, folder: Path, rows: Sequence[StoredEvent], *made: Attempt) -> Database:
        """A database that knew these attempts and then saw these rows."""
        db = SqliteDatabase(folder / f"{secrets.token_hex(4)}.db", create_tables)
        await db.write(lambda c: insert_record(c, organisation_of(self.stage)))
        for one in made:
            await db.write(lambda c, one=one: insert_attempt(c, one))  # type: ignore[misc]
        await Projector(db, changes_of(numbered(rows))).catch_up()
        return db

    def escrow(self, db: Database, counter: int) -> EscrowRecord:
        found = db.read_now(lambda c: escrow(c, self.org, escrow_id(self.address(counter))))
        assert found is not None
        return found

    def rows_of(self, db: Database, vault: Pubkey) -> list[TransactionRecord]:
        found = db.read_now(lambda c: list_transactions(c, self.org, limit=100)).data
        return [row for row in found if row.wallet_id == wallet_id(vault) and row.type != "funding"]

    def told(self, db: Database) -> list[FeedEvent]:
        events = db.read_now(lambda c: feed(c, self.org, limit=100)).data
        return [one for one in reversed(events) if one.type.startswith("escrow.")]


def numbered(rows: Sequence[StoredEvent]) -> list[StoredEvent]:
    """Rows with ids in the order in which they stand."""
    return [replace(row, id=n + 1) for n, row in enumerate(rows)]


_RELEASED = {2: 10 * USDC, 3: 0, 4: 4 * USDC}


@pytest_asyncio.fixture(scope="module", loop_scope="module", name="history")
async def _history(tmp_path_factory: pytest.TempPathFactory) -> History:
    """Escrow 0 is completed, 2 to 4 are decided, 5 is disputed, 6 is locked; 1 goes to an address outside."""
    async with Stage() as stage:
        arbiter, session, build = Keypair(), Keypair(), stage.build
        operator = stage.operator
        await stage.send(
            build.update_org(
                signer=stage.authority.pubkey(),
                expected_sequence=(await stage.fields(stage.org))["authority_sequence"],
                arbiter=arbiter.pubkey(),
            ),
            signers=[stage.authority],
        )
        sender, receiver = await stage.wallet("sender", funds=100 * USDC), await stage.wallet("receiver")
        await stage.send(
            build.update_wallet(operator=operator.pubkey(), vault=sender, session=(session.pubkey(), 2**40)),
            signers=[operator],
        )
        for counter in range(7):
            made = build.create_escrow(
                payer=stage.payer.pubkey(),
                signer=session.pubkey(),
                policy=stage.addresses.preset(stage.org, "pol_permissive"),
                vault=sender,
                receiver=stage.payee if counter == 1 else receiver,
                counter=counter,
                amount=10 * USDC,
                reference=secrets.token_bytes(16),
                task_hash=_TASK,
                proof_kinds=1,
                timeout=_TIMEOUT,
                expected_output=_OUTPUT if counter == 0 else None,
            )
            await stage.send(made, signers=[session])

        def where(counter: int) -> OpenEscrow:
            to = stage.payee if counter == 1 else receiver
            return OpenEscrow(stage.addresses.escrow(sender, counter), sender, to, stage.payer.pubkey())

        payer = stage.payer.pubkey()
        for counter in (0, 1):
            shown = build.complete_escrow(
                where(counter), payer=payer, kind=0, output_hash=_OUTPUT, signer=operator.pubkey()
            )
            await stage.send(shown, signers=[operator])
        for counter in (2, 3, 4, 5):
            stopped = build.dispute_escrow(
                where(counter), signer=operator.pubkey(), reason_hash=_TASK, evidence_hash=bytes(32)
            )
            await stage.send(stopped, signers=[operator])
        for counter, released in _RELEASED.items():
            decided = build.resolve_dispute(where(counter), payer=payer, arbiter=arbiter.pubkey(), released=released)
            await stage.send(decided, signers=[arbiter])
        indexer = Indexer(
            transport=stage.transport, codec=stage.codec, db_path=tmp_path_factory.mktemp("chain") / "chain.db"
        )
        await indexer.catch_up()
        rows = indexer.store.changes(0, 1000)
        await indexer.stop()
    # Each transaction gets a slot of its own, as if they had not been sent within one.
    slots = {signature: n + 1 for n, signature in enumerate(dict.fromkeys(row.signature for row in rows))}
    return History(stage, [replace(row, slot=slots[row.signature]) for row in rows], sender, receiver)


def snapshot(db: Database) -> dict[str, list[Any]]:
    """All rows of the read models that escrows touch, in the order of their keys."""
    tables = (escrows, transactions, wallets)
    return db.read_now(lambda c: {t.name: sorted(tuple(map(str, row)) for row in c.execute(model(t))) for t in tables})


@pytest.mark.proves("Escrow(status)")
async def test_statuses_follow_from_the_events(history: History, tmp_path: Path) -> None:
    db = await history.projected(tmp_path, history.rows)

    found = [history.escrow(db, counter) for counter in range(7)]

    statuses = ["released", "released", "released", "refunded", "settled", "disputed", "locked"]
    assert [one.status for one in found] == statuses
    assert [one.to for one in found[:2]] == [wallet_id(history.receiver), str(history.stage.payee)]
    assert [(one.released, one.refunded) for one in found[2:6]] == [
        (10 * USDC, 0),
        (0, 10 * USDC),
        (4 * USDC, 6 * USDC),
        (None, None),
    ]
    commitment = hashlib.sha256(_OUTPUT).hexdigest()
    assert (found[0].output_hash, found[0].proof_kind, found[0].output_commitment) == (_OUTPUT.hex(), 0, commitment)
    assert (found[4].output_hash, found[4].proof_kind, found[4].output_commitment) == (None, None, None)
    assert (found[5].reason_hash, found[5].evidence_hash) == (_TASK.hex(), None)
    assert [one.counter for one in found] == list(range(7))
    [locked] = history.of(6)
    assert (found[6].deadline, found[6].due_at) == (locked.data["deadline"], locked.data["deadline"])
    assert found[5].due_at == (found[5].disputed_at or 0) + 30 * 86_400
    assert found[0].due_at is None
    db.close()


async def test_what_is_due_is_locked_past_its_deadline_or_disputed_for_30_days(
    history: History, tmp_path: Path
) -> None:
    db = await history.projected(tmp_path, history.rows)
    deadline = history.escrow(db, 6).due_at or 0
    undecided = history.escrow(db, 5).due_at or 0

    def at(now: int) -> list[str]:
        return [one.address for one in db.read_now(lambda c: due(c, now))]

    assert at(deadline - 1) == []
    assert at(deadline) == [history.address(6)]
    assert at(undecided - 1) == [history.address(6)]
    assert at(undecided) == [history.address(6), history.address(5)]
    db.close()


async def test_rows_of_both_wallets_have_the_ids_that_their_events_give(history: History, tmp_path: Path) -> None:
    db = await history.projected(tmp_path, history.rows)
    created, settled = history.of(0)
    split = history.of(4)[-1]

    sent = {row.tx_id: row for row in history.rows_of(db, history.sender)}
    got = {row.tx_id: row for row in history.rows_of(db, history.receiver)}

    assert sorted(row.type for row in sent.values()) == ["a2a_send"] * 7 + ["escrow_lock"] * 7 + ["escrow_refund"] * 2
    assert sorted(row.type for row in got.values()) == ["a2a_receive"] * 3 + ["escrow_release"] * 3
    for row, kind, where, amount in (
        (created, "escrow_lock", sent, 10 * USDC),
        (created, "a2a_send", sent, 10 * USDC),
        (settled, "escrow_release", got, 10 * USDC),
        (settled, "a2a_receive", got, 10 * USDC),
        (split, "escrow_refund", sent, 6 * USDC),
        (split, "escrow_release", got, 4 * USDC),
    ):
        shown = where[transaction_id(row.message_hash, row.instruction, row.inner, kind)]
        assert (shown.type, shown.amount, shown.signature) == (kind, amount, row.signature)
    assert created.inner == ESCROW_EVENT_INNER_INDEX
    locked = sum(row.amount * (1 if row.type == "escrow_lock" else -1) for row in sent.values() if "escrow" in row.type)
    released = sum(row.amount for row in got.values() if row.type == "escrow_release")
    assert (locked, released) == (54 * USDC, 24 * USDC)
    db.close()


async def test_balances_of_both_sides_follow_from_the_events_alone(history: History, tmp_path: Path) -> None:
    db = await history.projected(tmp_path, history.without("Deposit", "BalanceObserved"))

    sender = db.read_now(lambda c: wallet(c, history.org, wallet_id(history.sender), 0))
    receiver = db.read_now(lambda c: wallet(c, history.org, wallet_id(history.receiver), 0))

    assert sender is not None
    assert receiver is not None
    assert (sender.balance, receiver.balance) == (46 * USDC, 24 * USDC)
    assert (sender.escrow_counter, receiver.escrow_counter) == (7, 0)
    db.close()


async def test_events_tell_what_happened_in_its_order(history: History, tmp_path: Path) -> None:
    db = await history.projected(tmp_path, history.rows)

    def told(counter: int) -> list[tuple[str, str]]:
        identifier = escrow_id(history.address(counter))
        return [(one.type, one.severity) for one in history.told(db) if one.payload["escrow_id"] == identifier]

    created, disputed = ("escrow.created", "info"), ("escrow.disputed", "warning")
    released, refunded = ("escrow.released", "info"), ("escrow.refunded", "critical")
    assert told(0) == told(1) == [created, ("escrow.completed", "info"), released]
    assert told(2) == [created, disputed, released]
    assert told(3) == [created, disputed, refunded]
    assert told(4) == [created, disputed, released, refunded]
    assert told(5) == [created, disputed]
    amounts = [one.payload["amount"] for one in history.told(db) if one.type in ("escrow.released", "escrow.refunded")]
    assert amounts == ["10.00", "10.00", "10.00", "10.00", "4.00", "6.00"]
    assert {one.wallet_id for one in history.told(db)} == {wallet_id(history.sender)}
    assert {one.other_wallet_id for one in history.told(db)} == {wallet_id(history.receiver), None}
    db.close()


@pytest.mark.parametrize(
    ("outcome", "reason", "severity"), [(2, "timeout", "info"), (6, "dispute_undecided", "critical")]
)
async def test_refund_without_a_decision_says_why(
    history: History, tmp_path: Path, outcome: int, reason: str, severity: str
) -> None:
    settled = history.of(3)[-1]
    changed = replace(settled, data={**settled.data, "outcome": outcome})
    db = await history.projected(tmp_path, [changed if row is settled else row for row in history.rows])

    [event] = [one for one in history.told(db) if one.type == "escrow.refunded" and one.signature == settled.signature]

    assert (event.payload["reason"], event.severity) == (reason, severity)
    assert history.escrow(db, 3).status == "refunded"
    db.close()


async def test_rows_in_any_order_give_the_same_read_models_and_events(history: History, tmp_path: Path) -> None:
    shuffler, pictures = random.Random(11), []
    for turn in range(8):
        order = list(history.rows)
        if turn:
            shuffler.shuffle(order)
        db = await history.projected(tmp_path, order)
        told = sorted((one.event_id, one.type, one.severity, str(one.payload)) for one in history.told(db))
        pictures.append((snapshot(db), told))
        db.close()

    assert pictures[0][0]["escrows"]
    assert all(picture == pictures[0] for picture in pictures)


async def test_rows_applied_twice_change_nothing(history: History, tmp_path: Path) -> None:
    once = await history.projected(tmp_path, history.rows)
    twice = await history.projected(tmp_path, [*history.rows, *history.rows])

    assert snapshot(twice) == snapshot(once)
    assert len(history.told(twice)) == len(history.told(once))
    once.close()
    twice.close()


def _attempt(history: History, row: StoredEvent, *, inner: int = ESCROW_EVENT_INNER_INDEX) -> Attempt:
    """The service's attempt at an escrow, whose event it expected at `inner`."""
    return Attempt(
        tx_id=transaction_id(row.message_hash, row.instruction, inner, "escrow_lock"),
        org=history.org,
        type="escrow_lock",
        status="pending",
        created_at=row.block_time * 1000 + 7,
        wallet_id=wallet_id(history.sender),
        recipient="receiver",
        amount=10 * USDC,
        memo="report",
        reference=bytes.fromhex(row.data["reference"]),
        signature=row.signature,
        message_hash=row.message_hash,
    )


@pytest.mark.parametrize("inner", [ESCROW_EVENT_INNER_INDEX, 1])
async def test_attempt_is_settled_wherever_its_event_stands(history: History, tmp_path: Path, inner: int) -> None:
    [row] = history.of(6)
    made = _attempt(history, row, inner=inner)
    db = await history.projected(tmp_path, history.rows, made)

    kept = db.read_now(lambda c: attempt(c, made.tx_id))
    shown = {one.type: one for one in history.rows_of(db, history.sender) if one.signature == row.signature}

    assert kept is not None
    assert kept.status == "confirmed"
    assert set(shown) == {"escrow_lock", "a2a_send"}
    assert shown["escrow_lock"].tx_id == made.tx_id
    assert {one.memo for one in shown.values()} == {"report"}
    assert {one.timestamp for one in shown.values()} == {made.created_at}
    assert (history.escrow(db, 6).tx_id, history.escrow(db, 6).created_at) == (made.tx_id, made.created_at)
    db.close()


async def test_attempt_with_another_reference_is_not_taken_for_this_one(history: History, tmp_path: Path) -> None:
    [row] = history.of(6)
    other = replace(_attempt(history, row, inner=1), reference=bytes(16))
    db = await history.projected(tmp_path, history.rows, other)

    kept = db.read_now(lambda c: attempt(c, other.tx_id))

    assert kept is not None
    assert kept.status == "pending"
    db.close()


async def test_rolled_back_creation_is_pending_again_or_gone_if_by_others(history: History, tmp_path: Path) -> None:
    [ours], [theirs, _] = history.of(6), history.of(5)
    made = _attempt(history, ours)
    db = SqliteDatabase(tmp_path / "fork.db", create_tables)
    await db.write(lambda c: insert_record(c, organisation_of(history.stage)))
    await db.write(lambda c: insert_attempt(c, made))
    stored = numbered(history.rows)
    projector = Projector(db, changes_of(stored))
    await projector.catch_up()
    assert history.escrow(db, 6).status == "locked"
    gone = {ours.signature, *(row.signature for row in history.of(5))}
    nothing = replace(theirs, name="TransactionReverted", org=None, instruction=-1, inner=-1)
    events = {one: [{**row.data, "name": row.name} for row in stored if row.signature == one] for one in gone}
    news = [
        replace(nothing, id=5000 + n, signature=one, data={"events": events[one]}) for n, one in enumerate(sorted(gone))
    ]
    stored[:] = [row for row in stored if row.signature not in gone] + news

    await projector.catch_up()

    again = history.escrow(db, 6)
    assert (again.status, again.due_at, again.tx_id) == ("pending", None, made.tx_id)
    assert db.read_now(lambda c: escrow(c, history.org, escrow_id(history.address(5)))) is None
    assert history.escrow(db, 4).status == "settled"
    stored[:] = [*stored, replace(ours, id=6000)]
    await projector.catch_up()
    assert history.escrow(db, 6).status == "locked"
    db.close()


async def test_rollback_gives_the_escrows_of_a_rebuild(
    history: History, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = numbered(history.rows)
    await check_rollbacks(rows, organisation_of(history.stage), tmp_path, monkeypatch, snapshot)


async def test_creation_by_others_replaces_what_the_service_had_in_mind(history: History, tmp_path: Path) -> None:
    db = await history.projected(tmp_path, [])
    planned = EscrowRecord(
        escrow_id=escrow_id(history.address(6)),
        org=history.org,
        address=history.address(6),
        wallet_id=wallet_id(history.sender),
        vault=str(history.sender),
        receiver="elsewhere",
        to_wallet=None,
        payer="payer",
        policy="policy",
        amount=1,
        task_hash="00",
        output_commitment=None,
        proof_kinds=4,
        counter=6,
        status="pending",
        deadline=1,
        created_at=1,
        tx_id="tx_ours",
    )
    await db.write(lambda c: insert_pending_escrow(c, planned))

    await Projector(db, changes_of(history.rows)).catch_up()

    found, fresh = history.escrow(db, 6), await history.projected(tmp_path, history.rows)
    assert found == history.escrow(fresh, 6)
    db.close()
    fresh.close()
