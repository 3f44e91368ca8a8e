"""A wallet's balance in the read models is the chain's, in whatever order its rows are stored, applied and repeated."""

import asyncio
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from solders.pubkey import Pubkey
from sqlalchemy import select

from app.database import SqliteDatabase
from app.database.record_tables import insert_record
from app.projection.projector import Projector
from app.store.organisations import Organisation
from app.store.read_tables import wallets
from app.store.schema import create_tables
from idl.codec import Event
from indexer.accounts import FollowedAccount
from indexer.records import ChainTransaction, TokenMove
from indexer.store import EventStore
from tests.support.indexer import ORG, RESERVE, TOKENS, VAULT, move, org_created, transaction, vault_event

_NOBODY = Pubkey.default()
_FUNDS = 1_000_000


def _transaction(number: int, slot: int, *events: Event, moves: tuple[TokenMove, ...] = ()) -> ChainTransaction:
    made = transaction(number, *events, moves=moves, slot=slot)
    return replace(made, message_hash=number.to_bytes(32, "big").hex())


def _founded() -> Event:
    made = org_created()
    return Event(made.name, {**made.data, **dict.fromkeys(("authority", "operator", "arbiter", "verifier"), _NOBODY)})


def _created(vault: Pubkey, tokens: Pubkey) -> Event:
    fields = {"policy": _NOBODY, "agent_hash": bytes(32), "session_authority": _NOBODY, "session_expires_at": 0}
    return Event("WalletCreated", {"org": ORG, "vault": vault, "vault_tokens": tokens, "sequence": 1, **fields})


def _frozen(vault: Pubkey) -> Event:
    return Event("WalletFrozen", {"org": ORG, "vault": vault, "sequence": 2, "reason": 1})


@dataclass
class _Ledger:
    """What the chain holds: the vault's balance, its transactions, and those of which the index knows nothing yet."""

    slot: int = 10
    balance: int = _FUNDS
    sequence: int = 1
    count: int = 2
    last: ChainTransaction | None = None
    unstored: list[ChainTransaction] = field(default_factory=list)

    def _add(self, change: int, *events: Event) -> ChainTransaction:
        before, self.balance, self.count = self.balance, self.balance + change, self.count + 1
        moves = (move(TOKENS, before, self.balance),) if change else ()
        made = _transaction(self.count, self.slot, *events, moves=moves)
        self.unstored.append(made)
        self.last = made
        return made

    def pay(self, amount: int) -> ChainTransaction:
        """Pay from the vault in the current slot."""
        self.sequence += 1
        fields = {"policy": _NOBODY, "recipient": _NOBODY, "approval": _NOBODY, "co_signed": 0, "by_session": 0}
        fields |= {"amount": amount, "balance": self.balance - amount, "reference": bytes(16)}
        return self._add(-amount, vault_event("PaymentExecuted", self.sequence, **fields))

    def deposit(self, amount: int) -> ChainTransaction:
        """Transfer into the vault in the current slot, without the program."""
        return self._add(amount)

    def freeze_another(self) -> tuple[ChainTransaction, ChainTransaction]:
        """Create another vault and freeze it; returns both transactions."""
        vault, tokens = Pubkey.new_unique(), Pubkey.new_unique()
        return self._add(0, _created(vault, tokens)), self._add(0, _frozen(vault))


