"""Follows the token accounts of reserves and vaults, to find transfers that the program did not make."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from idl.codec import Event
from indexer.records import TokenMove

if TYPE_CHECKING:
    from indexer.store import Statements


@dataclass(frozen=True, slots=True)
class FollowedAccount:
    """A token account; `vault` is `None` for a reserve. `balance` is as of `slot`, `None` when unknown.

    The balance of a `suspect` account may be wrong until its history has been read.
    """

    address: str
    org: str
    vault: str | None
    balance: int | None
    slot: int
    suspect: bool


@dataclass(frozen=True, slots=True)
class Deposit:
    """Tokens that arrived: `index` is the account's position in the transaction, `balance` what it held afterwards."""

    account: str
    index: int
    org: str
    vault: str | None
    amount: int
    balance: int


class TokenAccounts:
    """The followed accounts. Call the writing methods within a database transaction."""

    def __init__(self, db: "Statements") -> None:
        self._db = db

    def get(self, address: str) -> FollowedAccount | None:
        """Return a followed account."""
        return next(iter(self._select("address = ?", address)), None)

    def reserves(self) -> list[FollowedAccount]:
        """Return the reserves of all organisations."""
        return self._select("vault IS NULL")

    def after(self, address: str, limit: int) -> list[FollowedAccount]:
        """Return the followed accounts after an address, in order, to go through all of them in parts."""
        return self._select("address > ? ORDER BY address LIMIT ?", address, limit)

    def suspects(self) -> list[str]:
        """Return the accounts whose history must be read: they moved in a transaction that is not stored yet."""
        return [row[0] for row in self._db.execute("SELECT address FROM token_accounts WHERE suspect = 1")]

    def mark_suspect(self, address: str) -> None:
        """Mark an account as one whose history must be read."""
        self._db.execute("UPDATE token_accounts SET suspect = 1 WHERE address = ?", [address])

    def mark_all_suspect(self) -> None:
        """Forget all balances and mark every account, after transactions were rolled back."""
        self._db.execute("UPDATE token_accounts SET suspect = 1, balance = NULL, slot = 0")

    def clear_suspect(self, address: str) -> None:
        """Note that an account's history has been read."""
        self._db.execute("UPDATE token_accounts SET suspect = 0 WHERE address = ?", [address])

    def set_balance(self, address: str, balance: int, slot: int) -> None:
        """Note an account's balance as of a slot."""
        self._db.execute("UPDATE token_accounts SET balance = ?, slot = ? WHERE address = ?", [balance, slot, address])

    def follow(self, moves: Sequence[TokenMove], events: Sequence[Event], slot: int) -> list[Deposit]:
        """Record one transaction's new accounts and balances; return the deposits that its events do not explain."""
        for event in events:
            self._adopt(event)
        explained = self._explained(events)
        deposits = []
        for move in moves:
            account = self.get(move.account)
            if account is None:
                continue
            if account.balance is not None and account.balance != move.before:
                self.mark_suspect(move.account)
            if slot >= account.slot:
                self.set_balance(move.account, move.after, slot)
            amount = move.after - move.before - explained.get(move.account, 0)
            if amount > 0:
                deposits.append(Deposit(move.account, move.index, account.org, account.vault, amount, move.after))
        return deposits

    def _adopt(self, event: Event) -> None:
        data = event.data
        if event.name == "OrgInitialized":
            self._insert(data["reserve_tokens"], data["org"], None)
        elif event.name == "WalletCreated":
            self._insert(data["vault_tokens"], data["org"], data["vault"])

    def _insert(self, address: Any, org: Any, vault: Any) -> None:
        # A new account counts as empty, so that whatever it holds before its first move shows as a gap.
        self._db.execute(
            "INSERT INTO token_accounts (address, org, vault, balance, slot) VALUES (?, ?, ?, 0, 0)"
            " ON CONFLICT DO NOTHING",
            [str(address), str(org), None if vault is None else str(vault)],
        )

    def _select(self, condition: str, *params: object) -> list[FollowedAccount]:
        query = f"SELECT address, org, vault, balance, slot, suspect FROM token_accounts WHERE {condition}"  # noqa: S608 - ours
        return [FollowedAccount(*row) for row in self._db.execute(query, params)]

    def _explained(self, events: Sequence[Event]) -> dict[str, int]:
        """Return by how much the program's own events changed each reserve and vault."""
        changes: dict[str, int] = {}
        for event in events:
            data = event.data
            match event.name:
                case "WalletFunded":
                    moved = {self._of_vault(data): data["amount"], self._of_org(data): -data["amount"]}
                case "WalletWithdrawn":
                    moved = {self._of_vault(data): -data["amount"], self._of_org(data): data["amount"]}
                case "PaymentExecuted":
                    moved = {self._of_vault(data): -data["amount"]}
                case "ReserveWithdrawn":
                    moved = {self._of_org(data): -data["amount"]}
                case _:
                    continue
            for account, amount in moved.items():
                if account is not None:
                    changes[account] = changes.get(account, 0) + amount
        return changes

    def _of_vault(self, data: dict[str, Any]) -> str | None:
        return self._address("SELECT address FROM token_accounts WHERE vault = ?", data["vault"])

    def _of_org(self, data: dict[str, Any]) -> str | None:
        return self._address("SELECT address FROM token_accounts WHERE org = ? AND vault IS NULL", data["org"])

    def _address(self, query: str, owner: Any) -> str | None:
        row = self._db.execute(query, [str(owner)]).fetchone()
        return None if row is None else str(row[0])
