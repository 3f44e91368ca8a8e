"""Sums of spending: each equals the sum of its rows, also after a rollback and a rebuild."""

import random
from collections import Counter, defaultdict
from collections.abc import Collection
from dataclasses import dataclass, field, replace
from datetime import UTC, date, datetime, timedelta
from typing import Any

from solders.pubkey import Pubkey
from sqlalchemy import Connection, delete, insert, select

from app.core.identifiers import EVENT_INNER_INDEX, budget_id, transaction_id, wallet_id
from app.core.timestamps import DAY
from app.core.transaction_types import REFUSED, SPENT
from app.database import Database
from app.database.record_tables import insert_record
from app.insights.service import periods
from app.projection.projector import Projector
from app.store.attempts import Attempt, add_refusal, insert_attempt, record_outcome
from app.store.organisations import Organisation
from app.store.read_tables import TransactionRecord, transactions
from app.store.spending import KINDS, fill, filled, labels
from app.store.spending import table as sums
from app.store.spending_groups import SpentBy, spending
from app.store.state_tables import setting_values, wallet_tags
from app.store.transactions import TransactionFilter
from app.store.transactions import transactions as listed
from app.store.wallets import WalletDetails, insert_wallet_details
from indexer import StoredEvent
from tests.projection.test_projector import changes_of

_FLEETS = 30
_FIRST = date(2026, 1, 20)
_DAYS = 100
_BEGAN = int(datetime(2026, 1, 20, tzinfo=UTC).timestamp() * 1000)
_TAGS = ("ads", "travel", "tools")
_NOBODY = str(Pubkey.default())

Groups = dict[str, dict[str, SpentBy]]


