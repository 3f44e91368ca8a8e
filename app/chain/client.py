"""The client of a Solana node that both the service and the indexer use."""

import asyncio
import base64
import time
from binascii import Error as BinasciiError
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from solders.clock import Clock
from solders.hash import Hash, ParseHashError
from solders.pubkey import Pubkey
from solders.sysvar import CLOCK

from app.chain.confirmations import Confirmations
from app.chain.errors import BlockhashNotFound, ChainUnavailable, HistoryNotAvailable, RpcError
from app.chain.records import (
    Balances,
    Block,
    BlockContent,
    Blockhash,
    HistoryEntry,
    RawAccount,
    SignatureStatus,
    SimulationResult,
    Statuses,
)
from app.chain.rpc import Rpc, whole
from app.chain.transport import Transport
from idl.transactions import NEWEST_VERSION, OPTIONS, RawTransaction, failure, signed

COMMITMENT = "confirmed"
ACCOUNT_BATCH = 100
"""Maximum number of addresses in one call to `getMultipleAccounts`."""
_HISTORY_PAGE = 1000
"""Maximum number of entries in one response to `getSignaturesForAddress`."""
_TRANSACTION_BATCH = 100
_CONTRADICTED_PAUSE = 0.1
"""Seconds until a failed status is read again, if the transaction itself does not show the failure yet."""
_SKIPPED = frozenset({-32007, -32009})
"""Error codes of `getBlock`: the slot was skipped, or its block is missing on this node or in long-term storage."""
UNSUPPORTED_VERSION = -32015
"""Error code of `getTransaction` for a version of a transaction that the node or the request does not support."""
_MALFORMED = (LookupError, TypeError, ValueError, ArithmeticError, AttributeError, BinasciiError, ParseHashError)

_T = TypeVar("_T")


