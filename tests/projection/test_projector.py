"""The projector: the same rows give the same read models, in any order, once or again."""

import asyncio
import random
import secrets
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from solders.instruction import Instruction
from solders.keypair import Keypair
from solders.pubkey import Pubkey
from sqlalchemy import Connection, Select, Table, select

from app.chain.addresses import domain_hash
from app.chain.rules import BudgetLimits, Rules
from app.core.actors import Actor
from app.core.identifiers import EVENT_INNER_INDEX, budget_id, policy_id, transaction_id, wallet_id
from app.core.timestamps import DAY
from app.database import Database, SqliteDatabase
from app.database.postgres.database import PostgresDatabase
from app.database.record_tables import insert_record
from app.projection.projector import Changes, Projector
from app.projection.rollbacks import reset
from app.server.databases import open_projector
from app.store.approvals import approval, open_approval
from app.store.attempts import Attempt, attempt, insert_attempt
from app.store.budgets import budget
from app.store.budgets import budgets as all_budgets
from app.store.feed import FeedEvent, feed
from app.store.organisations import Organisation, reserve, reserve_balance, reserves
from app.store.policies import (
    PolicyDetails,
    policies,
    policy,
    policy_audit_log,
    put_allowlist,
    put_policy_details,
    record_policy_edit,
)
from app.store.read_tables import approvals, budgets, recipients, transactions, wallets
from app.store.recipients import put_domain, recipient, recipient_by_domain
from app.store.schema import create_tables
from app.store.transactions import TransactionFilter, transaction
from app.store.transactions import transactions as list_transactions
from app.store.wallets import (
    AgentIdTakenError,
    WalletDetails,
    WalletRecord,
    insert_wallet_details,
    update_wallet_details,
    wallet,
)
from app.store.wallets import wallets as list_wallets
from indexer import EventStore, Indexer, StoredEvent
from indexer.postgres import PostgresEvents
from tests.support.chain import USDC, Stage

NOW = int(time.time() * 1000)
_BUDGET_KEYS = (b"first".ljust(16), b"second".ljust(16))
_LIMITS = BudgetLimits(max_per_day=10 * USDC, max_per_month=2**64 - 1)


@dataclass
class Line:
    """The whole line: chain, indexer, projector, store."""

    stage: Stage
    db: Database
    indexer: Indexer
    projector: Projector
    extra: dict[str, Any] = field(default_factory=dict)

    @property
    def org(self) -> str:
        """The organisation's address."""
        return str(self.stage.org)

    async def seen(self) -> None:
        """Index and project everything that is confirmed."""
        await self.indexer.catch_up()
        await self.indexer.check()
        await self.projector.catch_up()

    def wallet(self, vault: object, now: int = NOW) -> WalletRecord:
        """Return a vault's wallet."""
        found = self.db.read_now(lambda c: wallet(c, self.org, wallet_id(str(vault)), now))
        assert found is not None
        return found

    def feed(self, kind: str) -> list[FeedEvent]:
        """Return the feed's events of a type, oldest first."""
        events = self.db.read_now(lambda c: feed(c, self.org, limit=100)).data
        return [one for one in reversed(events) if one.type == kind]


def organisation_of(stage: Stage) -> Organisation:
    """Return the record of the stage's organisation."""
    return Organisation(
        str(stage.org),
        stage.org_id,
        "Acme",
        str(stage.authority.pubkey()),
        str(stage.localnet.usdc_mint),
        str(stage.build.reserve_tokens),
        1,
    )


@asynccontextmanager
async def line_on(db: Database, folder: Path) -> AsyncIterator[Line]:
    """Run a line with its read models in a database."""
    async with Stage() as stage:
        # As a service has them: on PostgreSQL in the same database.
        events = PostgresEvents(db) if isinstance(db, PostgresDatabase) else EventStore(folder / "chain.db")
        indexer = Indexer(transport=stage.transport, codec=stage.codec, events=events)
        projector = open_projector(db, events, indexer)
        await db.write(lambda c: insert_record(c, organisation_of(stage)))
        yield Line(stage, db, indexer, projector)
        await projector.stop()
        await indexer.stop()


@pytest_asyncio.fixture(name="line")
async def _line(db: Database, tmp_path: Path) -> AsyncIterator[Line]:
    async with line_on(db, tmp_path) as line:
        yield line


def model(table: Table) -> Select[Any]:
    """Return the query of a read model without the ids of the rows that led to it."""
    return select(*(column for column in table.c if column.name != "balance_row"))


def snapshot(db: Database) -> dict[str, list[Any]]:
    """Return all rows of the read models, in the order of their keys."""

    def read(connection: Connection) -> dict[str, list[Any]]:
        tables = (wallets, budgets, reserves, transactions, recipients, approvals)
        return {t.name: sorted(tuple(row) for row in connection.execute(model(t))) for t in tables}

    return db.read_now(read)


