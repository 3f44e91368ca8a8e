"""The state that a batch of rows is applied to: read once before, changed in memory, written once after.

Statement by statement a payment would cost some milliseconds; in batches it costs a tenth of that.
"""

from collections.abc import Sequence
from typing import Any

from sqlalchemy import Connection, Row, Table, bindparam, select, update

from app.core.identifiers import transaction_id
from app.projection.rows import ChainRow
from app.store.columns import upsert, upsert_all
from app.store.feed import feed_row
from app.store.read_tables import escrows, feed, policies, reserves, transactions, wallets
from app.store.state_tables import attempts
from app.store.transactions import ESCROW_LOCK, FUNDING, PAYMENT, WITHDRAWAL

Values = dict[str, Any]

ATTEMPT_TYPES = {
    "PaymentExecuted": PAYMENT,
    "WalletFunded": FUNDING,
    "WalletWithdrawn": WITHDRAWAL,
    "EscrowCreated": ESCROW_LOCK,
}
"""The type of the attempts that an event settles: that of the first, or only, transaction row that it stands for."""
_VAULTS = ("vault", "receiver")
"""Fields of events in which a vault's address may stand."""

_WALLETS = select(wallets).where(wallets.c.vault.in_(bindparam("keys", expanding=True)))
_RESERVES = select(reserves).where(reserves.c.org.in_(bindparam("keys", expanding=True)))
_ESCROWS = select(escrows).where(escrows.c.address.in_(bindparam("keys", expanding=True)))
_ATTEMPTS = select(attempts).where(attempts.c.signature.in_(bindparam("keys", expanding=True)))
_POLICY_ID = select(policies.c.policy_id).where(policies.c.address == bindparam("key"))
_SETTLE = (
    update(attempts)
    .where(attempts.c.tx_id == bindparam("attempt"), attempts.c.status != "confirmed")
    .values(status="confirmed", error=None, slot=bindparam("landed"), settled_at=bindparam("moment"))
)


class Batch:
    """Wallets, reserves, escrows and attempts that a batch of rows is about, and what it adds."""

    def __init__(self, connection: Connection, rows: Sequence[ChainRow]) -> None:
        self.connection = connection
        self._wallets = self._load(_WALLETS, "vault", vaults_of(rows))
        self._reserves = self._load(_RESERVES, "org", {row.org for row in rows if row.org is not None})
        self._escrows = self._load(_ESCROWS, "address", {row.data["escrow"] for row in rows if "escrow" in row.data})
        signatures = list({row.signature for row in rows})
        self._attempts = {one.signature: one for one in connection.execute(_ATTEMPTS, {"keys": signatures})}
        self._policy_ids: dict[str, str | None] = {}
        self._changed: dict[str, Values] = {}
        self._changed_reserves: dict[str, Values] = {}
        self._changed_escrows: dict[str, Values] = {}
        self._transactions: dict[str, Values] = {}
        self._feed: dict[str, Values] = {}
        self._settled: list[Values] = []

    def wallet(self, vault: str) -> Values | None:
        """Return the columns of the vault's wallet; `None` when it was not created yet."""
        return self._wallets.get(vault)

    def change_wallet(self, vault: str, values: Values) -> None:
        """Change or add the vault's wallet; an added one needs all columns."""
        wallet = self._wallets.setdefault(vault, {})
        wallet.update(values)
        self._changed[vault] = wallet

    def reserve(self, org: str) -> Values | None:
        """Return the columns of the organisation's reserve; `None` when it was not created yet."""
        return self._reserves.get(org)

    def change_reserve(self, org: str, values: Values) -> None:
        """Change or add the organisation's reserve; an added one needs all columns."""
        reserve = self._reserves.setdefault(org, {})
        reserve.update(values)
        self._changed_reserves[org] = reserve

    def escrow(self, address: str) -> Values | None:
        """Return the columns of the escrow at this address; `None` when it was not created yet."""
        return self._escrows.get(address)

    def change_escrow(self, address: str, values: Values) -> None:
        """Change or add an escrow; an added one needs all columns."""
        escrow = self._escrows.setdefault(address, {})
        escrow.update(values)
        self._changed_escrows[address] = escrow

    def attempt(self, row: ChainRow) -> Row[Any] | None:
        """Return the service's own attempt at what an event reports, also when it is not in the place foreseen."""
        attempt = self._attempts.get(row.signature)
        if attempt is None or row.name not in ATTEMPT_TYPES or attempt.type not in ATTEMPT_TYPES.values():
            return None
        is_it = attempt.tx_id == transaction_of(row, ATTEMPT_TYPES[row.name]) or (
            attempt.reference is not None and attempt.reference.hex() == row.data["reference"]
        )
        return attempt if is_it else None

    def cause(self, row: ChainRow) -> str | None:
        """Return the type of the service's attempt that led to a row; `None` when others did."""
        attempt = self._attempts.get(row.signature)
        return None if attempt is None else str(attempt.type)

    def moment(self, row: ChainRow) -> int:
        """Return when a row happened, in Unix milliseconds.

        The chain's clock gives the second of its block; within that the service knows when it was asked for its own.
        """
        attempt = self._attempts.get(row.signature)
        return max(row.block_time * 1000, 0 if attempt is None else attempt.created_at)

    def settle(self, tx_id: str, slot: int, moment: int) -> None:
        """Mark an attempt as confirmed."""
        self._settled.append({"attempt": tx_id, "landed": slot, "moment": moment})

    def put_transaction(self, values: Values) -> None:
        """Add or replace a row of the transaction list."""
        self._transactions[values["tx_id"]] = values

    def report(self, **event: Any) -> None:
        """Add an event to the feed, with the arguments of `append_event`."""
        values = feed_row(**event)
        self._feed[values["event_id"]] = values

    def policy_id(self, address: str) -> str | None:
        """Return the id of the policy at this address."""
        if address not in self._policy_ids:
            self._policy_ids[address] = self.connection.scalar(_POLICY_ID, {"key": address})
        return self._policy_ids[address]

    def put(self, table: Table, values: Values, *, keys: Sequence[str], replace: bool = True) -> None:
        """Add a row to a table of which little changes, at once."""
        upsert(self.connection, table, values, keys=keys, replace=replace)
        self._policy_ids.clear()

    def flush(self) -> None:
        """Write what changed."""
        upsert_all(self.connection, wallets, list(self._changed.values()), keys=["wallet_id"])
        upsert_all(self.connection, reserves, list(self._changed_reserves.values()), keys=["org"])
        upsert_all(self.connection, escrows, list(self._changed_escrows.values()), keys=["escrow_id"])
        upsert_all(self.connection, transactions, list(self._transactions.values()), keys=["tx_id"])
        upsert_all(self.connection, feed, list(self._feed.values()), keys=["event_id"], replace=False)
        if self._settled:
            self.connection.execute(_SETTLE, self._settled)

    def _load(self, query: Any, key: str, keys: set[str]) -> dict[str, Values]:
        if not keys:
            return {}
        found = self.connection.execute(query, {"keys": list(keys)})
        return {getattr(row, key): dict(row._mapping) for row in found}  # noqa: SLF001


def vaults_of(rows: Sequence[ChainRow]) -> set[str]:
    """Return the addresses of the vaults that rows may change; also of receivers that are none."""
    return {row.data[name] for row in rows for name in _VAULTS if row.data.get(name)}


def transaction_of(row: ChainRow, row_type: str) -> str:
    """Return the id of the transaction row of this type that an event stands for."""
    return transaction_id(row.signature, row.instruction, row.inner, row_type)
