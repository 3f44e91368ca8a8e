"""The service's one connection to a Solana node."""

import asyncio
import base64
import time
from binascii import Error as BinasciiError
from collections.abc import Sequence
from typing import Any

from solders.hash import Hash
from solders.pubkey import Pubkey

from app.chain.confirmations import Confirmations
from app.chain.errors import BlockhashNotFound, ChainUnavailable
from app.chain.records import Block, Blockhash, RawAccount, SignatureStatus, SimulationResult, Statuses
from app.chain.rpc import Rpc
from app.chain.transport import Transport

COMMITMENT = "confirmed"
_MAX_ACCOUNTS = 100
"""The most addresses that `getMultipleAccounts` takes."""
_BALANCE = slice(64, 72)
"""Where a token account keeps its amount, for the SPL token program and for Token-2022."""
_MALFORMED = (KeyError, TypeError, ValueError, IndexError, BinasciiError)


class ChainClient:
    """Asks a node by JSON-RPC, at commitment `confirmed` unless said otherwise.

    Every method raises `ChainUnavailable` when the node gives no usable answer and `RpcError` when it refuses.
    """

    def __init__(self, transport: Transport, *, program_id: Pubkey, blockhash_max_age: float = 5.0) -> None:
        """`blockhash_max_age`: seconds for which a blockhash is used again; it is valid for about 60."""
        self._transport = transport
        self._rpc = Rpc(transport)
        self._program_id = str(program_id)
        self._blockhash_max_age = blockhash_max_age
        self._blockhash: tuple[float, Blockhash] | None = None
        self._blockhash_lock = asyncio.Lock()
        self._confirmations = Confirmations(self.statuses)

    async def call(self, method: str, params: list[Any]) -> Any:
        """Return the result of any JSON-RPC method."""
        return await self._rpc.call(method, params)

    async def blockhash(self, *, fresh: bool = False) -> Blockhash:
        """Return a recent blockhash; a new one when `fresh` or when the last is too old."""
        asked = time.monotonic()
        async with self._blockhash_lock:
            if self._blockhash is not None:
                fetched, blockhash = self._blockhash
                # One fetched while this call waited for the lock is fresh, too.
                if fetched > (asked if fresh else asked - self._blockhash_max_age):
                    return blockhash
            answer = await self.call("getLatestBlockhash", [{"commitment": COMMITMENT}])
            try:
                value = answer["value"]
                blockhash = Blockhash(Hash.from_string(value["blockhash"]), int(value["lastValidBlockHeight"]))
            except _MALFORMED as error:
                raise _unusable("getLatestBlockhash") from error
            self._blockhash = (time.monotonic(), blockhash)
            return blockhash

    async def simulate(
        self, transaction: bytes, *, verify_signatures: bool = False, replace_blockhash: bool = False
    ) -> SimulationResult:
        """Run a transaction without sending it. Raises `BlockhashNotFound` when its blockhash is too old."""
        options = {
            "encoding": "base64",
            "sigVerify": verify_signatures,
            "replaceRecentBlockhash": replace_blockhash,
            "commitment": COMMITMENT,
        }
        answer = await self.call("simulateTransaction", [_base64(transaction), options])
        try:
            value = answer["value"]
            if value["err"] == "BlockhashNotFound":
                raise BlockhashNotFound(-32002, "Blockhash not found")
            return SimulationResult(
                err=value["err"],
                logs=value.get("logs") or [],
                units=int(value.get("unitsConsumed") or 0),
                return_data=self._return_data(value.get("returnData")),
                slot=int(answer["context"]["slot"]),
            )
        except _MALFORMED as error:
            raise _unusable("simulateTransaction") from error

    async def send(self, transaction: bytes) -> str:
        """Send a signed transaction and return its signature.

        No preflight: the service simulates before. Store the bytes first: after `ChainUnavailable` they may be on
        their way, and only sending the same bytes again cannot pay twice.
        """
        options = {"encoding": "base64", "skipPreflight": True, "preflightCommitment": COMMITMENT}
        signature = await self.call("sendTransaction", [_base64(transaction), options])
        if not isinstance(signature, str):
            raise _unusable("sendTransaction")
        return signature

    async def statuses(self, signatures: Sequence[str], *, search_history: bool = False) -> Statuses:
        """Return the status of each of at most 256 signatures."""
        options = [{"searchTransactionHistory": True}] if search_history else []
        answer = await self.call("getSignatureStatuses", [list(signatures), *options])
        try:
            seen = Statuses(int(answer["context"]["slot"]), [_status(value) for value in answer["value"]])
        except _MALFORMED as error:
            raise _unusable("getSignatureStatuses") from error
        if len(seen.found) != len(signatures):
            raise _unusable("getSignatureStatuses")
        return seen

    async def confirm(self, signature: str, *, timeout: float) -> SignatureStatus | None:  # noqa: ASYNC109
        """Wait until the signature is confirmed, successful or failed; `None` when unknown after `timeout` seconds."""
        return await self._confirmations.wait(signature, timeout)

    async def account(self, address: Pubkey, commitment: str = COMMITMENT) -> RawAccount | None:
        """Return an account, or `None` when there is none."""
        return (await self.accounts([address], commitment))[0]

    async def accounts(self, addresses: Sequence[Pubkey], commitment: str = COMMITMENT) -> list[RawAccount | None]:
        """Return each account, `None` for one that does not exist; all of up to 100 as of the same slot."""
        found: list[RawAccount | None] = []
        for start in range(0, len(addresses), _MAX_ACCOUNTS):
            chunk = [str(address) for address in addresses[start : start + _MAX_ACCOUNTS]]
            options = {"encoding": "base64", "commitment": commitment}
            answer = await self.call("getMultipleAccounts", [chunk, options])
            try:
                slot = int(answer["context"]["slot"])
                found += [_account(value, slot) for value in answer["value"]]
            except _MALFORMED as error:
                raise _unusable("getMultipleAccounts") from error
        if len(found) != len(addresses):
            raise _unusable("getMultipleAccounts")
        return found

    async def token_balance(self, token_account: Pubkey) -> int | None:
        """Return the amount in a token account, in the mint's smallest unit; `None` when there is no such account."""
        account = await self.account(token_account)
        if account is None or len(account.data) < _BALANCE.stop:
            return None
        return int.from_bytes(account.data[_BALANCE], "little")

    async def last_final_block(self) -> Block:
        """Return the newest block that can no longer vanish."""
        answer = await self.call("getEpochInfo", [{"commitment": "finalized"}])
        try:
            return Block(int(answer["absoluteSlot"]), int(answer["blockHeight"]))
        except _MALFORMED as error:
            raise _unusable("getEpochInfo") from error

    async def airdrop(self, address: Pubkey, lamports: int) -> str:
        """Ask a test network for lamports and return the transaction's signature."""
        return str(await self.call("requestAirdrop", [str(address), lamports]))

    async def genesis_hash(self) -> str:
        """Return the hash that tells the cluster apart from every other."""
        return str(await self.call("getGenesisHash", []))

    async def aclose(self) -> None:
        """Stop waiting for confirmations and close the transport."""
        await self._confirmations.aclose()
        close = getattr(self._transport, "aclose", None)
        if close is not None:
            await close()

    def _return_data(self, value: Any) -> bytes | None:
        # The last program that set return data wins, so data of another program is not an answer.
        if not value or value["programId"] != self._program_id:
            return None
        return base64.b64decode(value["data"][0])


def _status(value: Any) -> SignatureStatus | None:
    if value is None:
        return None
    return SignatureStatus(int(value["slot"]), value["err"], value.get("confirmationStatus") or "processed")


def _account(value: Any, slot: int) -> RawAccount | None:
    if value is None:
        return None
    return RawAccount(
        int(value["lamports"]), Pubkey.from_string(value["owner"]), base64.b64decode(value["data"][0]), slot
    )


def _base64(raw: bytes) -> str:
    return base64.b64encode(raw).decode()


def _unusable(method: str) -> ChainUnavailable:
    return ChainUnavailable(f"the node's answer to {method} is malformed")