# The whole line


async def test_presets_and_reserve_follow_from_the_chain(line: Line) -> None:
    await line.seen()
    presets = line.db.read_now(lambda c: policies(c, line.org))
    assert [one.policy_id for one in presets] == ["pol_conservative", "pol_moderate", "pol_permissive", "pol_locked"]
    assert presets[0].rules == Rules(
        max_per_tx=10 * USDC, max_per_day=50 * USDC, max_per_month=500 * USDC, velocity_cap=10, max_open_escrows=8
    )
    assert all(one.immutable for one in presets)
    assert line.db.read_now(lambda c: reserve_balance(c, line.org)) == 1000 * USDC
    [deposit] = line.feed("org.deposit_confirmed")
    assert deposit.payload["amount"] == "1000.00"


async def test_wallet_shows_what_the_chain_and_the_service_know(line: Line) -> None:
    address = line.stage.addresses.vault(line.stage.org, "agent-1")
    details = WalletDetails(wallet_id(address), line.org, str(address), "agent-1", "Shopper", ("a", "b"), NOW)
    await line.db.write(lambda c: insert_wallet_details(c, details))
    with pytest.raises(AgentIdTakenError):
        await line.db.write(lambda c: insert_wallet_details(c, details))
    await line.stage.wallet("agent-1", funds=20 * USDC)
    await line.seen()
    found = line.wallet(address)
    assert (found.agent_id, found.label, found.tags, found.created_at) == ("agent-1", "Shopper", ("a", "b"), NOW)
    assert (found.balance, found.status, found.policy.policy_id) == (20 * USDC, "active", "pol_permissive")
    assert line.db.read_now(lambda c: policy(c, line.org, "pol_permissive")).wallet_count == 1  # type: ignore[union-attr]
    [created] = line.feed("wallet.created")
    assert created.payload["agent_id"] == "agent-1"
    assert created.payload["chain_address"] == str(address)
    await line.db.write(
        lambda c: update_wallet_details(c, found.wallet_id, now=NOW + 1, label="Buyer", tags=["b", "c"])
    )
    assert (line.wallet(address).label, line.wallet(address).tags) == ("Buyer", ("b", "c"))
    for tags, count in (((), 1), (("b",), 1), (("b", "c"), 1), (("a",), 0), (("b", "x"), 0)):
        page = line.db.read_now(lambda c, t=tags: list_wallets(c, line.org, NOW, tags=t))  # type: ignore[misc]
        assert len(page.data) == count


async def test_payment_is_a_transaction_with_its_memo_and_an_event(line: Line) -> None:
    vault = await line.stage.wallet("agent-1", funds=20 * USDC)
    signature = await line.stage.pay(vault, 3 * USDC)
    tx_id = transaction_id(line.stage.messages[signature], 0, EVENT_INNER_INDEX, "payment")
    made = Attempt(
        tx_id=tx_id,
        org=line.org,
        type="payment",
        status="pending",
        created_at=NOW,
        wallet_id=wallet_id(vault),
        recipient="shop.example",
        amount=3 * USDC,
        policy_id="pol_permissive",
        memo="lunch",
        signature=signature,
        message_hash=line.stage.messages[signature],
    )
    await line.db.write(lambda c: insert_attempt(c, made))
    await line.seen()
    row = line.db.read_now(lambda c: transaction(c, line.org, tx_id))
    assert row is not None
    assert (row.status, row.recipient, row.recipient_address) == ("confirmed", "shop.example", str(line.stage.payee))
    assert (row.memo, row.amount, row.timestamp, row.signature) == ("lunch", 3 * USDC, NOW, signature)
    assert line.db.read_now(lambda c: attempt(c, tx_id)).status == "confirmed"  # type: ignore[union-attr]
    assert line.wallet(vault).balance == 17 * USDC
    assert (line.wallet(vault).last_transaction_at or 0) >= NOW
    [event] = line.feed("transaction.completed")
    assert {name: event.payload[name] for name in ("wallet_id", "tx_id", "tx_signature", "amount", "recipient")} == {
        "wallet_id": wallet_id(vault),
        "tx_id": tx_id,
        "tx_signature": signature,
        "amount": "3.00",
        "recipient": "shop.example",
    }
    assert event.payload["policy_triggered"] is False
    assert event.payload["on_chain_slot"] == row.slot


