"""Slow checks that what is stored is what the chain holds: finality, late transactions, gaps and balances."""

from collections.abc import Awaitable, Callable, Sequence

from indexer.accounts import FollowedAccount
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
        self._compared = ""

    async def settle(self) -> int:
        """Mark as final what is, and remove what vanished; return how many transactions vanished."""
        slot = await self._source.finalized_slot()
        vanished: list[str] = []
        while signatures := self._store.unfinalized(slot, STATUS_BATCH):
            seen = await self._source.commitments(signatures)
            final = [one for one, how in zip(signatures, seen.found, strict=True) if how == "finalized"]
            # Behind one address there may be several nodes: one that has not seen these slots misses what they hold.
            unknown = [one for one, how in zip(signatures, seen.found, strict=True) if how is None]
            gone = unknown if seen.slot >= slot else []
            self._store.finalize(final)
            if gone:
                self._store.revert(gone)
                vanished += gone
            if len(final) + len(gone) < len(signatures):
                break  # the node that answered is behind; ask again next time
        return len(vanished)

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
        """Store what an account's history has, and its balance as read now; tell whether that was set."""
        name = _ACCOUNT_PREFIX + address
        history = await self._source.history(address, self._store.cursor(name))
        await self._ingest_unknown([one.signature for one in history if not one.failed])
        seen = await self._source.balances([address])
        # With the whole history stored, what is read now holds, in whatever order its parts were stored.
        observed = self._store.observe(address, seen.amounts[0] or 0, seen.slot)
        self._store.record((), cursor=(name, history[-1].signature) if history else None)
        if observed:
            self._store.clear(address)
        return observed

    async def _ingest_unknown(self, signatures: Sequence[str]) -> int:
        unknown = self._store.unknown(signatures)
        return await self._ingest(unknown) if unknown else 0
