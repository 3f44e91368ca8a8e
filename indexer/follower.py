"""Follows the program's transactions and notifies subscribers of newly stored rows."""

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path

from app.chain.client import ChainClient
from app.chain.errors import HistoryNotAvailable, RpcError
from app.chain.records import HistoryEntry
from app.chain.transport import Transport
from app.core.recent import Recent
from idl.codec import Codec
from indexer.accounts import FollowedAccount
from indexer.allowances import AllowanceReader
from indexer.log_listener import LogListener
from indexer.reconcile import Reconciler
from indexer.records import Hole, Position, TransactionHole
from indexer.store import Events, EventStore, EventTables, StoredEvent
from indexer.transaction_reader import ReadTransactions, TransactionReader

logger = logging.getLogger(__name__)

PROGRAM_CURSOR = "program"
_CHUNK = 500
"""Number of transactions that are fetched, decoded and stored together."""
_TRIES = 20
_RETRY_PAUSE = 0.05
"""Number of retries for a confirmed transaction that a node does not serve yet, and the seconds between them."""
_PRUNED_AFTER = 1000
"""Number of slots without a transaction of the program after which to check whether the node has pruned its history."""
_REMEMBERED = 10_000
"""Number of recently stored signatures kept in memory, so that notified ones are not fetched a second time."""
_RETRIES = 50
"""Maximum number of holes that one check retries."""
_LISTED = 1_000
_LASTING = 10.0
"""Seconds before a missing event counts as a gap, because transactions may be stored out of order."""
_LATE_EVERY = 5
"""Every fifth check looks for late transactions and fills holes and gaps."""