@pytest.mark.proves("event wallet.funded")
async def test_funding_and_withdrawal_move_both_balances(line: Line) -> None:
    vault = await line.stage.wallet("agent-1", funds=20 * USDC)
    build, operator = line.stage.build, line.stage.operator
    withdrawal = build.withdraw(operator=operator.pubkey(), vault=vault, amount=5 * USDC, reference=bytes(16))
    signature = await line.stage.send(withdrawal, signers=[operator])
    await line.seen()
    assert line.wallet(vault).balance == 15 * USDC
    assert line.db.read_now(lambda c: reserve_balance(c, line.org)) == 985 * USDC
    kinds = line.db.read_now(
        lambda c: list_transactions(c, line.org, TransactionFilter(wallet_id=wallet_id(vault)))
    ).data
    assert sorted((one.type, one.amount) for one in kinds) == [("funding", 20 * USDC), ("withdrawal", 5 * USDC)]
    tx_id = transaction_id(line.stage.messages[signature], 0, EVENT_INNER_INDEX, "withdrawal")
    assert line.db.read_now(lambda c: transaction(c, line.org, tx_id)) is not None
    [event] = line.feed("wallet.funded")
    assert (event.payload["amount"], event.payload["usdc_balance"]) == ("20.00", "20.00")


async def test_direct_deposit_into_a_vault_shows_in_its_balance(line: Line) -> None:
    vault = await line.stage.wallet("agent-1", funds=20 * USDC)
    await line.seen()
    await line.stage.deposit(line.stage.addresses.token_account(vault), 5 * USDC)
    await line.seen()
    assert line.wallet(vault).balance == 25 * USDC


@pytest.mark.proves(
    "Wallets: active to policy_violation", "Wallets: policy_violation to active", "Wallets: active to idle"
)
async def test_statuses_follow_the_first_condition_that_holds(line: Line) -> None:
    stage, build = line.stage, line.stage.build
    vault = await stage.wallet("agent-1", funds=5 * USDC)
    await line.seen()
    week = 7 * DAY
    assert line.wallet(vault).status == "active"
    assert line.wallet(vault, NOW + week + DAY).status == "idle"
    blocked = Attempt(
        tx_id="tx_blocked",
        org=line.org,
        type="payment",
        status="blocked",
        created_at=NOW + 10,
        wallet_id=wallet_id(vault),
        amount=1,
    )
    await line.db.write(lambda c: insert_attempt(c, blocked))
    assert line.wallet(vault, NOW + 100).status == "policy_violation"
    assert line.wallet(vault, NOW + 2 * DAY).status == "active"
    await stage.pay(vault, 5 * USDC)
    await line.db.write(lambda c: insert_attempt(c, replace(blocked, tx_id="tx_before", created_at=NOW - DAY)))
    await line.seen()
    assert line.wallet(vault, NOW + 100).status == "unfunded"
    preset = stage.addresses.preset(stage.org, "pol_permissive")
    operator, authority = stage.operator.pubkey(), stage.authority.pubkey()
    freeze = build.freeze_wallet(signer=operator, vault=vault, policy=preset, action="Freeze")
    await stage.send(freeze, signers=[stage.operator])
    await line.seen()
    assert line.wallet(vault).status == "frozen"
    [event] = line.feed("wallet.frozen")
    assert event.severity == "critical"
    page = line.db.read_now(lambda c: list_wallets(c, line.org, NOW, status="frozen"))
    assert [one.vault for one in page.data] == [str(vault)]
    sequence: int = (await stage.fields(vault))["frozen_sequence"]
    lift = build.freeze_wallet(
        signer=authority, vault=vault, policy=preset, action="Unfreeze", expected_sequence=sequence
    )
    await stage.send(lift, signers=[stage.authority])
    close = build.close_wallet(operator=operator, vault=vault, policy=preset, rent_receiver=stage.payer.pubkey())
    await stage.send(close, signers=[stage.operator])
    await line.seen()
    assert len(line.feed("wallet.unfrozen")) == 1
    assert line.wallet(vault).status == "archived"
    assert line.db.read_now(lambda c: list_wallets(c, line.org, NOW)).data == []
    assert len(line.db.read_now(lambda c: list_wallets(c, line.org, NOW, status="archived")).data) == 1
    assert line.db.read_now(lambda c: policy(c, line.org, "pol_permissive")).wallet_count == 0  # type: ignore[union-attr]


