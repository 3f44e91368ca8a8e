"""Follows the token accounts of reserves and vaults, and reports deposits: tokens that arrive there.

A funding of a vault and a withdrawal into the reserve are not deposits. Payments from other vaults, settled escrows and
swept allowances are deposits.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from sqlalchemy import Connection, bindparam, select, update

from app.database.columns import upsert, upsert_all
from app.database.records import columns_of, fetch_all, fetch_one
from app.database.statements import execute, rows, scalar
from idl.codec import Event
from indexer.records import TokenMove
from indexer.schema import YES
from indexer.schema import token_accounts as table

_ACCOUNTS = select(table)
_ONE = _ACCOUNTS.where(table.c.address == bindparam("address"))
_AMONG = _ACCOUNTS.where(table.c.address.in_(bindparam("addresses", expanding=True)))
_RESERVES = _ACCOUNTS.where(table.c.vault.is_(None))
_AFTER = _ACCOUNTS.where(table.c.address > bindparam("address")).order_by(table.c.address).limit(bindparam("limit"))
_SUSPECTS = select(table.c.address).where(table.c.suspect == YES)
_OF_VAULT = select(table.c.address).where(table.c.vault == bindparam("vault"))
_OF_ORG = select(table.c.address).where(table.c.org == bindparam("org"), table.c.vault.is_(None))
_UPDATE_ALL = update(table)
_UPDATE = _UPDATE_ALL.where(table.c.address == bindparam("account"))


@dataclass(frozen=True, slots=True)
class FollowedAccount:
    """A token account of a vault, or of a reserve if `vault` is `None`.

    `balance` is the balance in `slot`, or `None` if it is unknown. The balance of a `suspect` account may be wrong
    until the account's history has been read.
    """

    address: str
    org: str
    vault: str | None
    balance: int | None
    slot: int
    suspect: bool


@dataclass(frozen=True, slots=True)
class Deposit:
    """Tokens that arrived in a followed account other than by a funding or a withdrawal.

    `index` is the account's position in the transaction's account list, `balance` the balance afterwards.
    """

    account: str
    index: int
    org: str
    vault: str | None
    amount: int
    balance: int


class TokenAccounts:
    """The table of followed accounts. Call the writing methods within a database transaction."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def get(self, address: str) -> FollowedAccount | None:
        """Return a followed account, or None if the address is not followed."""
        return fetch_one(self._connection, FollowedAccount, _ONE, {"address": address})

    def reserves(self) -> list[FollowedAccount]:
        """Return the reserves of all organisations."""
        return fetch_all(self._connection, FollowedAccount, _RESERVES, {})

    def after(self, address: str, limit: int) -> list[FollowedAccount]:
        """Return the followed accounts after an address, in order. Use it to page through all of them."""
        return fetch_all(self._connection, FollowedAccount, _AFTER, {"address": address, "limit": limit})

    def suspects(self) -> list[str]:
        """Return the suspect accounts. They may have unstored transactions, so their history must be read."""
        return [address for (address,) in rows(self._connection, _SUSPECTS, {})[1]]

    def mark_suspect(self, address: str) -> None:
        """Mark an account as suspect, so that its history is read."""
        execute(self._connection, _UPDATE, {"suspect": 1}, account=address)

    def mark_all_suspect(self) -> None:
        """Forget all balances and mark every account as suspect. Used after transactions were rolled back."""
        execute(self._connection, _UPDATE_ALL, {"suspect": 1, "balance": None, "slot": 0})

    def clear_suspect(self, address: str) -> None:
        """Mark an account as no longer suspect, because its history has been read."""
        execute(self._connection, _UPDATE, {"suspect": 0}, account=address)

    def set_balance(self, address: str, balance: int, slot: int) -> None:
        """Store an account's balance as of a slot."""
        execute(self._connection, _UPDATE, {"balance": balance, "slot": slot}, account=address)

    def among(self, addresses: Collection[str]) -> dict[str, FollowedAccount]:
        """Return the followed accounts among these addresses, as a dictionary by address."""
        values = {"addresses": list(addresses)}
        found = fetch_all(self._connection, FollowedAccount, _AMONG, values) if addresses else []
        return {one.address: one for one in found}

    def add(self, address: Any, org: Any, vault: Any) -> FollowedAccount:
        """Follow a new account."""
        # Start with balance 0: any tokens before the first stored move then make the account suspect.
        new = FollowedAccount(str(address), str(org), None if vault is None else str(vault), 0, 0, suspect=False)
        upsert(self._connection, table, _row(new), keys=("address",), replace=False)
        return new

    def put(self, accounts: Sequence[FollowedAccount]) -> None:
        """Store the balance, slot and suspicion of followed accounts."""
        upsert_all(self._connection, table, [_row(one) for one in accounts], keys=("address",))

    def of_vault(self, vault: Any) -> str | None:
        """Return the address of a vault's token account, or None if it is not followed."""
        found: str | None = scalar(self._connection, _OF_VAULT, {"vault": str(vault)})
        return found

    def of_org(self, org: Any) -> str | None:
        """Return the address of an organisation's reserve account, or None if it is not followed."""
        found: str | None = scalar(self._connection, _OF_ORG, {"org": str(org)})
        return found