@dataclass
class _Fleet:
    """An organisation with two wallets, and the labels that its payments should keep."""

    db: Database
    stored: list[StoredEvent]
    random: random.Random
    org: str = field(default_factory=lambda: str(Pubkey.new_unique()))
    vaults: list[str] = field(default_factory=lambda: [str(Pubkey.new_unique()) for _ in range(2)])
    budgets: list[tuple[str, bytes]] = field(default_factory=list)
    payees: list[str] = field(default_factory=lambda: [str(Pubkey.new_unique()) for _ in range(3)])
    kept: dict[str, list[tuple[str, str]]] = field(default_factory=dict)
    tags: dict[str, tuple[str, ...]] = field(default_factory=lambda: defaultdict(tuple))
    budget: dict[str, str] = field(default_factory=lambda: defaultdict(str))
    category: dict[str, int] = field(default_factory=Counter)
    sequence: int = 1

    def begin(self) -> None:
        organisation = Organisation(self.org, self.org, "Acme", _NOBODY, _NOBODY, _NOBODY, 1)
        self.db.write_now(lambda c: insert_record(c, organisation))
        for number, vault in enumerate(self.vaults):
            mine = WalletDetails(wallet_id(vault), self.org, vault, f"agent-{number}", "Agent", (), 1)
            self.db.write_now(lambda c, mine=mine: insert_wallet_details(c, mine))  # type: ignore[misc]
            fields = {"policy": _NOBODY, "agent_hash": "00" * 32, "session_authority": _NOBODY}
            self.event("WalletCreated", vault, **fields, vault_tokens=vault, session_expires_at=0)
        limits = dict.fromkeys(("max_per_day", "max_per_month", "max_total", "expires_at", "velocity_cap"))
        for number in range(2):
            key, address = bytes([number + 1] * 16), str(Pubkey.new_unique())
            self.budgets.append((address, key))
            self.event("BudgetCreated", budget=address, key=key.hex(), limits=limits, parent=_NOBODY)

    def event(self, name: str, vault: str | None = None, **data: Any) -> StoredEvent:
        """Store an event in a transaction of its own."""
        self.sequence += 1
        number = self.stored[-1].id + 1 if self.stored else 1
        data |= {"sequence": self.sequence, **({"vault": vault} if vault else {})}
        signature = f"signature-{number}-{self.org}"
        second = _BEGAN // 1000 + self.random.randrange(_DAYS * DAY // 1000)
        made = StoredEvent(
            *(number, signature, 0, EVENT_INNER_INDEX, number, second, "payer", signature.encode().hex(), name),
            *(self.org, data),
        )
        self.stored.append(made)
        return made

    def labels(self, vault: str, payee: str) -> list[tuple[str, str]]:
        """Return the labels of a payment that is made now."""
        own = [("budget", self.budget[vault]), ("category", str(self.category[payee]))]
        return own + [("tag", one) for one in self.tags[vault]]

    def attempt(self, **values: Any) -> Attempt:
        vault, payee = self.random.choice(self.vaults), self.random.choice(self.payees)
        made = Attempt(
            tx_id=f"tx_{self.random.getrandbits(64)}",
            org=self.org,
            wallet_id=wallet_id(vault),
            **{"type": "payment", "status": "pending", "recipient_address": payee, "amount": 1, **values},
            created_at=_BEGAN + self.random.randrange(_DAYS * DAY),
        )
        self.kept[made.tx_id] = self.labels(vault, payee)
        if made.violation is not None:
            self.kept[made.tx_id].append(("rule", made.violation["rule"]))
        return made

    def pay(self, *, by_service: bool, lands: bool = True) -> None:
        """Pay by the service or by the program alone."""
        vault, payee = self.random.choice(self.vaults), self.random.choice(self.payees)
        fields = {"policy": _NOBODY, "recipient": payee, "approval": _NOBODY, "co_signed": 0, "by_session": 0}
        amount = self.random.randrange(1, 10**9)
        paid = self.event("PaymentExecuted", vault, **fields, amount=amount, balance=5, reference="00" * 16)
        tx_id = transaction_id(paid.message_hash, 0, EVENT_INNER_INDEX, "payment")
        self.kept[tx_id] = self.labels(vault, payee)
        if by_service:
            known = {"tx_id": tx_id, "message_hash": paid.message_hash, "signature": paid.signature}
            made = replace(self.attempt(amount=amount), **known, wallet_id=wallet_id(vault), recipient_address=payee)  # type: ignore[arg-type]
            self.db.write_now(lambda c: insert_attempt(c, made))
        if not lands:
            self.stored.pop()

    def refuse(self) -> None:
        """Refuse payments and escrows, one of them several times."""
        violation = {"rule": self.random.choice(("max_per_tx", "frozen"))}
        blocked = {"status": "blocked", "violation": violation, "refusals": 1, "amount": 2**64 - 1}
        one = self.attempt(**blocked, type=self.random.choice(REFUSED))
        self.db.write_now(lambda c: insert_attempt(c, one))
        shared = self.attempt(**blocked)
        for _ in range(self.random.randrange(1, 4)):
            self.db.write_now(lambda c: add_refusal(c, shared))

    def fail(self) -> None:
        """Store a payment that fails."""
        made = self.attempt()
        self.db.write_now(lambda c: insert_attempt(c, made))
        self.db.write_now(lambda c: record_outcome(c, made.tx_id, "failed", now=1))

    def change(self) -> None:
        """Change the tags and the budget of a wallet, and the category of a payee."""
        vault, payee = self.random.choice(self.vaults), self.random.choice(self.payees)
        tags = self.tags[vault] = tuple(self.random.sample(_TAGS, self.random.randrange(3)))
        rows = [{"wallet_id": wallet_id(vault), "tag": one} for one in tags]

        def write(conn: Connection) -> None:
            conn.execute(delete(wallet_tags).where(wallet_tags.c.wallet_id == wallet_id(vault)))
            if rows:
                conn.execute(insert(wallet_tags), rows)

        self.db.write_now(write)
        address, key = self.random.choice(self.budgets)
        self.event("WalletBudgetSet", vault, budget=address, previous=_NOBODY)
        self.budget[vault] = budget_id(key)
        self.category[payee] = self.random.randrange(5)
        registered: dict[str, Any] = {"address": payee, "domain_hash": "", "has_domain": False, "effective_at": 0}
        self.event("RecipientRegistered", **registered, category=self.category[payee])

    def roll_back(self, name: str) -> StoredEvent:
        """Roll a transaction back."""
        gone = self.random.choice([row for row in self.stored if row.name == name and row.org == self.org])
        events = [{**gone.data, "name": gone.name, "org": gone.org}]
        self.stored.remove(gone)
        empty: dict[str, Any] = {"name": "TransactionReverted", "org": None, "instruction": -1, "inner": -1}
        self.stored.append(replace(gone, id=self.stored[-1].id + 1, data={"events": events}, **empty))
        return gone

    def land_again(self, gone: StoredEvent) -> None:
        """Store a transaction again that was rolled back."""
        self.stored.append(replace(gone, id=self.stored[-1].id + 1, slot=gone.slot + 1))

    def rows(self) -> list[TransactionRecord]:
        """Return all rows of the transaction list."""
        query = select(transactions).where(transactions.c.org == self.org)
        found = self.db.read_now(lambda c: c.execute(query).all())
        return [TransactionRecord(**row._asdict()) for row in found]

    def check(self) -> None:
        """Compare each sum of three periods with the rows, and each filter with the rows' labels."""
        rows = [one for one in self.rows() if one.status in {"confirmed", "blocked"}]
        first = _FIRST + timedelta(days=self.random.randrange(_DAYS // 2))
        last = first + timedelta(days=self.random.randrange(_DAYS // 2))
        for start, end in ((_FIRST, _FIRST + timedelta(days=_DAYS)), (first, last + timedelta(days=1))):
            days = [str(start + timedelta(days=number)) for number in range((end - start).days)]
            expected = self._sums([one for one in rows if _day(one) in days])
            for by in ("total", "wallet", "recipient", "day", "month", *KINDS):
                spans = days if by == "day" else periods(start, end)
                found = self.db.read_now(lambda c, by=by, spans=spans: spending(c, self.org, by, spans))  # type: ignore[misc]
                assert {one.key: one for one in found} == expected.get(by, {}), (by, start, end)
        for kind in KINDS:
            key = self.random.choice([key for kept in self.kept.values() for name, key in kept if name == kind] or [""])
            chosen = TransactionFilter(**{kind: key})  # type: ignore[arg-type]
            page = self.db.read_now(lambda c, chosen=chosen: listed(c, self.org, chosen, limit=100)).data  # type: ignore[misc]
            wanted = {one.tx_id for one in self.rows() if (kind, key) in self.kept.get(one.tx_id, ())}
            assert {one.tx_id for one in page} == wanted

    def _sums(self, rows: Collection[TransactionRecord]) -> Groups:
        found: dict[str, dict[str, Counter[str]]] = defaultdict(lambda: defaultdict(Counter))
        for one in rows:
            paid = one.status == "confirmed" and one.type in SPENT
            if not paid and not (one.status == "blocked" and one.type in REFUSED):
                continue
            keys = [("total", ""), ("wallet", one.wallet_id), ("recipient", str(one.recipient_address))]
            keys += [("day", _day(one)), ("month", _day(one)[:7]), *self.kept[one.tx_id]]
            for by, key in keys:
                group = found[by][key]
                group.update(spent=one.amount if paid else 0, payments=paid, refused=0 if paid else one.refusals or 1)
        return {by: {key: SpentBy(key=key, **sums) for key, sums in groups.items()} for by, groups in found.items()}


def _day(row: TransactionRecord) -> str:
    return datetime.fromtimestamp(row.timestamp / 1000, UTC).date().isoformat()


async def test_each_figure_equals_the_sum_of_its_rows_after_rollback_and_rebuild(db: Database) -> None:
    stored: list[StoredEvent] = []
    projector = Projector(db, changes_of(stored))
    fleets = [_Fleet(db, stored, random.Random(seed)) for seed in range(_FLEETS)]
    for fleet in fleets:
        fleet.begin()
        for _ in range(4):
            await projector.catch_up()
            fleet.change()
            await projector.catch_up()
            for by_service in (True, False, True):
                fleet.pay(by_service=by_service)
            fleet.pay(by_service=True, lands=False)
            fleet.refuse()
            fleet.fail()
        await projector.catch_up()
        fleet.check()
        gone = [fleet.roll_back("PaymentExecuted") for _ in range(2)]
        await projector.catch_up()
        fleet.check()
        fleet.land_again(gone[0])
        await projector.catch_up()
        fleet.check()
    fleets[0].roll_back("RecipientRegistered")  # recomputes the whole organisation
    await projector.catch_up()
    fleets[0].check()
    fleets[0].change()
    await projector.rebuild()

    for fleet in fleets:
        fleet.check()


async def test_days_of_an_older_database_are_counted_beside_its_changes(db: Database) -> None:
    stored: list[StoredEvent] = []
    fleet = _Fleet(db, stored, random.Random(1))
    fleet.begin()
    fleet.pay(by_service=False)
    fleet.refuse()
    await Projector(db, changes_of(stored)).catch_up()
    for table in (sums, labels, setting_values):
        db.write_now(lambda c, table=table: c.execute(delete(table)))  # type: ignore[misc]
    # A refusal is counted before the first projection.
    fleet.refuse()

    while db.write_now(fill):
        fleet.refuse()
    assert db.read_now(filled)
    assert not db.write_now(fill)

    fleet.check()