async def test_policy_change_is_audited_with_its_author_and_reported(line: Line) -> None:
    stage, build, key = line.stage, line.stage.build, b"k" * 16
    address, identifier = stage.addresses.policy(stage.org, key), policy_id(key)
    authority, payer = stage.authority.pubkey(), stage.payer.pubkey()
    create = build.create_policy(payer=payer, authority=authority, key=key, rules=Rules(max_per_tx=10 * USDC))
    await stage.send(create, signers=[stage.authority])
    made, entries = await stage.fields(address), [domain_hash("shop.example")]
    listed = stage.addresses.allowlist(address, made["next_allowlist_version"])

    def remember(connection: Connection) -> None:
        put_policy_details(
            connection,
            PolicyDetails(policy_id=identifier, org=line.org, address=str(address), name="Shopping", created_at=NOW),
        )
        put_allowlist(connection, str(listed), identifier, ["shop.example"])
        record_policy_edit(
            connection,
            line.org,
            identifier,
            version=made["version"] + 2,
            changed_by=Actor("key", "key_1"),
            changes={"name": {"from": "a", "to": "b"}},
            now=1,
        )
        record_policy_edit(
            connection,
            line.org,
            identifier,
            version=None,
            changed_by=Actor("key", "key_2"),
            changes={"name": {"from": "b", "to": "Shopping"}},
            now=NOW + 10**7,
        )

    await line.db.write(remember)
    changed = Rules(max_per_tx=20 * USDC, expiry=4_000_000_000, blocked_categories=2, restricted=True)
    await stage.send(
        build.write_allowlist(
            payer=payer,
            writer=authority,
            policy=address,
            version=made["next_allowlist_version"],
            offset=0,
            entries=entries,
            seal=True,
        ),
        build.update_policy(
            authority=authority,
            policy=address,
            expected_version=made["version"],
            rules=changed,
            new_allowlist=listed,
            entries=entries,
        ),
        signers=[stage.authority],
    )
    await line.seen()
    found = line.db.read_now(lambda c: policy(c, line.org, identifier))
    assert found is not None
    assert (found.name, found.rules, found.version) == ("Shopping", changed, made["version"] + 2)
    assert (found.allowed_recipients, found.allowlist) == (["shop.example"], str(listed))
    first, second = line.db.read_now(lambda c: policy_audit_log(c, line.org, identifier))
    assert (first.changed_by, second.changed_by) == (Actor("key", "key_1"), Actor("key", "key_2"))
    assert first.changes == {
        "max_per_tx": {"from": "10.00", "to": "20.00"},
        "allowed_recipients": {"from": [], "to": ["shop.example"]},
        "blocked_categories": {"from": [], "to": ["adult"]},
        "expiry": {"from": None, "to": "2096-10-02T07:06:40Z"},
        "name": {"from": "a", "to": "b"},
    }
    [event] = line.feed("policy.updated")
    assert event.payload["policy_id"] == identifier
    assert event.payload["changes"]["max_per_tx"] == {"from": "10.00", "to": "20.00"}


async def test_recipients_and_approvals_follow_from_the_chain(line: Line) -> None:
    stage, build = line.stage, line.stage.build
    vault = await stage.wallet("agent-1", funds=20 * USDC)
    operator, payer = stage.operator.pubkey(), stage.payer.pubkey()
    preset = stage.addresses.preset(stage.org, "pol_permissive")
    register = build.register_recipient(
        payer=payer, signer=operator, address=stage.payee, category=3, domain="Shop.example"
    )
    reference = secrets.token_bytes(16)
    now = int(time.time())
    approve = build.approve_payment(
        payer=payer,
        operator=operator,
        vault=vault,
        policy=preset,
        reference=reference,
        recipient=stage.payee,
        amount=USDC,
        expires_at=now + 600,
    )
    await stage.send(register, approve, signers=[stage.operator])
    await line.db.write(lambda c: put_domain(c, "Shop.example"))
    await line.seen()
    known = line.db.read_now(lambda c: recipient_by_domain(c, line.org, "shop.EXAMPLE"))
    assert known is not None
    assert (known.address, known.domain, known.category) == (str(stage.payee), "shop.example", 3)
    plain = build.register_recipient(payer=payer, signer=operator, address=operator, category=1, domain=None)
    await stage.send(plain, signers=[stage.operator])
    await line.seen()
    nameless = line.db.read_now(lambda c: recipient(c, line.org, str(operator)))
    assert nameless is not None
    assert (nameless.domain, nameless.domain_hash, nameless.category) == (None, None, 1)

    def waiting(amount: int = USDC, at: int = now, *, purpose: Any = "payment") -> Any:
        return line.db.read_now(lambda c: open_approval(c, line.org, str(vault), str(stage.payee), amount, purpose, at))

    address = stage.addresses.approval(vault, reference)
    assert waiting().address == str(address)
    assert waiting().payer == str(payer)
    assert waiting(amount=2) is None
    assert waiting(purpose="escrow") is None
    assert waiting(at=now + 600) is None
    close = build.close_approval(signer=operator, vault=vault, approval=address, rent_receiver=payer)
    await stage.send(close, signers=[stage.operator])
    await line.seen()
    assert waiting() is None
    assert line.db.read_now(lambda c: approval(c, line.org, str(address))).state == "closed"  # type: ignore[union-attr]