def _row(account: FollowedAccount) -> dict[str, Any]:
    return {**columns_of(account), "suspect": int(account.suspect)}


class BatchAccounts:
    """The followed accounts moved by a batch of transactions.

    Known accounts are read together at the start, and `flush` writes their changes. Use it within one database
    transaction.
    """

    def __init__(self, accounts: TokenAccounts, moves: Sequence[TokenMove]) -> None:
        self._accounts = accounts
        self._moved = {move.account for move in moves}
        self._known = accounts.among(self._moved)
        self._changed: set[str] = set()

    def follow(self, moves: Sequence[TokenMove], events: Sequence[Event], slot: int) -> list[Deposit]:
        """Apply one transaction's new accounts and balances.

        Returns as deposits the gains that the fundings, withdrawals and payments among the events do not explain.
        """
        for event in events:
            self._adopt(event)
        known = {move.account: self._known[move.account] for move in moves if move.account in self._known}
        explained = self._explained(events, known)
        deposits = []
        for move in moves:
            account = known.get(move.account)
            if account is None:
                continue
            changed = account
            if account.balance is not None and account.balance != move.before:
                changed = replace(changed, suspect=True)
            if slot >= account.slot:
                changed = replace(changed, balance=move.after, slot=slot)
            if changed is not account:
                self._known[move.account] = changed
                self._changed.add(move.account)
            amount = move.after - move.before - explained.get(move.account, 0)
            if amount > 0:
                deposits.append(Deposit(move.account, move.index, account.org, account.vault, amount, move.after))
        return deposits

    def flush(self) -> None:
        """Write the changed accounts."""
        self._accounts.put([self._known[address] for address in sorted(self._changed)])

    def _adopt(self, event: Event) -> None:
        data = event.data
        if event.name == "OrgInitialized":
            self._add(data["reserve_tokens"], data["org"], None)
        elif event.name == "WalletCreated":
            self._add(data["vault_tokens"], data["org"], data["vault"])

    def _add(self, address: Any, org: Any, vault: Any) -> None:
        new = self._accounts.add(address, org, vault)
        if new.address in self._moved:
            self._known.setdefault(new.address, new)

    def _explained(self, events: Sequence[Event], known: Mapping[str, FollowedAccount]) -> dict[str, int]:
        """Return the part of each token account's change that fundings, withdrawals and outgoing payments explain."""
        # The transaction's accounts by vault address, or by organisation address for a reserve (second item True).
        owners = {(one.vault or one.org, one.vault is None): one.address for one in known.values()}

        def of_vault(data: dict[str, Any]) -> str | None:
            return owners.get((str(data["vault"]), False)) or self._accounts.of_vault(data["vault"])

        def of_org(data: dict[str, Any]) -> str | None:
            return owners.get((str(data["org"]), True)) or self._accounts.of_org(data["org"])

        changes: dict[str, int] = {}
        for event in events:
            data = event.data
            match event.name:
                case "WalletFunded":
                    moved = {of_vault(data): data["amount"], of_org(data): -data["amount"]}
                case "WalletWithdrawn":
                    moved = {of_vault(data): -data["amount"], of_org(data): data["amount"]}
                case "PaymentExecuted":
                    moved = {of_vault(data): -data["amount"]}
                case "ReserveWithdrawn":
                    moved = {of_org(data): -data["amount"]}
                case _:
                    continue
            for account, amount in moved.items():
                if account is not None:
                    changes[account] = changes.get(account, 0) + amount
        return changes
