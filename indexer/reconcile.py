"""Compares the store with the chain in slow rounds: finality, late transactions, gaps and balances."""

import contextlib
import logging
from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from app.chain.client import ACCOUNT_BATCH, COMMITMENT, ChainClient
from app.chain.confirmations import STATUS_BATCH
from app.chain.errors import ChainUnavailable, RpcError
from app.chain.records import SignatureStatus
from idl.codec import Codec
from indexer.accounts import FollowedAccount
from indexer.store import Events, EventTables

logger = logging.getLogger(__name__)


class Ingest(Protocol):
    """Fetches and stores the transactions with these signatures and slots, oldest first; returns the rows added."""

    def __call__(self, slots: Mapping[str, int], *, again: bool = False) -> Awaitable[int]:
        """Fetch and store; `again` replaces transactions stored without events."""


_ACCOUNT_PREFIX = "tokens:"
_ROUND = 4
"""Batches of token accounts whose balances one check compares, next to the reserves'."""
_LOOKS = 3
_LOOK_SLOTS = 8
"""How many looks, and how many finalized slots apart, must miss a transaction before it may count as rolled back."""
_STREAMS, _REREAD = 8, 1000
"""Vaults and organisations with gaps that one check looks after, and transactions that it rereads for each."""
_RELISTED = 1_000
"""The newest transactions, which are listed again because a node may have left some out."""
_READS = 3
"""How often at most an account is read in one check, while each reading finds transactions that were not stored."""
_SKIPPED_AT_MOST = 64
"""Slots that are searched for the block after one that was skipped."""


@dataclass(slots=True)
class _Missing:
    """A transaction that the node does not show where it was stored: the looks so far, and the slot of the last."""

    looks: int
    slot: int