class ChainClient:
    """Calls a node by JSON-RPC, at commitment `confirmed` unless stated otherwise.

    Unless stated otherwise, a method raises `ChainUnavailable` if the node gives no usable response, and `RpcError` if
    the node returns an error. `confirm` retries until its timeout instead.
    """

    def __init__(self, transport: Transport, *, program_id: Pubkey, blockhash_max_age: float = 5.0) -> None:
        """Reuse a blockhash, which is valid for about 60 seconds, for `blockhash_max_age` seconds."""
        self._transport = transport
        self._rpc = Rpc(transport)
        self._program_id = str(program_id)
        self._blockhash_max_age = blockhash_max_age
        self._blockhash: tuple[float, Blockhash] | None = None
        self._blockhash_lock = asyncio.Lock()
        self._confirmations = Confirmations(self.statuses)

    async def call(self, method: str, params: list[Any]) -> Any:
        """Call any JSON-RPC method and return its result."""
        return await self._rpc.call(method, params)

    async def blockhash(self, *, fresh: bool = False) -> Blockhash:
        """Return a recent blockhash: a new one if `fresh`, or if the last one is older than `blockhash_max_age`."""
        asked = time.monotonic()
        async with self._blockhash_lock:
            if self._blockhash is not None:
                fetched, blockhash = self._blockhash
                # A blockhash fetched while this call waited for the lock also counts as fresh.
                if fetched > (asked if fresh else asked - self._blockhash_max_age):
                    return blockhash
            blockhash = await self._read("getLatestBlockhash", [{"commitment": COMMITMENT}], _blockhash)
            self._blockhash = (time.monotonic(), blockhash)
            return blockhash

    async def simulate(
        self, transaction: bytes, *, replace_blockhash: bool = False, lamports_of: Pubkey | None = None
    ) -> SimulationResult:
        """Run a transaction without sending it. Raises `BlockhashNotFound` for a blockhash too old or too new.

        The result has the lamports that the account `lamports_of` would hold afterwards.
        """
        options: dict[str, Any] = {"encoding": "base64", "replaceRecentBlockhash": replace_blockhash}
        if lamports_of is not None:
            options["accounts"] = {"encoding": "base64", "addresses": [str(lamports_of)]}
        params = [_base64(transaction), {**options, "commitment": COMMITMENT}]
        return await self._read("simulateTransaction", params, self._simulation)

    async def send(self, transaction: bytes) -> str:
        """Send a signed transaction and return its signature.

        Preflight is skipped because the service simulates the transaction beforehand. Store the bytes before you call
        this method. After `ChainUnavailable`, the transaction may still land, so resend only the same bytes.
        """
        options = {"encoding": "base64", "skipPreflight": True, "preflightCommitment": COMMITMENT}
        return await self._read("sendTransaction", [_base64(transaction), options], _text)

    async def statuses(self, signatures: Sequence[str], *, search_history: bool = False) -> Statuses:
        """Return the statuses of up to 256 signatures. `search_history` also finds old transactions."""

        def read(answer: Any) -> Statuses:
            values = zip(signatures, answer["value"], strict=True)
            return Statuses(whole(answer["context"]["slot"]), [_status(value) for _, value in values])

        options = [{"searchTransactionHistory": True}] if search_history else []
        return await self._read("getSignatureStatuses", [list(signatures), *options], read)

    async def confirm(self, signature: str, *, timeout: float) -> SignatureStatus | None:  # noqa: ASYNC109
        """Wait until the transaction is confirmed, as a success or a failure; return `None` after `timeout` seconds.

        A failure counts only once the transaction itself also shows it; see `confirms`. Errors of the node do not end
        the wait.
        """
        deadline = time.monotonic() + timeout
        while True:
            status = await self._confirmations.wait(signature, max(0.0, deadline - time.monotonic()))
            if status is None or status.err is None or await self._is_told_twice(signature, status):
                return status
            if time.monotonic() >= deadline:
                return None
            await asyncio.sleep(_CONTRADICTED_PAUSE)

    async def confirms(self, signature: str, status: SignatureStatus) -> bool:
        """Return True if the transaction itself shows the same error and slot as `status`, which reports its failure.

        A caller may pay again after a failure, so the report of a single RPC method, or of one node, is not trusted.
        """
        [found] = await self.transactions([signature])

        def agrees(raw: RawTransaction) -> bool:
            same = str(signed(raw).signatures[0]) == signature and whole(raw["slot"]) == status.slot
            return same and failure(raw) == status.err

        if isinstance(found, RpcError):
            raise found
        try:
            return found is not None and agrees(found)
        except _MALFORMED as error:
            raise ChainUnavailable("the node's transaction is malformed") from error

    async def _is_told_twice(self, signature: str, status: SignatureStatus) -> bool:
        try:
            return await self.confirms(signature, status)
        except (ChainUnavailable, RpcError):
            return False

    async def history(self, address: str, until: str | None, *, seen: int = 0) -> list[HistoryEntry]:
        """Return the address's transactions after the one with the signature `until`, oldest first.

        All pages are read before the first entry is returned, so a caller that stores the entries leaves no hole.
        Raises `RpcError` if the node has not reached the slot `seen`, or if a page does not continue the previous page.
        """
        newest_first: list[HistoryEntry] = []
        options: dict[str, Any] = {"commitment": COMMITMENT, "limit": _HISTORY_PAGE, "minContextSlot": seen}
        if until is not None:
            options["until"] = until
        while True:
            page = await self._read("getSignaturesForAddress", [address, options], _history)
            size = len(page)
            # A node that does not know `before` returns an empty page. Overlapping pages reveal this.
            if newest_first and (not page or page.pop(0) != newest_first[-1]):
                raise HistoryNotAvailable("the node lacks a transaction that its address has listed before")
            newest_first += page
            if size < _HISTORY_PAGE:
                return newest_first[::-1]
            options["before"] = newest_first[-2].signature

    async def newest(self, address: str, limit: int) -> list[HistoryEntry]:
        """Return the newest `limit` entries of an address's history, newest first; `limit` is at most 1,000."""
        options = {"commitment": COMMITMENT, "limit": limit}
        return await self._read("getSignaturesForAddress", [address, options], _history)

    async def logs(self, signature: str) -> list[str]:
        """Return a transaction's log lines; an empty list if the node lacks the transaction or its logs."""
        return await self._read("getTransaction", [signature, OPTIONS], _logs_of)

    async def transactions(self, signatures: Sequence[str]) -> list[RawTransaction | RpcError | None]:
        """Return each transaction, or `None` if the node does not know it (yet).

        An error for a single transaction is returned in its place, as an `RpcError`. Its code is `UNSUPPORTED_VERSION`
        if the node or this client does not know the transaction's version. If the node refuses every transaction of a
        batch for other reasons, the first error is raised.
        """
        found: list[RawTransaction | RpcError | None] = []
        for start in range(0, len(signatures), _TRANSACTION_BATCH):
            chunk = signatures[start : start + _TRANSACTION_BATCH]
            calls = [("getTransaction", [one, OPTIONS]) for one in chunk]
            answers = await self._rpc.batch(calls, refusals=True)
            refused = [one for one in answers if isinstance(one, RpcError) and one.code != UNSUPPORTED_VERSION]
            if len(refused) == len(answers) > 1:
                raise refused[0]
            found += answers
        return found

    async def account(self, address: Pubkey | str, commitment: str = COMMITMENT, *, seen: int = 0) -> RawAccount | None:
        """Return the account, or `None` if none exists. Raises `RpcError` if the node is not at the slot `seen` yet."""
        _, [found] = await self._accounts([address], {"commitment": commitment, "minContextSlot": seen})
        return found

    async def accounts(self, addresses: Sequence[Pubkey], commitment: str = COMMITMENT) -> list[RawAccount | None]:
        """Return each account, or `None` if it does not exist. Each batch of 100 accounts is from one slot."""
        found: list[RawAccount | None] = []
        for start in range(0, len(addresses), ACCOUNT_BATCH):
            chunk = addresses[start : start + ACCOUNT_BATCH]
            found += (await self._accounts(chunk, {"commitment": commitment}))[1]
        return found

    async def accounts_at(self, addresses: Sequence[str], *, seen: int = 0) -> tuple[int, list[RawAccount | None]]:
        """Return a slot and the state of up to 100 accounts in this slot.

        Raises `RpcError` if the node has not reached the slot `seen`.
        """
        return await self._accounts(addresses, {"commitment": COMMITMENT, "minContextSlot": seen})

    async def balances(self, token_accounts: Sequence[Pubkey | str]) -> Balances:
        """Return the amounts in up to 100 token accounts, all from the same slot."""
        needed = {"offset": 0, "length": RawAccount.TOKEN_AMOUNT.stop}
        slot, found = await self._accounts(token_accounts, {"commitment": COMMITMENT, "dataSlice": needed})
        return Balances(slot, [None if account is None else account.token_amount for account in found])

    async def token_balance(self, token_account: Pubkey) -> int | None:
        """Return a token account's amount in the mint's smallest unit, or `None` as described at `Balances`."""
        return (await self.balances([token_account])).amounts[0]

    async def slot(self, commitment: str = COMMITMENT) -> int:
        """Return the node's newest slot at the commitment."""
        return await self._read("getSlot", [{"commitment": commitment}], whole)

    async def block_time(self, slot: int) -> int:
        """Return the time of the block in a slot, in Unix seconds."""
        return await self._read("getBlockTime", [slot], whole)

    async def clock(self) -> Clock:
        """Return the clock sysvar, the time that the program sees."""
        [found] = await self.accounts([CLOCK])
        try:
            return Clock.from_bytes(b"" if found is None else found.data)
        except ValueError as error:
            raise ChainUnavailable("the node's response lacks the chain's clock") from error

    async def finalized_block(self, slot: int) -> BlockContent | None:
        """Return the finalized block of a slot, or `None` if the slot was skipped or the node has lost the block.

        Raises `RpcError` if the slot is not finalized yet or older than the node's history.
        """
        options = {"commitment": "finalized", "transactionDetails": "signatures", "rewards": False}
        try:
            return await self._read("getBlock", [slot, {**options, **NEWEST_VERSION}], _content)
        except RpcError as error:
            if error.code in _SKIPPED:
                return None
            raise

    async def last_finalized_block(self) -> Block:
        """Return the newest block that can no longer be rolled back."""
        return await self._read("getEpochInfo", [{"commitment": "finalized"}], _block)

    async def airdrop(self, address: Pubkey, lamports: int) -> str:
        """Request lamports from a test network and return the transaction's signature."""
        return await self._read("requestAirdrop", [str(address), lamports], _text)

    async def aclose(self) -> None:
        """Stop waiting for confirmations and close the transport."""
        await self._confirmations.aclose()
        close = getattr(self._transport, "aclose", None)
        if close is not None:
            await close()

    async def _read(self, method: str, params: list[Any], parse: Callable[[Any], _T]) -> _T:
        """Call a method and return its result, converted by `parse`."""
        result = await self.call(method, params)
        try:
            return parse(result)
        except _MALFORMED as error:
            raise ChainUnavailable(f"the node's response to {method} is malformed") from error

    async def _accounts(
        self, addresses: Sequence[Pubkey | str], options: dict[str, Any]
    ) -> tuple[int, list[RawAccount | None]]:
        """Return the slot of the response and the state of up to 100 accounts."""

        def read(answer: Any) -> tuple[int, list[RawAccount | None]]:
            slot = whole(answer["context"]["slot"])
            return slot, [_account(value, slot) for _, value in zip(addresses, answer["value"], strict=True)]

        params = [[str(address) for address in addresses], {"encoding": "base64", **options}]
        return await self._read("getMultipleAccounts", params, read)

    def _simulation(self, answer: Any) -> SimulationResult:
        value, slot = answer["value"], whole(answer["context"]["slot"])
        if value["err"] == "BlockhashNotFound":
            raise BlockhashNotFound(-32002, "Blockhash not found")
        returned = value.get("returnData")
        # The last program that sets return data wins, so ignore another program's data.
        own = returned and returned["programId"] == self._program_id
        data = base64.b64decode(returned["data"][0]) if own else None
        logs, units = [_text(line) for line in value.get("logs") or ()], whole(value.get("unitsConsumed") or 0)
        [left] = value.get("accounts") or [None]
        return SimulationResult(value["err"], logs, units, data, slot, left and whole(left["lamports"]))