class _Scene:
    """A chain, the index of it in a file, and the read models made of that."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / "chain.db"
        self.ledger = _Ledger()
        self.db = SqliteDatabase(folder / "service.db", create_tables)
        organisation = Organisation(str(ORG), "acme", "Acme", str(_NOBODY), str(_NOBODY), str(RESERVE), 1)
        self.db.write_now(lambda c: insert_record(c, organisation))
        self.open()
        first = _transaction(1, 1, _founded())
        second = _transaction(2, 2, _created(VAULT, TOKENS), moves=(move(TOKENS, 0, _FUNDS),))
        self.store.record([first, second])

    def open(self) -> None:
        """Open the index, and begin anew with what was in memory."""
        self.store = EventStore(self._path)
        self.reading: tuple[FollowedAccount, int, int] | None = None
        self.projector = Projector(self.db, lambda after, limit: self.store.read(lambda s: s.changes(after, limit)))

    def restart(self) -> None:
        """End the process and start another one."""
        self.store.close()
        self.open()

    def store_it(self, one: ChainTransaction) -> None:
        """Index a transaction."""
        self.ledger.unstored.remove(one)
        self.store.record([one])

    def read(self) -> None:
        """Read the vault's balance, perhaps in the middle of a slot, once its whole history is stored."""
        for one in list(self.ledger.unstored):
            self.store_it(one)
        known = self.store.accounts.get(str(TOKENS))
        assert known is not None
        self.reading = (known, self.ledger.balance, self.ledger.slot)

    def note(self) -> bool:
        """Store what was read; returns whether the index took it."""
        assert self.reading is not None
        reading, self.reading = self.reading, None
        return self.store.observe(*reading)

    def observe(self) -> bool:
        """Read the vault's balance and store it."""
        self.read()
        return self.note()

    def drop(self) -> None:
        """Roll the newest transaction back, and let it land again in the next slot."""
        last = self.ledger.last
        assert last is not None
        if last not in self.ledger.unstored:
            self.store.roll_back([last.signature])
            self.ledger.unstored.append(last)
        self.ledger.unstored.remove(last)
        self.ledger.slot += 1
        self.ledger.last = replace(last, slot=self.ledger.slot)
        self.ledger.unstored.append(self.ledger.last)

    def row(self) -> int:
        """Return the balance in the read models."""
        shown = select(wallets.c.balance).where(wallets.c.vault == str(VAULT))
        return int(self.db.read_now(lambda c: c.execute(shown).scalar_one()))

    async def settle(self) -> None:
        """Index what is left, check suspect balances as the indexer does, and apply everything."""
        for one in list(self.ledger.unstored):
            self.store_it(one)
        self.ledger.slot += 1
        account = self.store.accounts.get(str(TOKENS))
        assert account is not None
        if account.suspect or account.balance != self.ledger.balance:
            assert self.observe()
            self.store.clear_suspect(str(TOKENS))
        await self.projector.catch_up()


@contextmanager
def _scene() -> Iterator[_Scene]:
    with tempfile.TemporaryDirectory() as folder:
        scene = _Scene(Path(folder))
        yield scene
        scene.store.close()
        scene.db.close()


@pytest.mark.parametrize("kind", ["observation", "deposit"])
async def test_rows_applied_again_leave_the_balance_of_the_slots_last_payment(kind: str) -> None:
    with _scene() as scene:
        ledger = scene.ledger
        scene.store_it(ledger.pay(40_000))
        if kind == "observation":
            assert scene.observe()
        else:
            scene.store_it(ledger.deposit(70_000))
        scene.store_it(ledger.pay(40_000))
        scene.store_it(ledger.pay(40_000))
        await scene.projector.catch_up()
        assert scene.row() == ledger.balance

        # Another vault's event is stored before its creation, as after a failed write; so all rows are applied again.
        created, frozen = ledger.freeze_another()
        scene.store_it(frozen)
        scene.store_it(created)
        await scene.projector.catch_up()
        assert scene.row() == ledger.balance


_STEPS = ("pay", "deposit", "slot", "store", "store_last", "read", "note", "apply", "again", "restart", "drop")


@settings(max_examples=80, deadline=None)
@given(st.lists(st.sampled_from(_STEPS), min_size=10, max_size=40))
def test_balance_is_the_chains_after_any_interleaving(steps: list[str]) -> None:
    async def run() -> None:
        with _scene() as scene:
            for step in steps:
                await _take(scene, step)
            await scene.settle()
            assert scene.row() == scene.ledger.balance

    asyncio.run(run())


async def _take(scene: _Scene, step: str) -> None:
    ledger = scene.ledger
    match step:
        case "pay":
            ledger.pay(40_000)
        case "deposit":
            ledger.deposit(10_000)
        case "slot":
            ledger.slot += 1
        case "store" if ledger.unstored:
            scene.store_it(ledger.unstored[0])
        case "store_last" if ledger.unstored:
            scene.store_it(ledger.unstored[-1])
        case "read":
            scene.read()
        case "note" if scene.reading is not None:
            scene.note()
        case "apply":
            await scene.projector.catch_up()
        case "again":
            created, frozen = ledger.freeze_another()
            scene.store_it(frozen)
            scene.store_it(created)
        case "restart":
            scene.restart()
        case "drop" if ledger.last is not None:
            scene.drop()