class Reconciler:
    """Compares the store with the chain, a bounded part at a time."""

    def __init__(self, chain: ChainClient, store: Events, codec: Codec, ingest: Ingest) -> None:
        self._chain = chain
        self._events = store
        self._codec = codec
        self._program = str(codec.program_id)
        self._ingest = ingest
        self.doubted: dict[str, int] = {}
        """Vaults and organisations that may lack their last events, with the chain's count of them."""
        self._missing: dict[str, _Missing] = {}
        self._gaps: set[str] = set()
        self._turn, self._round = "", 0
        # The number of oldest transactions whose fate the node did not know; the next check skips them.
        self._undecided = 0
        self._compared = ""

    async def finalize(self) -> int:
        """Mark final transactions, and remove those that were rolled back; return how many were removed."""
        slot = await self._chain.slot("finalized")
        removed = 0
        while stored := await self._events.read(lambda store: self._unfinalized(store, slot)):
            witness, signatures = stored
            asked = [*witness, *signatures]
            seen = await self._chain.statuses(asked, search_history=True)
            final, gone, keeps_history = [], [], False
            for one, status in zip(asked, seen.found, strict=True):
                keeps_history = keeps_history or status is not None
                if status is not None and status.commitment != "finalized":
                    self._missing.pop(one, None)
                elif status is not None and status.slot == (witness | signatures)[one]:
                    self._missing.pop(one, None)
                    final.append(one)
                # There may be several nodes behind one address. That a node does not know a transaction counts only if
                # it has seen these slots and still knows an older transaction.
                elif keeps_history and seen.slot >= slot and await self._is_rolled_back(one, status, slot):
                    gone.append(one)
            await self._events.write(lambda store: store.finalize(final))  # noqa: B023 - awaited at once
            if gone:
                await self._events.write(lambda store: store.roll_back(gone))  # noqa: B023 - as above
                removed += len(gone)
            left = len(signatures.keys() - {*final, *gone})
            self._undecided += left
            if left == len(signatures):
                return removed  # the next check continues after them
        self._undecided = 0
        return removed

    def _unfinalized(self, store: EventTables, slot: int) -> tuple[dict[str, int], dict[str, int]] | None:
        """Return the next transactions that are not final, and an older one that is: the older one first.

        Each is a dictionary of slots by signatures; None if all are final.
        """
        slots = store.unfinalized(slot, STATUS_BATCH - 1, self._undecided)
        if not slots:
            return None
        witness = store.last_finalized(next(iter(slots.values())))
        return ({} if witness is None else {witness: store.slot_of(witness) or 0}), slots

    async def _is_rolled_back(self, signature: str, status: SignatureStatus | None, slot: int) -> bool:
        """Return whether a transaction was rolled back, of which the node says that it did not land where it is stored.

        A node may forget or be wrong. So that needs several looks over time, and then two witnesses: the finalized
        chain, which must not have it in its slot, and the accounts, which must count fewer events than are stored; or
        the block in which it landed instead.
        """
        if not self._is_missing_long(signature, slot):
            return False
        stored = await self._events.look_up(lambda store: store.slot_of(signature))
        assert stored is not None
        try:
            if await self._is_in_chain(signature, stored, slot):
                return False
            if status is not None:
                block = await self._chain.finalized_block(status.slot)
                gone = block is not None and signature in block.signatures
            else:
                gone = not await self._is_counted(signature, slot)
        except (ChainUnavailable, RpcError) as error:
            logger.warning("whether the transaction %s was rolled back is not known yet: %s", signature, error)
            return False
        if gone:
            logger.warning("the transaction %s in slot %d was rolled back", signature, stored)
            del self._missing[signature]
        return gone

    def _is_missing_long(self, signature: str, slot: int) -> bool:
        """Count a look that missed a transaction; return whether there were enough by now."""
        known = self._missing.setdefault(signature, _Missing(0, slot - _LOOK_SLOTS))
        if slot < known.slot + _LOOK_SLOTS:
            return False
        known.looks += 1
        known.slot = slot
        return known.looks >= _LOOKS

    async def _is_in_chain(self, signature: str, slot: int, final: int) -> bool:
        """Return whether the finalized chain has, or may have, the transaction in this slot.

        A slot without a block was skipped for certain only if the next block's parent is before it: the same answer
        also stands for a block that the node has lost.
        """
        for at in range(slot, min(slot + _SKIPPED_AT_MOST, final + 1)):
            block = await self._chain.finalized_block(at)
            if block is not None:
                return signature in block.signatures if at == slot else block.parent >= slot
        return True

    async def _is_counted(self, signature: str, slot: int) -> bool:
        """Return whether an account that a transaction changed counts as many events as are stored of it."""
        for stream in await self._events.read(lambda store: store.streams_of(signature)):
            at, count = await self.count(stream, slot, "finalized")
            if count >= await self._events.read(lambda store: store.count_up_to(stream, at)):  # noqa: B023 - at once
                return True
        return False

    async def count(self, stream: str, slot: int, commitment: str = COMMITMENT) -> tuple[int, int]:
        """Return how many events a vault or organisation counts, as of which slot: this one or a later one.

        Raises `RpcError` if the node has not seen the slot.
        """
        found = await self._chain.account(stream, commitment, seen=slot)
        # An address without a vault or organisation may still hold lamports.
        if found is None or not found.data:
            return slot, 0
        return found.slot, int(found.decode(self._codec).data["sequence"])

    async def store_late_transactions(self) -> int:
        """Store late transactions: those behind the cursor that are not final yet, or missing in a node's list."""
        late = await self._read(self._program, await self._events.read(lambda store: store.last_finalized()))
        newest = await self._chain.newest(self._program, _RELISTED)
        return late + await self._ingest_unknown({one.signature: one.slot for one in newest[::-1] if not one.failed})

    async def fill_holes(self) -> int:
        """Read the holes of the history from a node that has them; return how many are closed."""
        closed = 0
        for hole in await self._events.look_up(lambda store: store.holes()):
            if not await self.knows(hole.after):
                continue
            history = await self._chain.history(self._program, hole.after)
            wanted = {one.signature: one.slot for one in history if not one.failed and one.slot <= hole.before_slot}
            await self._ingest_unknown(wanted)
            if not await self._unknown(list(wanted)):
                await self._events.write(lambda store: store.close_hole(hole))  # noqa: B023 - awaited at once
                logger.info("the history after slot %d is complete again", hole.after_slot)
                closed += 1
        return closed

    async def knows(self, signature: str) -> bool:
        """Return whether the node has a transaction that landed, or has forgotten it."""
        return (await self._chain.statuses([signature], search_history=True)).found[0] is not None

    async def fill_gaps(self) -> int:
        """Reread the transactions of some vaults and organisations that had a gap at the last check, too.

        An event may be missing for a moment, because transactions are stored as they are confirmed.
        """
        for stream, count in list(self.doubted.items()):
            if await self._events.look_up(lambda store: store.holds(stream, count)):  # noqa: B023 - awaited at once
                self.doubted.pop(stream, None)
        gaps = {*self.doubted, *await self._events.look_up(lambda store: store.streams_with_gaps())}
        lasting, self._gaps, self._round = gaps & self._gaps, gaps, self._round + 1
        # Doubted ones first, then the others in rotation: strangers may have many.
        turn = sorted(lasting, key=lambda one: (one not in self.doubted, one <= self._turn, one))[:_STREAMS]
        self._turn = turn[-1] if turn else ""
        return sum([await self._fill(stream) for stream in turn])

    async def _fill(self, stream: str) -> int:
        """Reread transactions of a vault or organisation that are stored without events, or not at all."""
        history = await self._chain.history(stream, None)
        slots = {one.signature: one.slot for one in history if not one.failed}
        doubtful = await self._events.read(lambda store: store.without_events(list(slots)))
        start = self._round * _REREAD % max(1, len(doubtful))
        return await self._ingest({one: slots[one] for one in doubtful[start : start + _REREAD]}, again=True)

    async def check_balances(self) -> int:
        """Compare balances with the chain's, and replace those of suspect accounts; return how many were replaced."""
        reserves = await self._events.look_up(lambda store: store.accounts.reserves())
        for start in range(0, len(reserves), ACCOUNT_BATCH):
            await self._compare(reserves[start : start + ACCOUNT_BATCH])
        for _ in range(_ROUND):
            batch = await self._events.look_up(lambda store: store.accounts.after(self._compared, ACCOUNT_BATCH))
            await self._compare(batch)
            self._compared = batch[-1].address if len(batch) == ACCOUNT_BATCH else ""
            if not self._compared:
                break
        observed = 0
        for address in await self._events.look_up(lambda store: store.accounts.suspects()):
            with contextlib.suppress(RpcError):  # a node that is behind for one account must not delay the others
                observed += await self._observe(address)
        return observed

    async def _compare(self, accounts: Sequence[FollowedAccount]) -> None:
        if not accounts:
            return
        seen = await self._chain.balances([one.address for one in accounts])
        found = {one.address: amount or 0 for one, amount in zip(accounts, seen.amounts, strict=True)}

        def differ(store: EventTables) -> list[str]:
            current = store.accounts.among(found).values()
            return [one.address for one in current if one.slot <= seen.slot and one.balance != found[one.address]]

        if await self._events.look_up(differ):

            def mark(store: EventTables) -> None:
                # What was stored meanwhile may explain it.
                for address in differ(store):
                    store.mark_suspect(address)

            await self._events.write(mark)

    async def _observe(self, address: str) -> bool:
        """Read an account's balance, store what its history has, then the balance; return whether that was stored."""
        name = _ACCOUNT_PREFIX + address
        for _ in range(_READS):
            known = await self._events.read(lambda store: store.accounts.get(address))
            seen = await self._chain.balances([address])
            cursor = await self._events.read(lambda store: store.cursor(name))
            history = await self._chain.history(address, cursor, seen=seen.slot)
            successful = {one.signature: one.slot for one in history if not one.failed}
            if not await self._unknown(list(successful)):
                break
            # Read once more after them: in a slot that is not over, what came after the reading would look older.
            await self._ingest_unknown(successful)
        else:
            # The node lists what it, or another at its address, does not serve yet; or the account is busy.
            return False

        # With the whole history stored the balance is right, in whatever order the parts were stored.
        def store_it(store: EventTables) -> bool:
            observed = known is not None and store.observe(known, seen.amounts[0] or 0, seen.slot)
            store.record((), cursor=(name, history[-1].signature) if history else None)
            if observed:
                store.clear_suspect(address)
            return observed

        return await self._events.write(store_it)

    async def _read(self, address: str, until: str | None) -> int:
        history = await self._chain.history(address, until)
        return await self._ingest_unknown({one.signature: one.slot for one in history if not one.failed})

    async def _ingest_unknown(self, slots: Mapping[str, int]) -> int:
        unknown = await self._unknown(list(slots))
        return await self._ingest({one: slots[one] for one in unknown}) if unknown else 0

    async def _unknown(self, signatures: Sequence[str]) -> list[str]:
        return await self._events.read(lambda store: store.unknown(signatures))
