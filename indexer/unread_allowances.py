"""Stores the settled allowances that still need a reading of their token accounts."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from idl.codec import Event
from indexer.statements import Statements


@dataclass(frozen=True, slots=True)
class UnreadAllowance:
    """A settled allowance: the place of its settlement event in a transaction, and the event's data.

    `tokens` is its token account, `granted` the signature of the grant's transaction.
    """

    signature: str
    instruction: int
    inner: int
    slot: int
    org: str
    settlement: dict[str, Any]
    tokens: str
    granted: str

    @property
    def allowance(self) -> str:
        """The allowance's address."""
        return str(self.settlement["allowance"])


class UnreadAllowances:
    """The tables of unread allowances. Call the writing methods within a database transaction."""

    def __init__(self, db: Statements) -> None:
        self._db = db

    def all(self) -> list[UnreadAllowance]:
        """Return the unread allowances with a stored grant, in the order of storing their settlements."""
        rows = self._db.execute(
            'SELECT e.signature, e.instruction, e."inner", e.slot, e.org, e.data FROM unread_allowances u'
            ' JOIN events e ON e.signature = u.signature AND e.instruction = u.instruction AND e."inner" = u."inner"'
            " ORDER BY e.id"
        ).fetchall()
        found = []
        for signature, instruction, inner, slot, org, data in rows:
            settlement = json.loads(data)
            accounts = self._db.execute(
                "SELECT tokens, granted FROM allowances WHERE address = ?", [settlement["allowance"]]
            )
            for tokens, granted in accounts:
                one = UnreadAllowance(signature, instruction, inner, slot, org, settlement, tokens, granted)
                found.append(one)
        return found

    def sharing(self, destination: str, accounts: Sequence[str]) -> list[tuple[str, str]]:
        """Return address and token account of each allowance to `destination` with a token account in `accounts`."""
        query = (
            "SELECT a.address, a.tokens, e.data FROM allowances a JOIN events e ON e.signature = a.granted"
            " WHERE e.name = 'AllowanceGranted' AND a.tokens = ? ORDER BY a.address"
        )
        found = []
        for account in sorted(set(accounts)):
            for address, tokens, data in self._db.execute(query, [account]).fetchall():
                grant = json.loads(data)
                if (grant["allowance"], grant["destination"]) == (address, destination):
                    found.append((address, tokens))
        return found

    def note(self, place: tuple[str, int, int], event: Event) -> None:
        """Store the token account of a granted allowance, or mark a settled allowance as unread."""
        data = event.data
        if event.name == "AllowanceGranted":
            # After a rollback, another transaction may grant an allowance at the same address.
            values = (str(data["allowance"]), str(data["tokens"]), place[0])
            self._db.execute(
                "INSERT INTO allowances (address, tokens, granted) VALUES (?, ?, ?)"
                " ON CONFLICT (address) DO UPDATE SET tokens = excluded.tokens, granted = excluded.granted",
                values,
            )
        elif event.name == "AllowanceSettled":
            self._db.execute(
                'INSERT INTO unread_allowances (signature, instruction, "inner") VALUES (?, ?, ?)'
                " ON CONFLICT DO NOTHING",
                place,
            )

    def remove(self, one: UnreadAllowance) -> bool:
        """Remove an allowance that was read. Return False if its settlement was rolled back in the meantime."""
        mine = 'DELETE FROM unread_allowances WHERE signature = ? AND instruction = ? AND "inner" = ?'
        return bool(self._db.execute(mine, (one.signature, one.instruction, one.inner)).rowcount)

    def forget(self, signature: str) -> None:
        """Remove the settlements of a transaction that was rolled back or is stored again."""
        self._db.execute("DELETE FROM unread_allowances WHERE signature = ?", [signature])
