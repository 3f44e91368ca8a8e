"""The chain: what gets in, in which order, and when it counts as confirmed.

Execution happens in memory and is answered at once (`processed`). One task then writes everything executed since the
last write in a single database transaction; only after that do those transactions become `confirmed`, so what was
reported as confirmed survives the death of the process. They become `finalized` 32 slots later.

Reads of accounts at `processed` see the executed state. At `confirmed` and `finalized` they see exactly the state that
is on disk: for every account changed since, its earlier value is kept until the change is written. There are no forks,
so nothing confirmed is ever rolled back, and account reads at `finalized` are answered like those at `confirmed`.
"""

import asyncio
import json
import logging
import sqlite3
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from solders.account import Account
from solders.hash import Hash
from solders.pubkey import Pubkey
from solders.signature import Signature
from solders.transaction import TransactionError, VersionedTransaction

from app.localnet import tokens, transactions
from app.localnet.bank import Bank, Run
from app.localnet.errors import node_unhealthy
from app.localnet.meta import transaction_meta
from app.localnet.params import Commitment
from app.localnet.storage import AccountRow, Storage, StoredStatus, StoredTransaction, WriteBatch, to_json
from app.localnet.timeline import FINALIZED_DEPTH, MAX_BLOCKHASH_AGE, Timeline

logger = logging.getLogger(__name__)

_RETRY_SECONDS = 1.0


class TransactionRefusedError(Exception):
    """A transaction that was not executed: `err` in its JSON form, `run` when it came as far as the virtual machine."""

    def __init__(self, err: Any, run: Run | None = None) -> None:
        super().__init__(str(err))
        self.err = err
        self.run = run


@dataclass(frozen=True, slots=True)
class Executed:
    """An executed transaction, on its way to the disk."""

    seq: int
    signature: Signature
    keys: list[Pubkey]
    slot: int
    block_time: int
    err: Any
    logs: list[str]
    memo: str | None
    wire: bytes
    meta: dict[str, Any]

    def stored(self) -> StoredTransaction:
        """Return the form that is written."""
        err = None if self.err is None else to_json(self.err)
        raw, meta = bytes(self.signature), to_json(self.meta)
        return StoredTransaction(self.seq, raw, self.slot, self.block_time, err, self.memo, self.wire, meta)


@dataclass(slots=True)
class _Generation:
    """What one commit writes: transactions, and for every account they changed its value before them."""

    executed: list[Executed] = field(default_factory=list)
    before: dict[Pubkey, Account | None] = field(default_factory=dict)
    written: asyncio.Event = field(default_factory=asyncio.Event)


