"""The chain: it admits transactions, executes them in order, and confirms them.

Transactions are executed in memory and immediately reported as `processed`. One task then writes all transactions
executed since the last write in a single database transaction. Only then do they become `confirmed`, so a transaction
reported as confirmed survives a crash of the process. It becomes `finalized` 32 slots later.

Account reads at `processed` see the executed state. Reads at `confirmed` and `finalized` see exactly the state on disk:
a changed account keeps its earlier value until the change is written. There are no forks, so no confirmed transaction
is ever rolled back, and account reads at `finalized` return the same as reads at `confirmed`.
"""

import asyncio
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
from app.localnet.nonces import Advance, advance_of, nonce_address
from app.localnet.params import Commitment
from app.localnet.storage import Storage, StoredStatus, StoredTransaction, to_json
from app.localnet.timeline import FINALIZED_DEPTH, MAX_BLOCKHASH_AGE, Timeline

logger = logging.getLogger(__name__)

_RETRY_SECONDS = 1.0


class TransactionRefusedError(Exception):
    """A transaction was refused. `err` is its error in JSON form; `run` is its result if the virtual machine ran it."""

    def __init__(self, err: Any, run: Run | None = None) -> None:
        super().__init__(str(err))
        self.err = err
        self.run = run


@dataclass(frozen=True, slots=True)
class Executed:
    """An executed transaction and its row in the history."""

    signature: Signature
    keys: list[Pubkey]
    err: Any
    logs: list[str]
    row: StoredTransaction


@dataclass(slots=True)
class _Generation:
    """The contents of one commit: transactions and the earlier value of every account that they changed."""

    executed: list[Executed] = field(default_factory=list)
    before: dict[Pubkey, Account | None] = field(default_factory=dict)
    written: asyncio.Event = field(default_factory=asyncio.Event)


