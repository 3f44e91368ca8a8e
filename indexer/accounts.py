"""Follows the token accounts of reserves and vaults, and reports deposits: tokens that arrive there.

A funding of a vault and a withdrawal into the reserve are no deposits. Payments from other vaults, settled escrows and
swept allowances are.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from idl.codec import Event
from indexer.records import TokenMove
from indexer.statements import Statements, insert_rows, parts


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

    `index` is the account's position in the transaction, `balance` the balance afterwards.
    """

    account: str
    index: int
    org: str
    vault: str | None
    amount: int
    balance: int


class TokenAccounts:
    """The table of followed accounts. Call the writing methods within a database transaction."""

    def __init__(self, db: Statements) -> None:
        self._db = db

    def get(self, address: str) -> FollowedAccount | None:
        """Return a followed account, or None if the address is not followed."""
        return next(iter(self._select("address = ?", address)), None)

    def reserves(self) -> list[FollowedAccount]:
        """Return the reserves of all organisations."""
        return self._select("vault IS NULL")

    def after(self, address: str, limit: int) -> list[FollowedAccount]:
        """Return the followed accounts after an address, in order. Use it to page through all of them."""
        return self._select("address > ? ORDER BY address LIMIT ?", address, limit)

    def suspects(self) -> list[str]:
        """Return the suspect accounts. They may have unstored transactions, so their history must be read."""
        return [row[0] for row in self._db.execute("SELECT address FROM token_accounts WHERE suspect = 1")]

    def mark_suspect(self, address: str) -> None:
        """Mark an account as suspect: its history must be read."""
        self._db.execute("UPDATE token_accounts SET suspect = 1 WHERE address = ?", [address])

    def mark_all_suspect(self) -> None:
        """Forget all balances and mark every account as suspect. Used after transactions were rolled back."""
        self._db.execute("UPDATE token_accounts SET suspect = 1, balance = NULL, slot = 0")

    def clear_suspect(self, address: str) -> None:
        """Mark an account as no longer suspect, because its history has been read."""
        self._db.execute("UPDATE token_accounts SET suspect = 0 WHERE address = ?", [address])

    def set_balance(self, address: str, balance: int, slot: int) -> None:
        """Store an account's balance as of a slot."""
        self._db.execute("UPDATE token_accounts SET balance = ?, slot = ? WHERE address = ?", [balance, slot, address])

    def among(self, addresses: Collection[str]) -> dict[str, FollowedAccount]:
        """Return the followed accounts among these addresses, as a dictionary by address."""
        found: dict[str, FollowedAccount] = {}
        for part in parts(sorted(addresses)):
            marks = ", ".join("?" * len(part))
            found |= {one.address: one for one in self._select(f"address IN ({marks})", *part)}
        return found

    def add(self, address: Any, org: Any, vault: Any) -> None:
        """Follow a new account."""
        # Start with balance 0: any tokens before the first stored move then make the account suspect.
        self._db.execute(
            "INSERT INTO token_accounts (address, org, vault, balance, slot) VALUES (?, ?, ?, 0, 0)"
            " ON CONFLICT DO NOTHING",
            [str(address), str(org), None if vault is None else str(vault)],
        )

    def put(self, accounts: Sequence[FollowedAccount]) -> None:
        """Store the balance, slot and suspicion of followed accounts."""
        insert_rows(
            self._db,
            "INSERT INTO token_accounts (address, org, vault, balance, slot, suspect)",
            [(one.address, one.org, one.vault, one.balance, one.slot, int(one.suspect)) for one in accounts],
            "ON CONFLICT (address) DO UPDATE SET balance = excluded.balance, slot = excluded.slot,"
            " suspect = excluded.suspect",
        )

    def of_vault(self, vault: Any) -> str | None:
        """Return the address of a vault's token account, or None if it is not followed."""
        return self._address("SELECT address FROM token_accounts WHERE vault = ?", vault)

    def of_org(self, org: Any) -> str | None:
        """Return the address of an organisation's reserve account, or None if it is not followed."""
        return self._address("SELECT address FROM token_accounts WHERE org = ? AND vault IS NULL", org)

    def _select(self, condition: str, *params: object) -> list[FollowedAccount]:
        query = f"SELECT address, org, vault, balance, slot, suspect FROM token_accounts WHERE {condition}"  # noqa: S608 - ours
        return [FollowedAccount(*row) for row in self._db.execute(query, params)]

    def _address(self, query: str, owner: Any) -> str | None:
        row = self._db.execute(query, [str(owner)]).fetchone()
        return None if row is None else str(row[0])


class BatchAccounts:
    """The followed accounts moved by a batch of transactions. They are read once, changed in memory and written once.

    Use it within one database transaction.
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
        self._accounts.add(address, org, vault)
        if str(address) in self._moved:
            new = FollowedAccount(str(address), str(org), None if vault is None else str(vault), 0, 0, suspect=False)
            self._known.setdefault(new.address, new)

    def _explained(self, events: Sequence[Event], known: Mapping[str, FollowedAccount]) -> dict[str, int]:
        """Return the balance change of each token account by fundings, withdrawals and payments out of it."""
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