async def test_session_signed_payment_carries_the_hash_of_what_was_signed(line: Line) -> None:
    stage, build, session = line.stage, line.stage.build, Keypair()
    vault = await stage.wallet("agent-1", funds=20 * USDC)
    give = build.update_wallet(
        operator=stage.operator.pubkey(), vault=vault, session=(session.pubkey(), int(time.time()) + 600)
    )
    await stage.send(give, signers=[stage.operator])
    payment = build.execute_payment(
        signer=session.pubkey(),
        policy=stage.addresses.preset(stage.org, "pol_permissive"),
        vault=vault,
        destination=stage.addresses.token_account(stage.payee),
        amount=USDC,
        reference=bytes(16),
    )
    signature = await stage.send(payment, signers=[session])
    await line.seen()
    tx_id = transaction_id(line.stage.messages[signature], 0, EVENT_INNER_INDEX, "payment")
    row = line.db.read_now(lambda c: transaction(c, line.org, tx_id))
    assert row is not None
    assert row.attestation_hash is not None
    assert row.attestation_hash.startswith("sha256:")
    assert line.wallet(vault).session_authority == str(session.pubkey())


async def test_waiting_for_a_transaction_ends_when_it_is_projected(line: Line) -> None:
    line.indexer.subscribe(line.projector.notify)
    await line.indexer.start()
    await line.projector.start()
    vault = await line.stage.wallet("agent-1", funds=20 * USDC)
    signature = await line.stage.pay(vault, USDC)
    assert await line.projector.wait("never", 0.01) is None
    line.indexer.wake(signature)
    message = line.stage.messages[signature]
    slot = await line.projector.wait(message, 5)
    assert slot is not None
    assert slot == await line.indexer.slot_of(signature)
    assert line.wallet(vault).balance == 19 * USDC
    assert await line.projector.wait(message, 0) == slot


async def test_rows_applied_by_another_process_notify_waiters_and_watchers(line: Line) -> None:
    # Given two processes that have read everything so far
    vault = await line.stage.wallet("agent-1", funds=20 * USDC)
    await line.seen()
    other, told = Projector(line.db, line.indexer.changes), set[str]()

    async def note(vaults: set[str]) -> None:
        told.update(vaults)

    other.subscribe(note)
    await other.catch_up()
    assert not told

    # When one applies a payment that the other waits for
    signature = await line.stage.pay(vault, USDC)
    waiting = asyncio.create_task(other.wait(line.stage.messages[signature], 5))
    await line.seen()
    await other.catch_up()

    # Then the other has heard of it, once
    assert await waiting == await line.indexer.slot_of(signature)
    assert told == {str(vault)}
    told.clear()
    await other.catch_up()
    assert not told


async def test_what_was_chosen_before_another_process_began_anew_is_not_applied(line: Line, tmp_path: Path) -> None:
    # Given a process that has chosen rows by its cursors
    vault = await line.stage.wallet("agent-1", funds=20 * USDC)
    await line.seen()
    await line.stage.pay(vault, USDC)
    await line.indexer.catch_up()
    other = SqliteDatabase(tmp_path / "app.db", create_tables)
    chosen, go_on = asyncio.Event(), asyncio.Event()
    write = line.db.write

    async def late(work: Any, *, repeatable: bool = False) -> Any:
        chosen.set()
        await go_on.wait()
        return await write(work, repeatable=repeatable)

    line.db.write = late  # type: ignore[method-assign]
    slow = asyncio.create_task(line.projector.catch_up())
    await chosen.wait()

    # When another empties the read models and has not applied a row yet
    await other.write(reset)
    go_on.set()
    await slow

    # Then nothing is missing
    assert line.wallet(vault).balance == 19 * USDC
    after = snapshot(line.db)
    await Projector(other, line.indexer.changes).rebuild()
    assert snapshot(line.db) == after
    other.close()


async def test_rebuilding_gives_the_same_read_models(line: Line) -> None:
    stage = line.stage
    vault = await stage.wallet("agent-1", funds=20 * USDC)
    blocked = Attempt(
        tx_id="tx_blocked",
        org=line.org,
        type="payment",
        status="blocked",
        created_at=NOW + 10**7,
        wallet_id=wallet_id(vault),
        amount=2**64 - 1,
    )
    signature = await stage.pay(vault, USDC)
    tx_id = transaction_id(line.stage.messages[signature], 0, EVENT_INNER_INDEX, "payment")
    paid = Attempt(
        tx_id=tx_id,
        org=line.org,
        type="payment",
        status="pending",
        created_at=NOW,
        wallet_id=wallet_id(vault),
        memo="x",
        amount=USDC,
        signature=signature,
        message_hash=line.stage.messages[signature],
    )
    await line.db.write(lambda c: insert_attempt(c, paid))
    await line.seen()
    await line.db.write(lambda c: insert_attempt(c, blocked))
    before = snapshot(line.db)
    events = line.db.read_now(lambda c: feed(c, line.org, limit=100)).data
    await line.projector.rebuild()
    assert snapshot(line.db) == before
    assert line.db.read_now(lambda c: feed(c, line.org, limit=100)).data == events
    assert line.wallet(vault, NOW + 10**7).status == "policy_violation"