def _blockhash(answer: Any) -> Blockhash:
    value = answer["value"]
    return Blockhash(Hash.from_string(value["blockhash"]), whole(value["lastValidBlockHeight"]))


def _block(answer: Any) -> Block:
    return Block(whole(answer["absoluteSlot"]), whole(answer["blockHeight"]))


def _content(answer: Any) -> BlockContent:
    return BlockContent(whole(answer["parentSlot"]), frozenset(map(_text, answer["signatures"])))


def _history(answer: Any) -> list[HistoryEntry]:
    return [HistoryEntry(_text(one["signature"]), whole(one["slot"]), one["err"] is not None) for one in answer]


def _logs_of(answer: Any) -> list[str]:
    return [] if answer is None else [_text(line) for line in answer["meta"]["logMessages"] or ()]


def _status(value: Any) -> SignatureStatus | None:
    if value is None:
        return None
    return SignatureStatus(whole(value["slot"]), value["err"], _text(value.get("confirmationStatus") or "processed"))


def _account(value: Any, slot: int) -> RawAccount | None:
    if value is None:
        return None
    data = base64.b64decode(value["data"][0])
    return RawAccount(whole(value["lamports"]), Pubkey.from_string(value["owner"]), data, slot)


def _text(answer: Any) -> str:
    if not isinstance(answer, str):
        raise TypeError(f"{answer!r} is not text")
    return answer


def _base64(raw: bytes) -> str:
    return base64.b64encode(raw).decode()