class Chain:
    """Executes transactions one by one and writes them in groups."""

    def __init__(self, storage: Storage, timeline: Timeline, bank: Bank) -> None:
        """Continue from the contents of `storage`. `bank` must already hold the accounts."""
        self.storage = storage
        self.timeline = timeline
        self.bank = bank
        self.healthy = True
        self.on_processed: Callable[[Executed, Iterable[Pubkey]], None] = lambda _executed, _changed: None
        self.on_confirmed: Callable[[list[Executed], Iterable[Pubkey]], None] = lambda _executed, _changed: None
        self.transaction_count = storage.transaction_count()
        self._open = _Generation()
        self._being_written: _Generation | None = None
        self._unwritten: dict[Signature, Executed] = {}
        self._waiting: dict[Signature, list[asyncio.Future[Any]]] = {}
        self._processed: dict[Hash, set[bytes]] = {}
        self._pruned_at = -1
        self._work = asyncio.Event()
        self._closing = False
        self._writer = ThreadPoolExecutor(1, "localnet-commit")
        self._committer: asyncio.Task[None] | None = None
        self._remember_recent()

    def _remember_recent(self) -> None:
        # After a restart, duplicates must still be recognised while their blockhash is valid.
        current = self.timeline.slot()
        for wire in self.storage.wires_since(current - MAX_BLOCKHASH_AGE):
            message = VersionedTransaction.from_bytes(wire).message
            if self.timeline.slot_of_blockhash(message.recent_blockhash, current) is not None:
                self._processed.setdefault(message.recent_blockhash, set()).add(bytes(message.hash()))

    # Time and commitment

    def slot(self, commitment: Commitment = Commitment.PROCESSED) -> int:
        """Return the newest slot at `commitment`."""
        return max(0, self.newest_at(commitment))

    def newest_at(self, commitment: Commitment) -> int:
        """Return the newest slot at `commitment`, or a negative number if there is none.

        Above `processed`, the result is at most the slot of the oldest unwritten transaction. A later slot would tell
        readers that the slot of that transaction is complete.
        """
        current = self.timeline.slot()
        if commitment is not Commitment.PROCESSED:
            current = min(current, next((executed.row.slot for executed in self._unwritten.values()), current))
        return current - FINALIZED_DEPTH if commitment is Commitment.FINALIZED else current

    def commitment_of_slot(self, slot: int) -> Commitment:
        """Return the commitment of the written transactions of `slot`."""
        finalized = slot <= self.newest_at(Commitment.FINALIZED)
        return Commitment.FINALIZED if finalized else Commitment.CONFIRMED

    # Accounts

    def account(self, address: Pubkey, commitment: Commitment) -> Account | None:
        """Return an account at `commitment`, or None if it does not exist."""
        if commitment is not Commitment.PROCESSED:
            for generation in (self._being_written, self._open):
                if generation is not None and address in generation.before:
                    return generation.before[address]
        return self.bank.get(address)

    def decimals(self, address: Pubkey, run: Run | None = None) -> int | None:
        """Return the decimals of a mint, or None if it does not exist. The mint may also be one that `run` creates."""
        account = run.after[address] if run and address in run.after else self.bank.get(address)
        mint = tokens.read_mint(account) if account else None
        return mint.decimals if mint else None

    # Execution

    def simulate(self, transaction: VersionedTransaction, *, verify: bool, check_age: bool) -> Run:
        """Run a transaction without changing the state.

        Whatever the commitment of the request, the transaction runs on the state after all executed transactions.

        `check_age=False` accepts duplicates and any blockhash. With `verify`, raises TransactionRefusedError for a
        wrong signature. With `check_age`, raises TransactionRefusedError for a duplicate, and for a blockhash that is
        neither recent nor the current nonce of the nonce account that the transaction advances.
        """
        if verify:
            self._verified_hash(transaction)
        advance = self._admit(transaction, bytes(transaction.message.hash())) if check_age else None
        return self.bank.run(transaction, advance)

    def send(self, transaction: VersionedTransaction, *, preflight: bool) -> Executed:
        """Execute a transaction.

        With `preflight`, a transaction that would fail is refused. Without it, a transaction that fails in an
        instruction or in the rent check afterwards is executed, pays its fee and lands in the history with its error.
        Raises TransactionRefusedError if it was not executed, and MethodError if the chain cannot write to its disk.
        """
        if not self.healthy:
            raise node_unhealthy()
        message_hash = self._verified_hash(transaction)
        advance = self._admit(transaction, message_hash)
        run = self.bank.run(transaction, advance)
        if run.err is not None and (preflight or not run.landed):
            raise TransactionRefusedError(run.err, run)
        if advance is None:
            self._processed.setdefault(transaction.message.recent_blockhash, set()).add(message_hash)
        return self._execute(transaction, run)

    @staticmethod
    def _verified_hash(transaction: VersionedTransaction) -> bytes:
        try:
            return bytes(transaction.verify_and_hash_message())
        except TransactionError as error:
            raise TransactionRefusedError("SignatureFailure") from error

    def _admit(self, transaction: VersionedTransaction, message_hash: bytes) -> Advance | None:
        """Check that a transaction is new. Return the nonce advance that admits it, or None for a recent blockhash."""
        current, message = self.timeline.slot(), transaction.message
        blockhash = message.recent_blockhash
        if self.timeline.slot_of_blockhash(blockhash, current) is None:
            address = nonce_address(message)
            account = None if address is None else self.bank.get(address)
            advance = advance_of(message, account, self.timeline.blockhash(current))
            if advance is None:
                raise TransactionRefusedError("BlockhashNotFound")
            return advance
        # Compared by message, not by signature: a co-signer could sign the same message a second time differently.
        if message_hash in self._processed.get(blockhash, ()):
            raise TransactionRefusedError("AlreadyProcessed")
        if current != self._pruned_at:
            valid = self.timeline.slot_of_blockhash
            self._processed = {key: seen for key, seen in self._processed.items() if valid(key, current) is not None}
            self._pruned_at = current
        return None

    def _execute(self, transaction: VersionedTransaction, run: Run) -> Executed:
        before = [self.bank.get(key) for key in run.keys]
        known = dict(zip(run.keys, before, strict=True))
        changed = [address for address, after in run.after.items() if after != known[address]]
        meta = transaction_meta(transaction.message, run, before, lambda mint: self.decimals(mint, run))
        # A program's code account must exist before the program that points to it.
        for address in sorted(changed, key=lambda key: bool((after := run.after[key]) and after.executable)):
            self._open.before.setdefault(address, known[address])
            self.bank.put(address, run.after[address])
        self.transaction_count += 1
        signature = transaction.signatures[0]
        row = StoredTransaction(
            seq=self.transaction_count,
            signature=bytes(signature),
            slot=self.timeline.slot(),
            block_time=int(self.timeline.now()),
            err=None if run.err is None else to_json(run.err),
            memo=transactions.memo(transaction.message),
            index=None,
            wire=bytes(transaction),
            meta=to_json(meta),
        )
        executed = Executed(signature, run.keys, run.err, meta["logMessages"], row)
        self._open.executed.append(executed)
        self._unwritten[signature] = executed
        if self._committer is None:
            self._committer = asyncio.create_task(self._write_forever(), name="localnet-commit")
        self._work.set()
        self.on_processed(executed, changed)
        return executed

    # History

    def status(self, signature: Signature) -> tuple[StoredStatus, Commitment] | None:
        """Return the outcome and commitment of a transaction, or None if it is unknown."""
        executed = self._unwritten.get(signature)
        if executed is not None:
            return executed.row, Commitment.PROCESSED
        stored = self.storage.status(signature)
        return None if stored is None else (stored, self.commitment_of_slot(stored.slot))

    def block(self, slot: int, commitment: Commitment) -> list[StoredTransaction] | None:
        """Return the transactions of a slot's block, or None if the block has not reached `commitment`."""
        # The current slot's block is incomplete, and unwritten transactions may still be lost.
        reached = slot <= self.newest_at(commitment) and slot < self.timeline.slot()
        if not reached or any(executed.row.slot <= slot for executed in self._unwritten.values()):
            return None
        return self.storage.transactions_in(slot)

    async def confirmation(self, signature: Signature) -> Any:
        """Wait until a transaction is confirmed. Return its error in JSON form, or None for success.

        Set a timeout: this never returns for a transaction that is never executed.
        """
        if signature not in self._unwritten and (stored := self.storage.status(signature)):
            return stored.error
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
        """Write the remaining transactions and stop.

        Raises sqlite3.Error if they cannot be written. The unconfirmed transactions are then lost.
        """
        self._closing = True
        self._work.set()
        try:
            if self._committer is not None:
                await self._committer
            self.storage.stage({"last_time": self.timeline.now()})
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
            logger.exception("cannot write the chain's state; the chain stops")
            raise
        finally:
            self.healthy = False

    async def _write_generation(self) -> None:
        generation, self._open = self._open, _Generation()
        self._being_written = generation
        last_time = {"last_time": self.timeline.now()}
        accounts = [(address, self.bank.get(address)) for address in generation.before]
        rows = [executed.row for executed in generation.executed]
        addresses = [(bytes(key), executed.row.seq) for executed in generation.executed for key in executed.keys]
        while True:
            try:
                # Stage in this thread: staging makes many short calls that do not touch the disk, and in another thread
                # each call would wait for the interpreter lock. Commit in the other thread, because the commit is one
                # call that waits for the disk.
                self.storage.stage(last_time, accounts, rows, addresses)
                if self.storage.in_memory:
                    self.storage.commit()
                else:
                    await asyncio.get_running_loop().run_in_executor(self._writer, self.storage.commit)
                break
            except sqlite3.Error:
                # Memory is now ahead of the disk. Refuse further transactions until this generation is written.
                if self._closing:
                    raise
                self.healthy = False
                logger.exception("cannot write the chain's state; retrying")
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