async def share_budgets(stage: Stage, vault: Pubkey) -> tuple[Pubkey, Pubkey]:
    """Make two budgets, change the first, move a vault through both and out, close the second and make it anew."""
    build, authority, operator = stage.build, stage.authority.pubkey(), stage.operator.pubkey()
    first, second = (stage.addresses.budget(stage.org, key) for key in _BUDGET_KEYS)

    def creation(key: bytes) -> Instruction:
        return build.create_budget(payer=stage.payer.pubkey(), authority=authority, key=key, limits=_LIMITS)

    for key in _BUDGET_KEYS:
        await stage.send(creation(key), signers=[stage.authority])
    await stage.send(build.set_wallet_budget(signer=operator, vault=vault, new_budget=first), signers=[stage.operator])
    version: int = (await stage.fields(first))["version"]
    steps: list[Callable[[], Instruction]] = [
        lambda: build.update_budget(
            authority=authority, budget=first, expected_version=version, limits=BudgetLimits(velocity_cap=3)
        ),
        lambda: build.set_wallet_budget(signer=authority, vault=vault, budget=first, new_budget=second),
        lambda: build.set_wallet_budget(signer=authority, vault=vault, budget=second),
        lambda: build.close_budget(authority=authority, budget=second, rent_receiver=stage.payer.pubkey()),
        lambda: creation(_BUDGET_KEYS[1]),
        lambda: build.close_budget(authority=authority, budget=first, rent_receiver=stage.payer.pubkey()),
    ]
    for step in steps:
        await stage.send(step(), signers=[stage.authority])
    await stage.send(build.set_wallet_budget(signer=operator, vault=vault, new_budget=second), signers=[stage.operator])
    return first, second


async def test_budgets_and_their_wallets_follow_from_the_chain(line: Line) -> None:
    vault = await line.stage.wallet("agent-1")
    first, second = await share_budgets(line.stage, vault)
    await line.seen()

    def shown() -> list[Any]:
        def read(conn: Connection) -> list[Any]:
            ids = [budget_id(key) for key in _BUDGET_KEYS]
            return [budget(conn, line.org, one) for one in ids] + [all_budgets(conn, line.org)]

        return line.db.read_now(read)

    closed, anew, listed = shown()
    assert (closed.address, closed.closed, closed.limits, closed.wallet_count) == (
        str(first),
        True,
        BudgetLimits(velocity_cap=3),
        0,
    )
    assert (anew.address, anew.closed, anew.limits, anew.wallet_count) == (str(second), False, _LIMITS, 1)
    assert listed == [anew]
    assert line.wallet(vault).budget_id == anew.budget_id
    kinds = [
        *("budget.created", "budget.created", "wallet.budget_set", "budget.updated", "wallet.budget_set"),
        *("wallet.budget_set", "budget.deleted", "budget.created", "budget.deleted", "wallet.budget_set"),
    ]
    events = line.db.read_now(lambda c: feed(c, line.org, limit=100)).data
    assert [one.type for one in reversed(events) if "budget" in one.type] == kinds
    before = shown(), snapshot(line.db), events
    await line.projector.rebuild()
    assert (shown(), snapshot(line.db), line.db.read_now(lambda c: feed(c, line.org, limit=100)).data) == before


# Made-up rows


async def real_rows(line: Line) -> list[StoredEvent]:
    """Return the rows of a lively history."""
    stage, build = line.stage, line.stage.build
    first = await stage.wallet("agent-1", funds=20 * USDC)
    second = await stage.wallet("agent-2", funds=10 * USDC)
    for amount in (1, 2, 3):
        await stage.pay(first, amount * USDC)
        await stage.pay(second, amount)
    preset = stage.addresses.preset(stage.org, "pol_permissive")
    moderate = stage.addresses.preset(stage.org, "pol_moderate")
    operator = stage.operator
    for instruction in (
        build.freeze_wallet(signer=operator.pubkey(), vault=first, policy=preset, action="Freeze"),
        build.update_wallet(operator=operator.pubkey(), vault=second, policy=preset, new_policy=moderate),
        build.withdraw(operator=operator.pubkey(), vault=second, amount=None, reference=bytes(16)),
    ):
        await stage.send(instruction, signers=[operator])
    await share_budgets(stage, second)
    await line.seen()
    # Each transaction gets a slot of its own, as if they had not been sent within one.
    rows = await line.indexer.changes(0, 1000)
    slots = {signature: n + 1 for n, signature in enumerate(dict.fromkeys(row.signature for row in rows))}
    in_order = sorted(rows, key=lambda row: slots[row.signature])
    return [replace(row, slot=slots[row.signature], id=n + 1) for n, row in enumerate(in_order)]


