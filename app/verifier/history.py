"""What the chain knows of an address: its transactions, and in them the program's events."""

import asyncio
from binascii import Error as BinasciiError
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Any

from app.chain.errors import ChainUnavailable
from app.chain.rpc import Rpc
from app.chain.transport import Transport
from idl.codec import Codec
from idl.transactions import OPTIONS, ChainEvent, accounts, events, message_hash, signed

_COMMITMENT = "confirmed"
_PAGE = 1000
_AT_ONCE = 16
_TRIES, _FIRST_PAUSE = 6, 0.25
"""How often a node is asked that does not answer, and seconds before the second time; they double."""
_MALFORMED = (KeyError, TypeError, ValueError, IndexError, BinasciiError)


class IncompleteError(Exception):
    """The node does not have the whole history, or gives answers that are none."""


@dataclass(frozen=True, slots=True)
class Landed:
    """A successful transaction; `block_time` in Unix seconds, `message_hash` the hex SHA-256 of what was signed.

    `owners` are those of the token accounts that it names.
    """

    signature: str
    slot: int
    block_time: int | None
    message_hash: str
    owners: dict[str, str]
    events: tuple[ChainEvent, ...]


class History:
    """Reads from a node, at commitment `confirmed`."""

    def __init__(self, transport: Transport, codec: Codec) -> None:
        self._rpc = Rpc(transport)
        self._codec = codec

    async def slot(self) -> int:
        """Return the newest slot that the node has."""
        found = await self._call("getSlot", [{"commitment": _COMMITMENT}])
        if not isinstance(found, int):
            raise IncompleteError("the node's answer to getSlot is malformed")
        return found

    async def walk(self, address: str, start: int | None, end: int | None, *, seen: int) -> AsyncIterator[Landed]:
        """Give the transactions that name an organisation or a vault, newest first, between two Unix seconds.

        Raises `IncompleteError` when the node's list does not reach back to `start` or to the address's creation, and
        RpcError when the node has not seen the slot `seen`.
        """
        born = False
        newer: list[str] = []
        before: str | None = None
        while True:
            page = await self._page(address, before, seen)
            wanted: list[str] = []
            for entry in page:
                before, moment = entry["signature"], entry["blockTime"]
                if start is not None and moment is not None and moment < start:
                    born = True
                    break
                if entry["err"] is None:
                    is_newer = end is not None and moment is not None and moment > end
                    (newer if is_newer else wanted).append(entry["signature"])
            for first in range(0, len(wanted), _AT_ONCE):
                for landed in await self._fetch(wanted[first : first + _AT_ONCE]):
                    born = born or _creates(landed, address)
                    yield landed
            if born or not page:
                break
        while not born:
            if not newer:
                raise IncompleteError(f"the node's history of {address} does not reach back far enough: ask another")
            [landed] = await self._fetch([newer.pop()])
            born = _creates(landed, address)

    async def _page(self, address: str, before: str | None, seen: int) -> list[dict[str, Any]]:
        options: dict[str, Any] = {"commitment": _COMMITMENT, "limit": _PAGE, "minContextSlot": seen}
        if before is not None:
            options["before"] = before
        answer = await self._call("getSignaturesForAddress", [address, options])
        try:
            return [
                {name: one.get(name) for name in ("blockTime", "err")} | {"signature": one["signature"]}
                for one in answer
            ]
        except (*_MALFORMED, AttributeError) as error:
            raise IncompleteError("the node's answer to getSignaturesForAddress is malformed") from error

    async def _fetch(self, signatures: Sequence[str]) -> list[Landed]:
        return await asyncio.gather(*(self._transaction(one) for one in signatures))

    async def _transaction(self, signature: str) -> Landed:
        raw = await self._call("getTransaction", [signature, OPTIONS])
        if raw is None:
            raise IncompleteError(f"the node lists the transaction {signature} but does not have it: ask another")
        try:
            landed = _decode(raw, self._codec)
        except _MALFORMED as error:
            raise IncompleteError(f"the node's answer about the transaction {signature} is malformed") from error
        if landed.signature != signature:
            raise IncompleteError(f"the node gave another transaction than {signature}")
        return landed

    async def _call(self, method: str, params: list[Any]) -> Any:
        pause = _FIRST_PAUSE
        for _ in range(_TRIES - 1):
            try:
                return await self._rpc.call(method, params)
            except ChainUnavailable:
                await asyncio.sleep(pause)
                pause *= 2
        return await self._rpc.call(method, params)


def _creates(landed: Landed, address: str) -> bool:
    created = {"OrgInitialized": "org", "WalletCreated": "vault"}
    return any(
        str(place.event.data[created[place.event.name]]) == address
        for place in landed.events
        if place.event.name in created
    )


def _decode(raw: dict[str, Any], codec: Codec) -> Landed:
    meta = raw["meta"]
    transaction = signed(raw)
    keys = accounts(raw, transaction)
    return Landed(
        signature=str(transaction.signatures[0]),
        slot=int(raw["slot"]),
        block_time=raw.get("blockTime"),
        message_hash=message_hash(bytes(transaction)),
        owners={str(keys[one["accountIndex"]]): one["owner"] for one in meta.get("postTokenBalances") or ()},
        events=() if meta["err"] is not None else tuple(events(raw, keys, codec)),
    )
