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
    """Fetches and stores transactions, given as slots by signature, oldest first. Returns the number of rows added."""

    def __call__(self, slots: Mapping[str, int], *, again: bool = False) -> Awaitable[int]:
        """Fetch and store the transactions. `again` replaces transactions that were stored without events."""


_ACCOUNT_PREFIX = "tokens:"
_ROUND = 4
"""Maximum number of batches of token accounts that one check compares in addition to the reserves."""
_LOOKS = 3
_LOOK_SLOTS = 8
"""A transaction must be missing in three looks, at least eight finalized slots apart, to count as rolled back."""
_STREAMS, _REREAD = 8, 1000
"""Number of vaults and organisations with gaps that one check handles, and of transactions reread for each."""
_RELISTED = 1_000
"""Number of newest transactions to list again, because a node may have left some out."""
_READS = 3
"""Maximum number of times that one check reads an account. Each reading may find transactions that were not stored."""
_SKIPPED_AT_MOST = 64
"""Number of slots in which to look for a block, beginning with the slot of the transaction."""


@dataclass(slots=True)
class _Missing:
    """A transaction that the node lacks in its stored slot: the number of looks so far and the slot of the last."""

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
        """Maps each vault or organisation that may lack its last events in the store to its number of events on the
        chain.
        """
        self._missing: dict[str, _Missing] = {}
        self._gaps: set[str] = set()
        self._turn, self._round = "", 0
        # The number of oldest transactions that the node could not decide. The next check skips them.
        self._undecided = 0
        self._compared = ""

    async def finalize(self) -> int:
        """Mark finalized transactions and remove rolled-back ones. Return the number removed."""
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
                # There may be several nodes behind one address. "Unknown" counts only from a node that has reached
                # these slots and still knows an older transaction.
                elif keeps_history and seen.slot >= slot and await self._is_rolled_back(one, status, slot):
                    gone.append(one)
            await self._events.write(lambda store: store.finalize(final))  # noqa: B023 - awaited here
            if gone:
                await self._events.write(lambda store: store.roll_back(gone))  # noqa: B023 - as above
                removed += len(gone)
            left = len(signatures.keys() - {*final, *gone})
            self._undecided += left
            if left == len(signatures):
                return removed  # The next check continues after the undecided ones.
        self._undecided = 0
        return removed

    def _unfinalized(self, store: EventTables, slot: int) -> tuple[dict[str, int], dict[str, int]] | None:
        """Return a witness, and the oldest transactions up to `slot` that are not marked as finalized.

        Transactions left undecided in this run are skipped. The witness is the newest finalized transaction that is not
        newer than these: a node that knows it still keeps the history from their time. Both results are dictionaries of
        slots by signature; the first is empty if there is no witness. Return None if no transaction is left.
        """
        slots = store.unfinalized(slot, STATUS_BATCH - 1, self._undecided)
        if not slots:
            return None
        witness = store.last_finalized(next(iter(slots.values())))
        return ({} if witness is None else {witness: store.slot_of(witness) or 0}), slots

    async def _is_rolled_back(self, signature: str, status: SignatureStatus | None, slot: int) -> bool:
        """Return True if a transaction was rolled back. The node has reported that it did not land in its stored slot.

        A node may forget or be wrong. So the transaction must be missing in several looks over time, and the finalized
        chain must lack it in its stored slot. In addition, the accounts must count fewer events than are stored or, if
        it landed in another slot, the block there must contain it.
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
            logger.warning("cannot tell yet whether the transaction %s was rolled back: %s", signature, error)
            return False
        if gone:
            logger.warning("the transaction %s in slot %d was rolled back", signature, stored)
            del self._missing[signature]
        return gone

    def _is_missing_long(self, signature: str, slot: int) -> bool:
        """Count a look that missed a transaction. Return True if there have been enough looks."""
        known = self._missing.setdefault(signature, _Missing(0, slot - _LOOK_SLOTS))
        if slot < known.slot + _LOOK_SLOTS:
            return False
        known.looks += 1
        known.slot = slot
        return known.looks >= _LOOKS

    async def _is_in_chain(self, signature: str, slot: int, final: int) -> bool:
        """Return True if the finalized chain has, or may have, the transaction in this slot.

        False if the slot's finalized block lacks the transaction, or if the slot was skipped. A node gives the same
        response for a skipped slot and for a block that it has lost. The slot is known to be skipped only if the
        parent of the next block is in an earlier slot.
        """
        for at in range(slot, min(slot + _SKIPPED_AT_MOST, final + 1)):
            block = await self._chain.finalized_block(at)
            if block is not None:
                return signature in block.signatures if at == slot else block.parent >= slot
        return True

    async def _is_counted(self, signature: str, slot: int) -> bool:
        """Return True if an account changed by a transaction counts at least as many events as are stored for it."""
        for stream in await self._events.read(lambda store: store.streams_of(signature)):
            at, count = await self.count(stream, slot, "finalized")
            if count >= await self._events.read(lambda store: store.count_up_to(stream, at)):  # noqa: B023 - awaited here
                return True
        return False

    async def count(self, stream: str, slot: int, commitment: str = COMMITMENT) -> tuple[int, int]:
        """Return a slot, at least `slot`, and the number of events that a vault or organisation has counted by then.

        Raises `RpcError` if the node has not reached the slot.
        """
        found = await self._chain.account(stream, commitment, seen=slot)
        # An address without a vault or organisation may still hold lamports.
        if found is None or not found.data:
            return slot, 0
        return found.slot, int(found.decode(self._codec).data["sequence"])

    async def store_late_transactions(self) -> int:
        """Store transactions that are missing before the cursor, because a node listed them late or left them out.

        Looks at all transactions after the last one marked as finalized, and at the newest 1,000. Returns the number of
        rows added.
        """
        late = await self._read(self._program, await self._events.read(lambda store: store.last_finalized()))
        newest = await self._chain.newest(self._program, _RELISTED)
        return late + await self._ingest_unknown({one.signature: one.slot for one in newest[::-1] if not one.failed})

    async def fill_holes(self) -> int:
        """Fill holes of the history from a node that has the missing parts. Return the number of closed holes."""
        closed = 0
        for hole in await self._events.look_up(lambda store: store.holes()):
            if not await self.knows(hole.after):
                continue
            history = await self._chain.history(self._program, hole.after)
            wanted = {one.signature: one.slot for one in history if not one.failed and one.slot <= hole.before_slot}
            await self._ingest_unknown(wanted)
            if not await self._unknown(list(wanted)):
                await self._events.write(lambda store: store.close_hole(hole))  # noqa: B023 - awaited here
                logger.info("the history after slot %d is complete again", hole.after_slot)
                closed += 1
        return closed

    async def knows(self, signature: str) -> bool:
        """Return True if the node still has a transaction that landed, False if it has forgotten it."""
        return (await self._chain.statuses([signature], search_history=True)).found[0] is not None

    async def fill_gaps(self) -> int:
        """Reread the transactions of up to 8 vaults and organisations that have a gap now and had one at the last call.

        Other gaps may be momentary, because transactions are stored as they are confirmed.
        """
        for stream, count in list(self.doubted.items()):
            if await self._events.look_up(lambda store: store.holds(stream, count)):  # noqa: B023 - awaited here
                self.doubted.pop(stream, None)
        gaps = {*self.doubted, *await self._events.look_up(lambda store: store.streams_with_gaps())}
        lasting, self._gaps, self._round = gaps & self._gaps, gaps, self._round + 1
        # Accounts in `doubted` come first. The others take turns, because strangers' accounts may have many gaps.
        turn = sorted(lasting, key=lambda one: (one not in self.doubted, one <= self._turn, one))[:_STREAMS]
        self._turn = turn[-1] if turn else ""
        return sum([await self._fill(stream) for stream in turn])

    async def _fill(self, stream: str) -> int:
        """Reread transactions of a vault or organisation that are not stored or are stored without events."""
        history = await self._chain.history(stream, None)
        slots = {one.signature: one.slot for one in history if not one.failed}
        doubtful = await self._events.read(lambda store: store.without_events(list(slots)))
        start = self._round * _REREAD % max(1, len(doubtful))
        return await self._ingest({one: slots[one] for one in doubtful[start : start + _REREAD]}, again=True)

    async def check_balances(self) -> int:
        """Compare balances with the chain and replace the balances of suspect accounts. Return the number replaced."""
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
            with contextlib.suppress(RpcError):  # A stale node for one account must not delay the others.
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
                # Compare again: transactions stored in the meantime may explain the difference.
                for address in differ(store):
                    store.mark_suspect(address)

            await self._events.write(mark)

    async def _observe(self, address: str) -> bool:
        """Read an account's balance, store its history, then the balance. Return True if the balance was stored."""
        name = _ACCOUNT_PREFIX + address
        for _ in range(_READS):
            known = await self._events.read(lambda store: store.accounts.get(address))
            seen = await self._chain.balances([address])
            cursor = await self._events.read(lambda store: store.cursor(name))
            history = await self._chain.history(address, cursor, seen=seen.slot)
            successful = {one.signature: one.slot for one in history if not one.failed}
            if not await self._unknown(list(successful)):
                break
            # Read the balance again afterwards: in an unfinished slot, a transaction after the read would look older.
            await self._ingest_unknown(successful)
        else:
            # The node lists transactions that it or another at its address does not serve yet, or the account is busy.
            return False

        # With the whole history stored, the balance is right, regardless of the order of storing.
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