class Chain:
    """Executes transactions one after the other and writes them in groups."""

    def __init__(self, storage: Storage, timeline: Timeline, bank: Bank) -> None:
        """Continue from what `storage` holds; the accounts are in `bank` already."""
        self.storage = storage
        self.timeline = timeline
        self.bank = bank
        self.healthy = True
        self.on_processed: Callable[[Executed, Iterable[Pubkey]], None] = lambda _executed, _changed: None
        self.on_confirmed: Callable[[list[Executed], Iterable[Pubkey]], None] = lambda _executed, _changed: None
        self._seq = storage.transaction_count()
        self._open = _Generation()
        self._being_written: _Generation | None = None
        self._unwritten: dict[Signature, Executed] = {}
        self._waiting: dict[Signature, list[asyncio.Future[Any]]] = {}
        self._processed: dict[Hash, set[bytes]] = {}
        self._pruned_at = -1
        self._decimals: dict[Pubkey, int] = {}
        self._work = asyncio.Event()
        self._closing = False
        self._writer = ThreadPoolExecutor(1, "localnet-commit")
        self._committer: asyncio.Task[None] | None = None
        self._remember_recent()

    def _remember_recent(self) -> None:
        # Duplicates are recognised across a restart for as long as their blockhash lives.
        current = self.timeline.slot()
        for wire in self.storage.wires_since(current - MAX_BLOCKHASH_AGE):
            message = VersionedTransaction.from_bytes(wire).message
            if self.timeline.slot_of_blockhash(message.recent_blockhash, current) is not None:
                self._processed.setdefault(message.recent_blockhash, set()).add(bytes(message.hash()))

    # Time and commitment

    def slot(self, commitment: Commitment = Commitment.PROCESSED) -> int:
        """Return the newest slot at `commitment`."""
        current = self.timeline.slot()
        return max(0, current - FINALIZED_DEPTH) if commitment is Commitment.FINALIZED else current

    @property
    def transaction_count(self) -> int:
        """How many transactions were executed since genesis."""
        return self._seq

    # Accounts

    def account(self, address: Pubkey, commitment: Commitment) -> Account | None:
        """Return an account as of `commitment`, None when it does not exist."""
        if commitment is not Commitment.PROCESSED:
            for generation in (self._being_written, self._open):
                if generation is not None and address in generation.before:
                    return generation.before[address]
        return self.bank.get(address)

    def decimals(self, mint: Pubkey, run: Run | None = None) -> int | None:
        """Return the decimals of a mint, None when there is no such mint; `run` may have made it."""
        if run is not None and mint in run.after:
            account = run.after[mint]
            self._decimals.pop(mint, None)
        else:
            known = self._decimals.get(mint)
            if known is not None:
                return known
            account = self.bank.get(mint)
        if account is None or not tokens.is_mint(account):
            return None
        self._decimals[mint] = tokens.decimals(account)
        return self._decimals[mint]

    # Execution

    def simulate(self, transaction: VersionedTransaction, *, verify: bool, check_age: bool) -> Run:
        """Run a transaction on the executed state, whatever commitment was asked for, and change nothing.

        `check_age` False lets any blockhash pass. Raises TransactionRefusedError: signature, blockhash or duplicate.
        """
        if verify:
            self._verified_hash(transaction)
        if check_age:
            self._check_age(transaction, bytes(transaction.message.hash()))
        return self.bank.run(transaction)

    def send(self, transaction: VersionedTransaction, *, preflight: bool) -> Executed:
        """Execute a transaction.

        With `preflight` one that would fail is refused; without it, one that fails in an instruction is executed,
        pays its fee and lands in the history with its error. Raises TransactionRefusedError: it was not executed.
        Raises RpcError: the chain cannot write to its disk.
        """
        if not self.healthy:
            raise node_unhealthy()
        message_hash = self._verified_hash(transaction)
        self._check_age(transaction, message_hash)
        run = self.bank.run(transaction)
        if run.err is not None and (preflight or not run.landed):
            raise TransactionRefusedError(run.err, run)
        self._processed.setdefault(transaction.message.recent_blockhash, set()).add(message_hash)
        return self._execute(transaction, run)

    @staticmethod
    def _verified_hash(transaction: VersionedTransaction) -> bytes:
        try:
            return bytes(transaction.verify_and_hash_message())
        except TransactionError as error:
            raise TransactionRefusedError("SignatureFailure") from error

    def _check_age(self, transaction: VersionedTransaction, message_hash: bytes) -> None:
        current = self.timeline.slot()
        blockhash = transaction.message.recent_blockhash
        if self.timeline.slot_of_blockhash(blockhash, current) is None:
            raise TransactionRefusedError("BlockhashNotFound")
        # Compared by message, not by signature: a co-signer could sign the same message a second time differently.
        if message_hash in self._processed.get(blockhash, ()):
            raise TransactionRefusedError("AlreadyProcessed")
        if current != self._pruned_at:
            expired = [key for key in self._processed if self.timeline.slot_of_blockhash(key, current) is None]
            for key in expired:
                del self._processed[key]
            self._pruned_at = current

    def _execute(self, transaction: VersionedTransaction, run: Run) -> Executed:
        before = [self.bank.get(key) for key in run.keys]
        known = dict(zip(run.keys, before, strict=True))
        changed = [address for address, after in run.after.items() if after != known[address]]
        meta = transaction_meta(run, before, lambda mint: self.decimals(mint, run))
        # An account of a program's code must exist before the program that points to it.
        for address in sorted(changed, key=lambda key: bool((after := run.after[key]) and after.executable)):
            self._open.before.setdefault(address, known[address])
            self.bank.put(address, run.after[address])
        self._seq += 1
        executed = Executed(
            seq=self._seq,
            signature=transaction.signatures[0],
            keys=run.keys,
            slot=self.timeline.slot(),
            block_time=int(self.timeline.now()),
            err=run.err,
            logs=meta["logMessages"],
            memo=transactions.memo(transaction.message),
            wire=bytes(transaction),
            meta=meta,
        )
        self._open.executed.append(executed)
        self._unwritten[executed.signature] = executed
        if self._committer is None:
            self._committer = asyncio.create_task(self._write_forever(), name="localnet-commit")
        self._work.set()
        self.on_processed(executed, changed)
        return executed

    # History

    def status(self, signature: Signature) -> tuple[StoredStatus, Commitment] | None:
        """Return the outcome of a transaction and how settled it is; None for an unknown one."""
        executed = self._unwritten.get(signature)
        if executed is not None:
            err = None if executed.err is None else to_json(executed.err)
            raw = bytes(signature)
            status = StoredStatus(executed.seq, raw, executed.slot, executed.block_time, err, executed.memo)
            return status, Commitment.PROCESSED
        stored = self.storage.status(signature)
        return None if stored is None else (stored, self.settled(stored.slot))

    def settled(self, slot: int) -> Commitment:
        """Return how settled a written transaction of `slot` is."""
        finalized = slot <= self.newest_settled(Commitment.FINALIZED)
        return Commitment.FINALIZED if finalized else Commitment.CONFIRMED

    def newest_settled(self, commitment: Commitment) -> int:
        """Return the newest slot whose transactions have reached `commitment`; negative when none has."""
        current = self.timeline.slot()
        return current - FINALIZED_DEPTH if commitment is Commitment.FINALIZED else current

    async def confirmation(self, signature: Signature) -> Any:
        """Wait until a transaction is confirmed and return its error in JSON form, None for success.

        Waits for ever for a transaction that is never executed: give it a time limit.
        """
        if signature not in self._unwritten:
            stored = self.storage.status(signature)
            if stored is not None:
                return None if stored.err is None else json.loads(stored.err)
        confirmed: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        waiting = self._waiting.setdefault(signature, [])
        waiting.append(confirmed)
        try:
            return await confirmed
        finally:
            waiting.remove(confirmed)
            if not waiting:
                self._waiting.pop(signature, None)

    async def flush(self) -> None:
        """Wait until everything executed so far is confirmed."""
        newest = self._open if self._open.executed else self._being_written
        if newest is not None:
            await newest.written.wait()

    # Writing

    async def aclose(self) -> None:
        """Write what is left and stop.

        Raises sqlite3.Error: the rest could not be written; transactions that were never confirmed are lost.
        """
        self._closing = True
        self._work.set()
        try:
            if self._committer is not None:
                await self._committer
            self.storage.stage(WriteBatch([], [], [], self.timeline.now()))
            self.storage.commit()
        finally:
            self._writer.shutdown()
            self.storage.close()

    async def _write_forever(self) -> None:
        try:
            while not self._closing or self._open.executed:
                await self._work.wait()
                self._work.clear()
                if self._open.executed:
                    await self._write_generation()
        except Exception:
            logger.exception("the chain stops: its state cannot be written")
            raise
        finally:
            self.healthy = False

    async def _write_generation(self) -> None:
        generation, self._open = self._open, _Generation()
        self._being_written = generation
        batch = self._batch(generation)
        while True:
            try:
                # Filling the transaction needs no disk and many short calls, which another thread would have to wait
                # for the interpreter lock to make; waiting for the disk is one call and blocks nobody there.
                self.storage.stage(batch)
                if self.storage.in_memory:
                    self.storage.commit()
                else:
                    await asyncio.get_running_loop().run_in_executor(self._writer, self.storage.commit)
                break
            except sqlite3.Error:
                # Memory is ahead of the disk now. Nothing more is executed until this generation is written.
                if self._closing:
                    raise
                self.healthy = False
                logger.exception("cannot write the chain's state; trying again")
                await asyncio.sleep(_RETRY_SECONDS)
        self.healthy = True
        self._being_written = None
        for executed in generation.executed:
            del self._unwritten[executed.signature]
            for confirmed in self._waiting.get(executed.signature, ()):
                if not confirmed.done():
                    confirmed.set_result(executed.err)
        generation.written.set()
        self.on_confirmed(generation.executed, generation.before)

    def _batch(self, generation: _Generation) -> WriteBatch:
        accounts = []
        for address in generation.before:
            account = self.bank.get(address)
            accounts.append(AccountRow(address, account, tokens.wallet_of(account) if account else None))
        stored = [one.stored() for one in generation.executed]
        addresses = [(bytes(key), one.seq) for one in generation.executed for key in one.keys]
        return WriteBatch(accounts, stored, addresses, self.timeline.now())
