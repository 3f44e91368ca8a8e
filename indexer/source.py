"""Reads histories and transactions from a node.

Log notifications only wake the indexer: logs can be cut, lost and written by others. The truth is in the
transactions, which are listed by address and fetched one by one.
"""

import base64
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from idl.transactions import OPTIONS, RawTransaction
from indexer.records import SignatureInfo
from indexer.rpc import Rpc, RpcError

COMMITMENT = "confirmed"
PAGE = 1000
"""The most entries of one answer to `getSignaturesForAddress`."""
STATUS_BATCH = 256
ACCOUNT_BATCH = 100
_FETCH_BATCH = 100
_AMOUNT = slice(64, 72)


@dataclass(frozen=True, slots=True)
class Balances:
    """Amounts of token accounts as of a slot, `None` for an account that does not exist."""

    slot: int
    amounts: list[int | None]


@dataclass(frozen=True, slots=True)
class Commitments:
    """How settled transactions are, `None` for one that is unknown to the node, which had seen blocks up to `slot`."""

    slot: int
    found: list[str | None]


class Source:
    """A node, asked at commitment `confirmed`."""

    def __init__(self, rpc: Rpc) -> None:
        self._rpc = rpc

    async def history(self, address: str, until: str | None, *, seen: int = 0) -> list[SignatureInfo]:
        """Return the address's transactions after the one with the signature `until`, oldest first.

        All pages are read before the first entry is returned, so that what is stored never has a hole behind it. Raises
        `RpcError` when the node has not seen the slot `seen`, or a page does not follow the one before.
        """
        newest_first: list[SignatureInfo] = []
        options: dict[str, Any] = {"commitment": COMMITMENT, "limit": PAGE, "minContextSlot": seen}
        if until is not None:
            options["until"] = until
        while True:
            page = await self._rpc.call("getSignaturesForAddress", [address, options])
            found = [SignatureInfo(one["signature"], one["slot"], one["err"] is not None) for one in page]
            # A node that does not know `before` answers that nothing is older: so the pages overlap.
            if newest_first and (not found or found.pop(0) != newest_first[-1]):
                raise RpcError("the node does not know what it, or another at its address, has listed")
            newest_first += found
            if len(page) < PAGE:
                return newest_first[::-1]
            options["before"] = newest_first[-2].signature

    async def transactions(self, signatures: Sequence[str]) -> list[RawTransaction | None]:
        """Return the transactions, `None` for one that the node does not know (yet)."""
        found: list[RawTransaction | None] = []
        for start in range(0, len(signatures), _FETCH_BATCH):
            chunk = signatures[start : start + _FETCH_BATCH]
            found += await self._rpc.batch([("getTransaction", [one, OPTIONS]) for one in chunk])
        return found

    async def finalized_slot(self) -> int:
        """Return the newest slot that can no longer vanish."""
        return int(await self._rpc.call("getSlot", [{"commitment": "finalized"}]))

    async def commitments(self, signatures: Sequence[str]) -> Commitments:
        """Return how settled each of at most 256 transactions is."""
        options = {"searchTransactionHistory": True}
        answer = await self._rpc.call("getSignatureStatuses", [list(signatures), options])
        found = [None if one is None else one.get("confirmationStatus") or "processed" for one in answer["value"]]
        return Commitments(int(answer["context"]["slot"]), found)

    async def balances(self, accounts: Sequence[str]) -> Balances:
        """Return the amounts in at most 100 token accounts, all as of one slot."""
        slot, found = await self._accounts(accounts, {"dataSlice": {"offset": 0, "length": _AMOUNT.stop}})
        return Balances(slot, [None if data is None else _amount(data) for data in found])

    async def accounts(self, addresses: Sequence[str], *, seen: int) -> list[bytes | None]:
        """Return the data of at most 100 accounts. Raises `RpcError` when the node has not seen the slot `seen`."""
        _, found = await self._accounts(addresses, {"minContextSlot": seen})
        return found

    async def _accounts(self, addresses: Sequence[str], options: dict[str, Any]) -> tuple[int, list[bytes | None]]:
        """Return the slot of the answer, and each account's data."""
        shared = {"encoding": "base64", "commitment": COMMITMENT}
        answer = await self._rpc.call("getMultipleAccounts", [list(addresses), {**shared, **options}])
        found = [None if one is None else base64.b64decode(one["data"][0]) for one in answer["value"]]
        return int(answer["context"]["slot"]), found


def _amount(data: bytes) -> int | None:
    return int.from_bytes(data[_AMOUNT], "little") if len(data) >= _AMOUNT.stop else None