def changes_of(rows: list[StoredEvent]) -> Changes:
    """Return a reader of these rows, like the indexer's; rows added later are read, too."""

    async def changes(after: int, limit: int) -> list[StoredEvent]:
        return [row for row in rows if row.id > after][:limit]

    return changes


async def test_rows_in_any_order_give_the_same_read_models(line: Line, tmp_path: Path) -> None:
    rows = await real_rows(line)
    shuffler = random.Random(7)
    pictures = []
    for attempt_number in range(6):
        db = SqliteDatabase(tmp_path / f"{attempt_number}.db", create_tables)
        await db.write(lambda c: insert_record(c, organisation_of(line.stage)))
        order = list(rows)
        if attempt_number:
            shuffler.shuffle(order)
        mixed = [replace(row, id=n + 1) for n, row in enumerate(order)]
        await Projector(db, changes_of(mixed)).catch_up()
        pictures.append(snapshot(db))
        db.close()
    assert pictures[0]["wallets"]
    for picture in pictures[1:]:
        assert picture == pictures[0]


async def test_rows_applied_twice_change_nothing(line: Line, tmp_path: Path) -> None:
    rows = await real_rows(line)
    db = SqliteDatabase(tmp_path / "twice.db", create_tables)
    await db.write(lambda c: insert_record(c, organisation_of(line.stage)))
    await Projector(db, changes_of(rows)).catch_up()
    once = snapshot(db)
    again = rows + [replace(row, id=row.id + 1000) for row in rows]
    await Projector(db, changes_of(again)).catch_up()
    assert snapshot(db) == once
    db.close()


async def test_other_organisations_are_passed_over_until_they_are_this_services(line: Line, tmp_path: Path) -> None:
    rows = await real_rows(line)
    db = SqliteDatabase(tmp_path / "late.db", create_tables)
    stranger = replace(organisation_of(line.stage), org="Stranger", org_id="stranger")
    await db.write(lambda c: insert_record(c, stranger))
    projector = Projector(db, changes_of(rows))
    await projector.catch_up()
    assert not any(snapshot(db).values())
    await db.write(lambda c: insert_record(c, organisation_of(line.stage)))
    await projector.catch_up()
    assert len(snapshot(db)["wallets"]) == 2
    db.close()


@pytest.mark.proves("Transactions: confirmed to pending")
async def test_rolled_back_transaction_is_undone_and_its_attempt_pending_again(line: Line, tmp_path: Path) -> None:
    rows = await real_rows(line)
    gone = next(row for row in reversed(rows) if row.name == "PaymentExecuted")
    tx_id = transaction_id(gone.message_hash, gone.instruction, gone.inner, "payment")
    db = SqliteDatabase(tmp_path / "fork.db", create_tables)
    paid = Attempt(
        tx_id=tx_id,
        org=line.org,
        type="payment",
        status="pending",
        created_at=NOW,
        wallet_id=wallet_id(gone.data["vault"]),
        signature=gone.signature,
        message_hash=gone.message_hash,
    )
    await db.write(lambda c: insert_record(c, organisation_of(line.stage)))
    await db.write(lambda c: insert_attempt(c, paid))
    stored = list(rows)
    projector = Projector(db, changes_of(stored))
    await projector.catch_up()
    nothing = replace(gone, name="TransactionReverted", org=None, instruction=-1, inner=-1)
    news = replace(nothing, id=5000, data={"events": [{**gone.data, "name": gone.name}]})
    stored[:] = [row for row in rows if row.signature != gone.signature] + [news]
    await projector.catch_up()
    shown = db.read_now(lambda c: transaction(c, line.org, tx_id))
    assert shown is not None
    assert (shown.status, shown.slot) == ("pending", None)
    assert db.read_now(lambda c: attempt(c, tx_id)).status == "pending"  # type: ignore[union-attr]
    signatures = {one.signature for one in db.read_now(lambda c: feed(c, line.org, limit=100)).data}
    assert gone.signature not in signatures
    db.close()


