"""Slow checks that what is stored is what the chain holds: finality, late transactions, gaps and balances."""

import contextlib
from collections.abc import Awaitable, Callable, Sequence

from indexer.accounts import FollowedAccount
from indexer.rpc import RpcError
from indexer.source import ACCOUNT_BATCH, STATUS_BATCH, Source
from indexer.store import EventStore

Ingest = Callable[[Sequence[str]], Awaitable[int]]
"""Fetches and stores the transactions with these signatures, oldest first."""

_ACCOUNT_PREFIX = "tokens:"
_ROUND = 4
"""Batches of token accounts whose balances one check compares, beside the reserves'."""


class Reconciler:
    """Compares the store with the chain, a bounded piece at a time."""

    def __init__(self, source: Source, store: EventStore, program: str, ingest: Ingest) -> None:
        self._source = source
        self._store = store
        self._program = program
        self._ingest = ingest
        self._gaps: set[str] = set()
        # So many of the oldest transactions that are not final were asked for in vain: younger ones get their turn.
        self._unsettled = 0
        self._compared = ""

    async def settle(self) -> int:
        """Mark as final what is, and remove what vanished; return how many transactions vanished."""
        slot = await self._source.finalized_slot()
        vanished = 0
        while signatures := self._store.unfinalized(slot, STATUS_BATCH - 1, self._unsettled):
            witness = self._store.last_finalized(self._store.slot_of(signatures[0]) or 0)
            asked = [*([witness] if witness else []), *signatures]
            seen = await self._source.commitments(asked)
            final, gone, keeps_history = [], [], False
            for one, how in zip(asked, seen.found, strict=True):
                keeps_history = keeps_history or how is not None
                if how == "finalized":
                    final.append(one)
                # Behind one address there may be several nodes. That one does not know a transaction counts only where
                # it has seen these slots, and still knows an older transaction.
                elif how is None and keeps_history and seen.slot >= slot:
                    gone.append(one)
            self._store.finalize(final)
            if gone:
                self._store.revert(gone)
                vanished += len(gone)
            left = set(signatures) - {*final, *gone}
            self._unsettled += len(left)
            if len(left) == len(signatures):
                return vanished  # the next check goes on behind them
        self._unsettled = 0
        return vanished

    async def catch_late(self) -> int:
        """Store what entered the program's history behind the cursor, in slots that are not final yet."""
        late = await self._source.history(self._program, self._store.last_finalized())
        return await self._ingest_unknown([one.signature for one in late if not one.failed])

    async def fill_gaps(self) -> int:
        """Read the history of every vault and organisation that misses an event, as it did at the last check.

        An event may be missing for a moment, because transactions are stored as they are confirmed.
        """
        gaps = set(self._store.streams_with_gaps())
        lasting, self._gaps = gaps & self._gaps, gaps
        stored = 0
        for stream in sorted(lasting):
            history = await self._source.history(stream, None)
            stored += await self._ingest_unknown([one.signature for one in history if not one.failed])
        return stored

    async def check_balances(self) -> int:
        """Compare balances with the chain, and set those in doubt as they are read there; return how many were set."""
        accounts = self._store.accounts
        reserves = accounts.reserves()
        for start in range(0, len(reserves), ACCOUNT_BATCH):
            await self._compare(reserves[start : start + ACCOUNT_BATCH])
        for _ in range(_ROUND):
            batch = accounts.after(self._compared, ACCOUNT_BATCH)
            await self._compare(batch)
            self._compared = batch[-1].address if len(batch) == ACCOUNT_BATCH else ""
            if not self._compared:
                break
        observed = 0
        for address in accounts.suspects():
            with contextlib.suppress(RpcError):  # a node that is behind; the others are not to wait for another
                observed += await self._read_history(address)
        return observed

    async def _compare(self, accounts: Sequence[FollowedAccount]) -> None:
        if not accounts:
            return
        seen = await self._source.balances([one.address for one in accounts])
        for one, amount in zip(accounts, seen.amounts, strict=True):
            current = self._store.accounts.get(one.address)
            if current is not None and current.slot <= seen.slot and current.balance != (amount or 0):
                self._store.doubt(one.address)

    async def _read_history(self, address: str) -> bool:
        """Read an account's balance, store what its history has, then the balance; tell whether that was set."""
        name = _ACCOUNT_PREFIX + address
        seen = await self._source.balances([address])
        history = await self._source.history(address, self._store.cursor(name), seen=seen.slot)
        successful = [one.signature for one in history if not one.failed]
        await self._ingest_unknown(successful)
        if self._store.unknown(successful):
            return False  # the list knows what the node that was asked does not serve yet
        # With the whole history stored, what was read holds, in whatever order its parts were stored.
        observed = self._store.observe(address, seen.amounts[0] or 0, seen.slot)
        self._store.record((), cursor=(name, history[-1].signature) if history else None)
        if observed:
            self._store.clear(address)
        return observed

    async def _ingest_unknown(self, signatures: Sequence[str]) -> int:
        unknown = self._store.unknown(signatures)
        return await self._ingest(unknown) if unknown else 0
