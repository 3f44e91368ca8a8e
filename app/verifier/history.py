"""Reads the chain's history of an address: its transactions, and the program's events in them."""

import asyncio
from binascii import Error as BinasciiError
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

from app.chain.errors import ChainUnavailable
from app.chain.rpc import Rpc
from app.chain.transport import Transport
from idl.codec import Codec
from idl.transactions import OPTIONS, ChainEvent, accounts, at, events, failure, part, signed

_COMMITMENT = "confirmed"
_PAGE = 1000
_AT_ONCE = 16
_PAUSES = (0.25, 0.5, 1, 2, 4)
"""Seconds before each retry of a call that a node does not answer."""
_MALFORMED = (KeyError, TypeError, ValueError, IndexError, BinasciiError)
_CREATIONS = {"OrgInitialized": "org", "WalletCreated": "vault"}
"""Events that create an organisation or a vault, each with the field that holds the new address."""


class IncompleteError(Exception):
    """The node lacks part of the history, or its responses are malformed."""


@dataclass(frozen=True, slots=True)
class Landed:
    """A successful transaction.

    `block_time` is in Unix seconds and `message_hash` the hex SHA-256 of the signed message. `owners` maps the token
    accounts that the transaction names to their owners.
    """

    signature: str
    slot: int
    block_time: int | None
    message_hash: str
    owners: dict[str, str]
    events: tuple[ChainEvent, ...]


class History:
    """Reads the history of addresses from a node, at commitment `confirmed`."""

    def __init__(self, transport: Transport, codec: Codec) -> None:
        self._rpc = Rpc(transport)
        self._codec = codec

    async def slot(self) -> int:
        """Return the newest slot that the node has."""
        found = await self._call("getSlot", [{"commitment": _COMMITMENT}])
        if not isinstance(found, int):
            raise IncompleteError("the node's response to getSlot is malformed")
        return found

    async def walk(self, address: str, start: float, end: float, *, seen: int) -> AsyncIterator[Landed]:
        """Yield the successful transactions that name an organisation or a vault, newest first.

        They lie between the Unix seconds `start` and `end`, or have no block time. Raises `IncompleteError` if the
        node's list reaches back neither to `start` nor to the address's creation. Raises RpcError if the node has not
        seen the slot `seen`.
        """
        complete = False
        newer: list[str] = []
        before: str | None = None
        while not complete and (page := await self._page(address, before, seen)):
            wanted: list[str] = []
            for before, moment, failed in page:
                if moment is not None and moment < start:
                    complete = True
                    break
                if not failed:
                    (newer if moment is not None and moment > end else wanted).append(before)
            for first in range(0, len(wanted), _AT_ONCE):
                for landed in await asyncio.gather(*map(self._transaction, wanted[first : first + _AT_ONCE])):
                    complete = complete or _creates(landed, address)
                    yield landed
        # The address may have been created after `end`.
        while not complete:
            if not newer:
                raise IncompleteError(f"the node's history of {address} is too short; use another node")
            complete = _creates(await self._transaction(newer.pop()), address)

    async def _page(self, address: str, before: str | None, seen: int) -> list[tuple[str, int | None, bool]]:
        """Return signature, block time and a failure flag of up to 1,000 transactions before `before`, newest first."""
        options = {"commitment": _COMMITMENT, "limit": _PAGE, "minContextSlot": seen}
        if before is not None:
            options["before"] = before
        answer = await self._call("getSignaturesForAddress", [address, options])
        try:
            return [(one["signature"], one.get("blockTime"), one.get("err") is not None) for one in answer]
        except _MALFORMED as error:
            raise IncompleteError("the node's response to getSignaturesForAddress is malformed") from error

    async def _transaction(self, signature: str) -> Landed:
        raw = await self._call("getTransaction", [signature, OPTIONS])
        if raw is None:
            raise IncompleteError(f"the node lists the transaction {signature} but does not have it; use another node")
        try:
            landed = _decode(raw, self._codec)
        except _MALFORMED as error:
            raise IncompleteError(
                f"the node's response about the transaction {signature} is unusable: {error}"
            ) from error
        if landed.signature != signature:
            raise IncompleteError(f"the node returned another transaction than {signature}")
        return landed

    async def _call(self, method: str, params: list[Any]) -> Any:
        for pause in _PAUSES:
            try:
                return await self._rpc.call(method, params)
            except ChainUnavailable:
                await asyncio.sleep(pause)
        return await self._rpc.call(method, params)


def _creates(landed: Landed, address: str) -> bool:
    found = [one.event for one in landed.events if one.event.name in _CREATIONS]
    return any(str(event.data[_CREATIONS[event.name]]) == address for event in found)


def _decode(raw: dict[str, Any], codec: Codec) -> Landed:
    failed = failure(raw) is not None
    transaction = signed(raw)
    keys = accounts(raw, transaction)
    return Landed(
        signature=str(transaction.signatures[0]),
        slot=int(raw["slot"]),
        block_time=raw.get("blockTime"),
        message_hash=transaction.message_hash,
        owners={
            str(at(keys, one["accountIndex"])): one["owner"] for one in part(raw["meta"], "postTokenBalances", list)
        },
        events=() if failed else tuple(events(raw, keys, codec)),
    )
