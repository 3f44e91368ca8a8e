"""Stores the settled allowances that still need a reading of their token accounts."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, and_, bindparam, delete, select

from app.database.columns import upsert
from app.database.records import fetch_all, fetch_one
from app.database.statements import execute, rows
from idl.codec import Event
from indexer.schema import allowances, events
from indexer.schema import unread_allowances as unread

_PLACE = ("signature", "instruction", "inner")
_SETTLEMENTS = (
    select(*(events.c[one] for one in (*_PLACE, "slot", "org")), events.c.data.label("settlement"))
    .join_from(
        unread,
        events,
        # The concatenation keeps SQLite from reading all events and looking up each in the other table.
        and_(
            events.c.signature == unread.c.signature.concat(""),
            *(events.c[one] == unread.c[one] for one in _PLACE[1:]),
        ),
    )
    .order_by(events.c.id)
)
_GRANT = select(allowances.c.tokens, allowances.c.granted).where(allowances.c.address == bindparam("address"))
_SHARING = (
    select(allowances.c.address, allowances.c.tokens, events.c.data)
    .join_from(allowances, events, events.c.signature == allowances.c.granted)
    .where(events.c.name == "AllowanceGranted", allowances.c.tokens == bindparam("tokens"))
    .order_by(allowances.c.address)
)
_FORGET = delete(unread).where(unread.c.signature == bindparam("signature"))
_REMOVE = _FORGET.where(*(unread.c[one] == bindparam(one) for one in _PLACE[1:]))


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

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def all(self) -> list[UnreadAllowance]:
        """Return the unread allowances with a stored grant, in the order of storing their settlements."""
        found = []
        for one in fetch_all(self._connection, dict[str, Any], _SETTLEMENTS, {}):
            grant = fetch_one(self._connection, dict[str, Any], _GRANT, {"address": one["settlement"]["allowance"]})
            if grant is not None:
                found.append(UnreadAllowance(**one, **grant))
        return found

    def sharing(self, destination: str, accounts: Sequence[str]) -> list[tuple[str, str]]:
        """Return the address and token account of each granted allowance for a destination, read or unread.

        `destination` is the token account that the allowance pays. Only allowances with a token account in `accounts`
        are returned.
        """
        return [
            (address, tokens)
            for account in sorted(set(accounts))
            for address, tokens, grant in rows(self._connection, _SHARING, {"tokens": account})[1]
            if (grant["allowance"], grant["destination"]) == (address, destination)
        ]

    def note(self, place: tuple[str, int, int], event: Event) -> None:
        """Store the token account of a granted allowance, or mark a settled allowance as unread."""
        data = event.data
        if event.name == "AllowanceGranted":
            # After a rollback, another transaction may grant an allowance at the same address.
            grant = {"address": str(data["allowance"]), "tokens": str(data["tokens"]), "granted": place[0]}
            upsert(self._connection, allowances, grant, keys=("address",))
        elif event.name == "AllowanceSettled":
            settlement = dict(zip(_PLACE, place, strict=True))
            upsert(self._connection, unread, settlement, keys=_PLACE, replace=False)

    def remove(self, one: UnreadAllowance) -> bool:
        """Remove an allowance that was read. Return False if its settlement was rolled back in the meantime."""
        return execute(self._connection, _REMOVE, {}, **{name: getattr(one, name) for name in _PLACE}) == 1

    def forget(self, signature: str) -> None:
        """Remove the settlements of a transaction that was rolled back or is stored again."""
        execute(self._connection, _FORGET, {}, signature=signature)
