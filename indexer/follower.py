"""The indexer as an object: follows the program and tells others when something new is stored."""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Collection, Sequence
from pathlib import Path

from idl.codec import Codec
from indexer.decode import decode_transaction
from indexer.reconcile import Reconciler
from indexer.records import ChainTransaction
from indexer.rpc import Rpc, RpcError, Transport
from indexer.source import Source
from indexer.store import EventStore
from indexer.wakeup import listen

logger = logging.getLogger(__name__)

PROGRAM_CURSOR = "program"
_CHUNK = 500
"""Transactions fetched, decoded and stored at once."""
_TRIES = 20
_RETRY_PAUSE = 0.05
"""A signature said to be confirmed may take the node a moment to serve: asked this often, at this distance."""
_LATE_EVERY = 5
"""Late transactions are looked for, and gaps filled, in every fifth check."""


class Indexer:
    """Stores the program's events, first those of the past, then new ones as they are confirmed.

    Uses the event loop it was started in; `store` may be read from that loop's thread.
    """

    def __init__(
        self,
        *,
        transport: Transport,
        codec: Codec,
        db_path: str | Path,
        poll_interval: float = 0.25,
        check_interval: float = 2.0,
        ws_url: str | None = None,
        orgs: Collection[str] | None = None,
    ) -> None:
        """`transport` carries JSON-RPC to the node; `orgs` limits the events to those of these organisations.

        The history is asked for something new every `poll_interval` seconds, and everything stored is compared with
        the chain every `check_interval` seconds. With `ws_url`, log notifications save the wait for the next poll.
        """
        self.store = EventStore(db_path, orgs=orgs)
        self._codec = codec
        self._program = str(codec.program_id)
        self._source = Source(Rpc(transport))
        self._reconciler = Reconciler(self._source, self.store, self._program, self._ingest)
        self._poll_interval = poll_interval
        self._check_interval = check_interval
        self._ws_url = ws_url
        self._subscribers: list[Callable[[], None]] = []
        self._hints: dict[str, int] = {}
        self._news = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []

    def subscribe(self, callback: Callable[[], None]) -> None:
        """Have `callback` called after rows were stored, in the event loop."""
        self._subscribers.append(callback)

    def wake(self, signature: str | None = None) -> None:
        """Say that there is something new; with a confirmed `signature`, that is stored without a search for it."""
        if signature is not None:
            self._hints.setdefault(signature, 0)
        self._news.set()

    async def start(self) -> None:
        """Start following, in tasks of their own."""
        jobs = [self._follow(), self._check()]
        if self._ws_url is not None:
            jobs.append(listen(self._ws_url, self._program, self.wake))
        self._tasks = [asyncio.create_task(job) for job in jobs]

    async def stop(self) -> None:
        """Stop following and close the database."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks = []
        self.store.close()

    async def catch_up(self, *, seen: int | None = None) -> int:
        """Store everything that the program's history holds and the store does not; return the rows added.

        With `seen` it raises `RpcError` where the node has not seen this slot, or does not serve all that it lists.
        """
        history = await self._source.history(self._program, self.store.cursor(PROGRAM_CURSOR), seen=seen or 0)
        added = 0
        for start in range(0, len(history), _CHUNK):
            chunk = history[start : start + _CHUNK]
            wanted = self.store.unknown([one.signature for one in chunk if not one.failed])
            transactions, missing = await self._fetch(wanted)
            if missing:
                # The list knows what the node cannot serve yet: the cursor must not pass it.
                added += self._store(transactions)
                if seen is not None:
                    raise RpcError("the node lists transactions that it, or another at its address, does not serve")
                return added
            added += self._store(transactions, cursor=(PROGRAM_CURSOR, chunk[-1].signature))
        return added

    async def holds_all(self, account: str, slot: int) -> bool:
        """Catch up, and return whether no event of this vault or organisation up to a slot is missing.

        The account counts its events, so this needs no history of the node's. `False` when it cannot be told.
        """
        try:
            [data] = await self._source.accounts([account], seen=slot)
            await self.catch_up(seen=slot)
        except RpcError:
            return False
        # What was not made yet may have got lamports all the same.
        count = int(self._codec.decode_account(data).data["sequence"]) if data else 0
        return self.store.holds(account, count)

    async def check(self, *, late: bool = True) -> None:
        """Compare the store with the chain once."""
        if await self._reconciler.settle():
            self._tell()
        if late:
            await self._reconciler.catch_late()
            await self._reconciler.fill_gaps()
        if await self._reconciler.check_balances():
            self._tell()

    async def _follow(self) -> None:
        loop = asyncio.get_running_loop()
        next_poll = loop.time()
        while True:
            # Not `wait_for`, which in Python 3.11 can swallow a cancellation.
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout_at(next_poll):
                    await self._news.wait()
            # A wake-up without a signature asks for the history, too.
            searching = loop.time() >= next_poll or (self._news.is_set() and not self._hints)
            self._news.clear()
            try:
                if self._hints:
                    await self._take_hints()
                if searching:
                    await self.catch_up()
            except asyncio.CancelledError:
                raise
            except Exception as error:  # noqa: BLE001 - the node may be away; whatever it is, the next round tries again
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
        wanted = self.store.unknown(list(hints))
        if len(wanted) < len(hints):
            # Another process with this database was faster; who reads in this one has not heard of it.
            self._tell()
        try:
            transactions, missing = await self._fetch(wanted)
        except Exception:
            self._hints = {**hints, **self._hints}
            raise
        self._store(transactions)
        again = {one: hints[one] + 1 for one in missing if hints[one] < _TRIES}
        if again:
            self._hints = {**again, **self._hints}
            asyncio.get_running_loop().call_later(_RETRY_PAUSE, self._news.set)

    async def _ingest(self, signatures: Sequence[str]) -> int:
        added = 0
        for start in range(0, len(signatures), _CHUNK):
            transactions, _ = await self._fetch(signatures[start : start + _CHUNK])
            added += self._store(transactions)
        return added

    async def _fetch(self, signatures: Sequence[str]) -> tuple[list[ChainTransaction], list[str]]:
        """Return the decoded transactions, and the signatures that the node does not serve."""
        raw = await self._source.transactions(signatures)
        missing = [one for one, found in zip(signatures, raw, strict=True) if found is None]
        decoded = (decode_transaction(found, self._codec) for found in raw if found is not None)
        return [one for one in decoded if one is not None], missing

    def _store(self, transactions: Sequence[ChainTransaction], cursor: tuple[str, str] | None = None) -> int:
        added = self.store.record(transactions, cursor=cursor)
        if added:
            self._tell()
        return added

    def _tell(self) -> None:
        for callback in self._subscribers:
            callback()