async def test_rollback_gives_the_read_models_of_a_rebuild(
    line: Line, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await check_rollbacks(await real_rows(line), organisation_of(line.stage), tmp_path, monkeypatch, snapshot)


async def check_rollbacks(
    rows: list[StoredEvent],
    own: Organisation,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    picture: Callable[[Database], dict[str, list[Any]]],
) -> None:
    """Roll each transaction back, and several last ones at once, and compare with a rebuild from what is left."""
    ours = [row.signature for row in rows if row.name == "PaymentExecuted"][::2]
    signatures, narrow = list(dict.fromkeys(row.signature for row in rows)), 0
    for number, signature in enumerate(signatures):
        for kind, gone in enumerate(([signature], signatures[-number - 1 :])[: 1 + (number % 4 == 0)]):
            db = SqliteDatabase(folder / f"{number}-{kind}.db", create_tables)
            await db.write(lambda c: insert_record(c, own))
            for row in rows:
                if row.signature in ours and row.name == "PaymentExecuted":
                    await db.write(partial(insert_attempt, attempt=_paid(row)))
            stored = list(rows)
            projector = Projector(db, changes_of(stored))
            await projector.catch_up()
            reports = [_report(rows, one, 5000 + n) for n, one in enumerate(gone)]
            stored[:] = [row for row in rows if row.signature not in gone] + reports
            resets: list[Any] = []
            monkeypatch.setattr("app.projection.projector.reset", partial(_noted, resets))
            await projector.catch_up()
            monkeypatch.undo()
            narrow += not resets
            rolled_back = picture(db)
            await projector.rebuild()
            assert rolled_back == picture(db), [row.name for row in rows if row.signature in gone]
            db.close()
    assert narrow > 5


def _noted(resets: list[Any], connection: Connection, *orgs: str) -> None:
    resets.append(orgs)
    reset(connection, *orgs)


def _paid(row: StoredEvent) -> Attempt:
    tx_id = transaction_id(row.message_hash, row.instruction, row.inner, "payment")
    wallet = wallet_id(row.data["vault"])
    return Attempt(
        tx_id=tx_id,
        org=str(row.org),
        type="payment",
        status="pending",
        created_at=NOW,
        wallet_id=wallet,
        signature=row.signature,
    )


def _report(rows: list[StoredEvent], signature: str, number: int) -> StoredEvent:
    """Return the row that reports a transaction as rolled back."""
    gone = [row for row in rows if row.signature == signature]
    events = [{**row.data, "name": row.name, "org": row.org} for row in gone]
    row = replace(gone[0], name="TransactionReverted", org=None, instruction=-1, inner=-1)
    return replace(row, id=number, data={"events": events})


async def test_rolled_back_transaction_is_waited_for_again(line: Line, tmp_path: Path) -> None:
    rows = await real_rows(line)
    gone = next(row for row in reversed(rows) if row.name == "PaymentExecuted")
    db = SqliteDatabase(tmp_path / "again.db", create_tables)
    await db.write(lambda c: insert_record(c, organisation_of(line.stage)))
    stored = list(rows)
    projector = Projector(db, changes_of(stored))
    await projector.start()
    try:
        assert await projector.wait(gone.message_hash, 5) == gone.slot
        nothing = replace(gone, name="TransactionReverted", org=None, instruction=-1, inner=-1)
        report = replace(nothing, id=5000, message_hash="", data={"events": [{**gone.data, "name": gone.name}]})
        stored[:] = [row for row in rows if row.signature != gone.signature] + [report]
        await projector.catch_up()
        assert await projector.wait(gone.message_hash, 0.01) is None
        stored.append(replace(gone, id=5001, slot=gone.slot + 7))
        await projector.catch_up()
        assert await projector.wait(gone.message_hash, 0) == gone.slot + 7
    finally:
        await projector.stop()
        db.close()


async def test_failure_keeps_the_cursor_and_the_next_round_applies_the_rows(line: Line, tmp_path: Path) -> None:
    rows = await real_rows(line)
    db = SqliteDatabase(tmp_path / "broken.db", create_tables)
    await db.write(lambda c: insert_record(c, organisation_of(line.stage)))
    stored = [replace(row, data={}) if row.name == "PaymentExecuted" else row for row in rows]
    projector = Projector(db, changes_of(stored))
    with pytest.raises(KeyError):
        await projector.catch_up()
    assert not any(snapshot(db).values())
    stored[:] = rows
    await projector.start()
    projector.notify()
    assert await projector.wait(rows[-1].message_hash, 5) == rows[-1].slot
    assert len(snapshot(db)["wallets"]) == 2
    await projector.stop()
    db.close()


async def test_waiters_that_give_up_leave_nothing_behind(db: Database) -> None:
    projector = Projector(db, changes_of([]))
    results = await asyncio.gather(*(projector.wait("of no transaction", 0.01) for _ in range(5)))
    assert results == [None] * 5
    assert not projector._waiting
    assert db.read_now(lambda c: reserve(c, "nobody")) is None
