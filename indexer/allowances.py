"""Reads the transfers of allowances' delegates, because no event of the program reports them.

A delegate's transfer need not name the program, so it may be missing from the program's history. Once an allowance is
settled, the history of its token account is complete. For each transaction in this history, the balances before and
after show the amount that left the account and the amount that arrived at the destination. Instructions show less,
because they can be part of a token-program batch or of another program's call.
"""

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from app.chain.client import ChainClient
from app.chain.errors import ChainUnavailable, HistoryNotAvailable, RpcError
from idl.codec import Codec
from idl.transactions import RawTransaction, signed
from indexer.decode import decode_transaction
from indexer.records import ChainTransaction
from indexer.store import Events
from indexer.unread_allowances import UnreadAllowance


@dataclass(frozen=True, slots=True)
class _Outflow:
    """The amount that left an allowance in one transaction, and the part of it that reached the destination."""

    signature: str
    left: int
    arrived: int
    signed: bool


class AllowanceReader:
    """Reads the token account of each settled allowance once."""

    def __init__(self, chain: ChainClient, events: Events, codec: Codec) -> None:
        self._chain = chain
        self._events = events
        self._codec = codec

    async def read(self) -> int:
        """Read all unread allowances, store a row about each, and return the number read.

        An allowance is left for the next call if the node does not serve its whole history.
        """
        read = 0
        for one in await self._events.look_up(lambda store: store.unread.all()):
            with contextlib.suppress(RpcError):  # A stale node for one allowance must not delay the others.
                outflows = await self._outflows(one)
                if outflows is not None:
                    summary = _summary(outflows, one.settlement)
                    await self._events.write(lambda store: store.record_reading(one, summary))  # noqa: B023 - awaited here
                    read += 1
        return read

    async def _outflows(self, one: UnreadAllowance) -> list[_Outflow] | None:
        history = await self._chain.history(one.tokens, None)
        signatures = [entry.signature for entry in history if not entry.failed]
        # The grant created the account and the settlement closed it. Without both, the history is incomplete.
        if not {one.granted, one.signature} <= set(signatures):
            return None
        raw = await self._chain.transactions(signatures)
        found = [one for one in raw if isinstance(one, dict)]
        if len(found) < len(raw):
            return None
        outflows = [await self._outflow(transaction, one) for transaction in found]
        return [found for found in outflows if found.left > 0]

    async def _outflow(self, raw: RawTransaction, one: UnreadAllowance) -> _Outflow:
        try:
            transaction, signers = decode_transaction(raw, self._codec), signed(raw).signers
        except ValueError as error:
            # A stranger may have sent this transaction, so it must not delay the other allowances.
            raise HistoryNotAvailable("a transaction of the allowance is unreadable") from error
        if transaction is None:
            raise ChainUnavailable("the node lists a failed transaction as successful")
        left = _left(transaction, one.allowance, one.tokens)
        arrived = await self._arrived(transaction, one)
        by_delegate = one.settlement["delegate"] in map(str, signers)
        return _Outflow(transaction.signature, left, arrived, by_delegate)

    async def _arrived(self, transaction: ChainTransaction, one: UnreadAllowance) -> int:
        """Return the part of an allowance's outflow that arrived at its destination.

        The destination's gain is counted only once: first for the program's own payments to it, then for one allowance
        after another. Otherwise money from another allowance could hide that this allowance's money was diverted.
        """
        destination, accounts = str(one.settlement["destination"]), [move.account for move in transaction.moves]
        sharing = await self._events.read(lambda store: store.unread.sharing(destination, accounts))
        gained = _gained(transaction, destination) - _paid_by_program(transaction, one.settlement)
        for allowance, tokens in sharing:
            arrived = max(0, min(_left(transaction, allowance, tokens), gained))
            if allowance == one.allowance:
                return arrived
            gained -= arrived
        return 0


def _left(transaction: ChainTransaction, allowance: str, tokens: str) -> int:
    """Return the amount that left an allowance in a transaction, not counting the program's own transfers."""
    granted = _sum(transaction, "AllowanceGranted", "amount", allowance)
    return granted - _sum(transaction, "AllowanceSettled", "swept", allowance) - _gained(transaction, tokens)


def _sum(transaction: ChainTransaction, name: str, field: str, allowance: str) -> int:
    """Return the sum of a field over the allowance's events with this name in a transaction."""
    events = (place.event for place in transaction.events if place.event.name == name)
    return sum(int(event.data[field]) for event in events if str(event.data["allowance"]) == allowance)


def _paid_by_program(transaction: ChainTransaction, settlement: dict[str, Any]) -> int:
    """Return the amount that the program itself paid to an allowance's destination in a transaction."""
    paid = 0
    for event in (place.event for place in transaction.events):
        data = {name: str(value) for name, value in event.data.items()}
        match event.name:
            case "PaymentExecuted" | "ReserveWithdrawn" if data["destination"] == settlement["destination"]:
                paid += int(data["amount"])
            case "EscrowCollected" if data["receiver"] == settlement["recipient"]:
                paid += int(data["released"])
            case "EscrowSettled" if data["receiver"] == settlement["recipient"] and data["receiver_owed"] == "0":
                paid += int(data["released"])
    return paid


def _gained(transaction: ChainTransaction, account: str) -> int:
    return sum(move.after - move.before for move in transaction.moves if move.account == account)


def _summary(outflows: Sequence[_Outflow], settlement: dict[str, Any]) -> dict[str, Any]:
    return {
        "vault": settlement["vault"],
        "allowance": settlement["allowance"],
        "spent": settlement["spent"],
        "seen": sum(one.left for one in outflows),
        "arrived": sum(one.arrived for one in outflows),
        "signed_by_delegate": all(one.signed for one in outflows),
        "transfers": [one.signature for one in outflows],
    }