class Indexer:
    """Stores the program's events: first all past events, then new ones as they are confirmed.

    An indexer belongs to the event loop in which it was started. Read with the awaitable methods, because the database
    may be behind a network. Use `store` itself only in the thread of that loop.
    """

    def __init__(
        self,
        *,
        transport: Transport,
        codec: Codec,
        db_path: str | Path | None = None,
        events: Events | None = None,
        poll_interval: float = 0.25,
        check_interval: float = 2.0,
        ws_urls: Sequence[str] = (),
        orgs: Collection[str] | None = None,
    ) -> None:
        """Store events in the file `db_path` or in `events`. `transport` carries JSON-RPC to the node.

        With a file, `orgs` limits the stored events to these organisations.

        The indexer polls the history every `poll_interval` seconds and compares the store with the chain every
        `check_interval` seconds. Log notifications from `ws_urls` save the wait for the next poll.
        """
        assert (db_path is None) != (events is None)
        self._events = events or EventStore(db_path or "", orgs=orgs)
        self._program = str(codec.program_id)
        self._chain = ChainClient(transport, program_id=codec.program_id)
        self._reader = TransactionReader(self._chain, codec)
        self._reconciler = Reconciler(self._chain, self._events, codec, self._ingest)
        self._allowances = AllowanceReader(self._chain, self._events, codec)
        self._poll_interval = poll_interval
        self._check_interval = check_interval
        self._listeners = [LogListener(one, self._program, self.wake) for one in ws_urls]
        self._subscribers: list[Callable[[int], None]] = []
        self._announced = 0
        self._hints: dict[str, int] = {}
        self._seen: Recent[None] = Recent(_REMEMBERED)
        self._woken = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self._failing_since: float | None = None
        self._gaps: dict[str, float] = {}
        """Maps each vault or organisation that lacks an event to the monotonic time when this was noticed."""

    @property
    def store(self) -> EventStore:
        """The events in a file. Use it only in the thread of the event loop."""
        assert isinstance(self._events, EventStore)
        return self._events

    @property
    def failing_for(self) -> float:
        """Seconds since reading new transactions began to fail; 0 if a poll of the history has succeeded since."""
        return 0.0 if self._failing_since is None else asyncio.get_running_loop().time() - self._failing_since

    @property
    def hears(self) -> bool:
        """True if a node notifies this process of new transactions, so that they are stored soon after they land."""
        return any(one.subscribed for one in self._listeners)

    def subscribe(self, callback: Callable[[int], None]) -> None:
        """Call `callback` in the event loop with the newest row's id after this or another process stored rows."""
        self._subscribers.append(callback)

    def wake(self, signature: str | None = None) -> None:
        """Look for new events now. A confirmed `signature` is stored without a search of the history."""
        if not self._tasks:
            return  # Another process follows the program.
        if signature is not None:
            self._hints.setdefault(signature, 0)
        self._woken.set()

    async def changes(self, after: int, limit: int) -> list[StoredEvent]:
        """Return at most `limit` rows with an id above `after`, in order."""
        return await self._events.look_up(lambda store: store.changes(after, limit))

    async def slot_of(self, signature: str) -> int | None:
        """Return the slot of a stored transaction, or None if it is not stored."""
        return await self._events.look_up(lambda store: store.slot_of(signature))

    async def unknown(self, signatures: Sequence[str]) -> list[str]:
        """Return the signatures that are neither stored nor holes, in their order."""
        return await self._events.look_up(lambda store: store.unknown(signatures))

    async def followed(self, after: str, limit: int) -> list[FollowedAccount]:
        """Return at most `limit` token accounts of reserves and vaults with an address above `after`, in order."""
        return await self._events.look_up(lambda store: store.accounts.after(after, limit))

    async def holes(self) -> list[Hole]:
        """Return the parts of the history that no node has served, oldest first."""
        return await self._events.look_up(lambda store: store.holes())

    async def transaction_holes(self) -> list[TransactionHole]:
        """Return the unreadable transactions, newest first, at most 1,000."""
        return await self._events.look_up(lambda store: store.transaction_holes.newest(_LISTED))

    async def gaps(self) -> list[str]:
        """Return the vaults and organisations with a lasting gap. Momentary gaps are left out."""
        now = time.monotonic()
        stored = await self._events.look_up(lambda store: store.streams_with_gaps())
        found = {*stored, *self._reconciler.doubted}
        self._gaps = {one: self._gaps.get(one, now) for one in found}
        return sorted(one for one, since in self._gaps.items() if now - since >= _LASTING)

    async def newest_block_time(self) -> int | None:
        """Return the Unix second of the newest block with a stored transaction, or None if no transaction is stored."""
        return await self._events.look_up(lambda store: store.newest_block_time())

    async def positions(self, accounts: Sequence[tuple[str, str]]) -> list[Position]:
        """Return the stored position of each vault or organisation. `accounts` pairs each with its token account."""

        def find(store: EventTables) -> list[Position]:
            return [Position(_balance(store, tokens), store.sequence_of(stream)) for stream, tokens in accounts]

        return await self._events.read(find)

    async def start(self) -> None:
        """Start following in the background."""
        jobs = [self._follow(), self._check()]
        jobs += [one.run() for one in self._listeners]
        self._tasks = [asyncio.create_task(job) for job in jobs]

    async def stop(self) -> None:
        """Stop following and close the file. Tables on a server can still be used."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks = []
        # Another process may follow the program now, and this process cannot know if that one succeeds.
        self._failing_since = None
        self._events.close()

    async def catch_up(self, *, seen: int | None = None) -> int:
        """Store the transactions after the cursor that are not stored yet. Return the number of rows added.

        An unreadable transaction becomes a hole. With `seen`, raises `RpcError` if the node has not reached this slot
        or does not serve some of the listed transactions yet.
        """
        history = await self._history(seen or 0)
        added, missing = 0, False
        for start in range(0, len(history), _CHUNK):
            chunk = history[start : start + _CHUNK]
            slots = {one.signature: one.slot for one in chunk if not one.failed}
            found = await self._reader.read({one: slots[one] for one in await self.unknown(list(slots))})
            missing = missing or bool(found.missing)
            # The cursor must not pass a transaction that the node lists but does not serve yet.
            added += await self._store(found, cursor=None if missing else (PROGRAM_CURSOR, chunk[-1].signature))
        if missing and seen is not None:
            raise HistoryNotAvailable("the node, or another at its address, does not serve all listed transactions")
        return added

    async def _history(self, seen: int) -> list[HistoryEntry]:
        """Return the program's history after the cursor, or the part of it that the node still has.

        A node that has pruned the cursor's transaction either refuses to list later transactions or lists all that it
        has.
        """
        cursor, slot = await self._events.look_up(lambda store: store.position(PROGRAM_CURSOR))
        refusal = None
        try:
            history = await self._chain.history(self._program, cursor, seen=seen)
        except RpcError as error:
            history, refusal = [], error
        if cursor is None or slot is None:
            if refusal is not None:
                raise refusal
            return history
        suspicious = refusal is not None or (history and history[0].slot > slot + _PRUNED_AFTER)
        if not suspicious or await self._reconciler.knows(cursor):
            if refusal is not None:
                # Another node at this address knows the cursor. Start from an older transaction instead.
                older = await self._events.look_up(lambda store: store.last_finalized(slot - 1))
                return await self._chain.history(self._program, older, seen=seen)
            return history
        if refusal is not None:
            history = await self._chain.history(self._program, None, seen=seen)
        signatures = [one.signature for one in history if not one.failed]
        if history and len(await self.unknown(signatures)) == len(signatures):
            # The hole may be empty: nothing shows if the program was used in these slots.
            hole = Hole(cursor, slot, history[0].slot)
            logger.warning("the node lacks the history between the slots %d and %d", hole.after_slot, hole.before_slot)
            await self._events.write(lambda store: store.note_hole(hole))
        return history

    async def holds_all(self, account: str, slot: int) -> bool:
        """Catch up. Return True if all events of this vault or organisation up to a slot are stored.

        The account itself counts its events, so this does not rely on the node's history. Returns `False` if the node
        returns an error.
        """
        try:
            _, count = await self._reconciler.count(account, slot)
            # A missing transaction may concern other accounts, so let the count decide.
            with contextlib.suppress(HistoryNotAvailable):
                await self.catch_up(seen=slot)
        except RpcError:
            return False
        whole = await self._events.look_up(lambda store: store.holds(account, count))
        self._reconciler.doubted.pop(account, None)
        if not whole:
            self.check_for_gap(account, count)
        return whole

    def check_for_gap(self, account: str, count: int) -> None:
        """Let the next checks fill the gap of a vault or organisation that has this number of events on the chain."""
        if self._tasks:  # Otherwise another process follows the program.
            self._reconciler.doubted[account] = count

    async def check(self, *, late: bool = True) -> None:
        """Compare the store with the chain once. With `late`, also find late transactions and fill holes and gaps."""
        await self._reconciler.finalize()
        await self._look()
        await self._retry_holes()
        if late:
            await self._reconciler.store_late_transactions()
            await self._reconciler.fill_holes()
            await self._reconciler.fill_gaps()
        await self._reconciler.check_balances()
        await self._allowances.read()
        await self._look()

    async def _follow(self) -> None:
        loop = asyncio.get_running_loop()
        next_poll = loop.time()
        while True:
            # Do not use `wait_for`: in Python 3.11 it can swallow a cancellation.
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout_at(next_poll):
                    await self._woken.wait()
            # A wake-up without a signature also searches the history.
            searching = loop.time() >= next_poll or (self._woken.is_set() and not self._hints)
            self._woken.clear()
            try:
                if self._hints:
                    await self._take_hints()
                if searching:
                    await self.catch_up()
                    self._failing_since = None
                    # Other processes may have stored new rows first.
                    await self._look()
            except asyncio.CancelledError:
                raise
            except Exception as error:  # noqa: BLE001 - the node may be down; the next round retries
                self._failing_since = self._failing_since or loop.time()
                logger.warning("indexing failed, trying again: %r", error)
                await asyncio.sleep(self._poll_interval)
            if searching:
                next_poll = loop.time() + self._poll_interval

    async def _check(self) -> None:
        rounds = 0
        while True:
            await asyncio.sleep(self._check_interval)
            rounds += 1
            try:
                await self.check(late=rounds % _LATE_EVERY == 0)
            except asyncio.CancelledError:
                raise
            except Exception as error:  # noqa: BLE001 - as above
                logger.warning("comparing with the chain failed, trying again: %r", error)

    async def _take_hints(self) -> None:
        hints, self._hints = self._hints, {}
        try:
            # Transactions that this process stored may have been rolled back since, so ask the store.
            doubtful = [one for one in hints if one in self._seen]
            known = set(doubtful).difference(await self.unknown(doubtful)) if doubtful else ()
            found = await self._reader.read({one: 0 for one in hints if one not in known})
        except Exception:
            self._hints = {**hints, **self._hints}
            raise
        # Skip holes here: they are stored with their slots once the history lists them.
        await self._store(found._replace(holes=[]))
        again = {one: hints[one] + 1 for one in found.missing if hints[one] < _TRIES}
        if again:
            self._hints = {**again, **self._hints}
            asyncio.get_running_loop().call_later(_RETRY_PAUSE, self._woken.set)

    async def _ingest(self, slots: Mapping[str, int], *, again: bool = False) -> int:
        added, signatures = 0, list(slots)
        for start in range(0, len(signatures), _CHUNK):
            chunk = {one: slots[one] for one in signatures[start : start + _CHUNK]}
            added += await self._store(await self._reader.read(chunk), again=chunk if again else ())
        return added

    async def _retry_holes(self) -> None:
        """Retry the unreadable transactions that are due, up to 50 at a time."""
        now = int(time.time())
        due = await self._events.look_up(lambda store: store.transaction_holes.due(now, _RETRIES))
        if due:
            asked = {one.signature: one for one in due}
            try:
                found = await self._reader.read({one.signature: one.slot for one in due})
            except RpcError:
                found = ReadTransactions([], [], due)
            left = [*found.missing, *(one.signature for one in found.holes)]
            await self._store(found._replace(holes=[asked[one] for one in left]), again=asked)

    async def _store(
        self, found: ReadTransactions, *, cursor: tuple[str, str] | None = None, again: Collection[str] = ()
    ) -> int:
        """Store transactions and holes. For transactions read `again`, close holes and add missing events."""
        transactions = found.transactions
        closed = set(again).difference(found.missing, (one.signature for one in found.holes))

        def record(store: EventTables) -> tuple[int, int]:
            store.transaction_holes.close(list(closed))
            store.transaction_holes.put(found.holes, int(time.time()))
            added = store.replace(transactions) if again else store.record(transactions, cursor=cursor)
            # Writes run one after another, so no other process's row can be newer than a row added here.
            return added, store.last_stored if added else store.newest_row()

        added, newest = await self._events.write(record)
        for one in transactions:
            self._seen.put(one.signature, None)
        self._announce(newest)
        return added

    async def _look(self) -> None:
        """Announce rows that other processes have stored."""
        self._announce(await self._events.look_up(lambda store: store.newest_row()))

    def _announce(self, newest: int) -> None:
        """Call the subscribers if there are rows that were not announced yet.

        It does not matter whether this process added rows, because another process may store a transaction while this
        process fetches it.
        """
        if newest != self._announced:
            self._announced = newest
            for callback in self._subscribers:
                callback(newest)


def _balance(store: EventTables, tokens: str) -> int | None:
    account = store.accounts.get(tokens)
    return None if account is None or account.suspect else account.balance
