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
from indexer.rpc import Rpc

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

    async def history(self, address: str, until: str | None) -> list[SignatureInfo]:
        """Return the address's transactions after the one with the signature `until`, oldest first.

        All pages are read before the first entry is returned, so that what is stored never has a hole behind it.
        """
        newest_first: list[SignatureInfo] = []
        while True:
            options: dict[str, Any] = {"commitment": COMMITMENT, "limit": PAGE}
            if until is not None:
                options["until"] = until
            if newest_first:
                options["before"] = newest_first[-1].signature
            page = await self._rpc.call("getSignaturesForAddress", [address, options])
            newest_first += [SignatureInfo(one["signature"], one["slot"], one["err"] is not None) for one in page]
            if len(page) < PAGE:
                return newest_first[::-1]

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
        options = {"encoding": "base64", "commitment": COMMITMENT, "dataSlice": {"offset": 0, "length": _AMOUNT.stop}}
        answer = await self._rpc.call("getMultipleAccounts", [list(accounts), options])
        return Balances(int(answer["context"]["slot"]), [_amount(one) for one in answer["value"]])


def _amount(account: Any) -> int | None:
    if account is None:
        return None
    data = base64.b64decode(account["data"][0])
    return int.from_bytes(data[_AMOUNT], "little") if len(data) >= _AMOUNT.stop else None
