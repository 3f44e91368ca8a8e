"""The executing part of the chain: LiteSVM with the chain's clock, rent rules and fees.

LiteSVM's checks of blockhashes, duplicates and signatures are switched off, because the chain makes them when it admits
a transaction. A transaction runs once without changing the accounts, and the caller decides whether its changes are
applied. A preflight check and the execution after it therefore cost one run of the virtual machine instead of two.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from solders.account import Account
from solders.clock import Clock
from solders.litesvm import LiteSVM
from solders.pubkey import Pubkey
from solders.sysvar import CLOCK
from solders.transaction import VersionedTransaction
from solders.transaction_metadata import FailedTransactionMetadata, SimulatedTransactionInfo, TransactionMetadata

from app.localnet import transactions
from app.localnet.nonces import RECENT_BLOCKHASHES, Advance
from app.localnet.timeline import SLOTS_PER_EPOCH, Timeline
from app.localnet.transactions import LoadedAddresses


@dataclass(slots=True)
class Run:
    """The result of running a transaction on the current state.

    `err` is the JSON form of the error or None. `landed` is True if a validator would put the transaction into a block:
    it succeeds, or it fails in an instruction or in the rent check afterwards, and pays the fee. Any other transaction
    leaves no trace. `after` holds the accounts after the transaction, with None for a closed account. It is
    empty unless the transaction landed.
    """

    keys: list[Pubkey]
    loaded: LoadedAddresses
    fee: int
    err: Any = None
    landed: bool = False
    meta: TransactionMetadata | None = None
    after: dict[Pubkey, Account | None] = field(default_factory=dict)


class Bank:
    """The accounts in memory, after all transactions executed so far."""

    def __init__(self, timeline: Timeline, programs: Mapping[Pubkey, Path]) -> None:
        """Start the virtual machine with its built-in programs, SPL programs and `programs` (address to .so file)."""
        self._timeline = timeline
        self._svm = LiteSVM().with_transaction_history(0).with_blockhash_check(False).with_sigverify(False)
        for address, path in programs.items():
            self._svm.add_program_from_file(address, path)
        #: Returns the lamports that make an account rent-exempt, for a number of data bytes.
        self.rent_minimum: Callable[[int], int] = cache(self._svm.minimum_balance_for_rent_exemption)
        self._clock_at: tuple[int, int] | None = None
        self._set_clock()

    def _set_clock(self) -> None:
        """Update the sysvars Clock and SlotHashes."""
        slot = self._timeline.slot()
        second = int(self._timeline.now())
        if self._clock_at != (slot, second):
            epoch = slot // SLOTS_PER_EPOCH
            epoch_start = self._timeline.block_time(epoch * SLOTS_PER_EPOCH)
            self._svm.set_clock(Clock(slot, epoch_start, epoch, epoch + 1, second))
            if self._clock_at is None or self._clock_at[0] != slot:
                # A new address lookup table must name a recent slot from this list.
                self._svm.set_slot_hashes(self._timeline.recent(slot))
            self._clock_at = (slot, second)

    def get(self, address: Pubkey) -> Account | None:
        """Return an account, or None if it does not exist."""
        if address == CLOCK:
            self._set_clock()
        account = self._svm.get_account(address)
        return account if account is not None and account.lamports else None

    def put(self, address: Pubkey, account: Account | None) -> None:
        """Create or replace an account, or close it if `account` is None."""
        self._svm.set_account(address, account or Account(0, b"", Pubkey.default()))

    def run(self, transaction: VersionedTransaction, advance: Advance | None = None) -> Run:
        """Run a transaction on the current state without changing that state.

        `advance` is the advance of the nonce that replaces the transaction's blockhash. It takes effect even if the
        transaction fails.
        """
        self._set_clock()
        message = transaction.message
        loaded = transactions.loaded_addresses(message, self.get)
        run = Run([*message.account_keys, *loaded.writable, *loaded.readonly], loaded, transactions.fee(message))
        payer_address = run.keys[0]
        payer = self.get(payer_address)
        charged = None if payer is None or payer.lamports < run.fee else _less(payer, run.fee)
        if not self._rent_allows(payer, charged):
            run.err = _insufficient_funds_for_rent(0)
            return run
        if RECENT_BLOCKHASHES in run.keys:
            # LiteSVM derives a new nonce from the transaction's blockhash. A validator uses the newest one instead.
            newest = self._timeline.blockhash(self._timeline.slot())
            transaction = transactions.with_blockhash(transaction, newest)
        priority = transactions.priority_fee(message)
        result = self._simulated(transaction, payer_address, payer, priority)
        run.meta = result.meta()
        if isinstance(result, FailedTransactionMetadata):
            run.err = json.loads(result.to_json())["err"]
            run.landed = isinstance(run.err, dict) and "InstructionError" in run.err
        else:
            run.landed = True
            run.after = {address: after if after.lamports else None for address, after in result.post_accounts()}
            run.err = self._rent_error(run)
        if run.err is not None:
            run.after = self._after_failure(payer_address, charged, advance) if run.landed else {}
        return run

    def _simulated(
        self, transaction: VersionedTransaction, payer_address: Pubkey, payer: Account | None, priority: int
    ) -> SimulatedTransactionInfo | FailedTransactionMetadata:
        """Run a transaction after deducting the priority fee from its payer, because LiteSVM does not charge it."""
        if not priority or payer is None:
            return self._svm.simulate_transaction(transaction)
        self.put(payer_address, _less(payer, min(priority, payer.lamports)))
        try:
            return self._svm.simulate_transaction(transaction)
        finally:
            self.put(payer_address, payer)

    def _after_failure(
        self, payer: Pubkey, charged: Account | None, advance: Advance | None
    ) -> dict[Pubkey, Account | None]:
        """Return the accounts changed by a failed transaction: its payer, and the nonce account that admitted it."""
        after = {payer: charged}
        if advance is not None:
            advanced = advance.after()
            if advance.address == payer:
                assert charged is not None
                advanced = Account(charged.lamports, advanced.data, advanced.owner, False, advanced.rent_epoch)
            after[advance.address] = advanced
        return after

    def _rent_error(self, run: Run) -> Any:
        # LiteSVM omits this check of a validator: no account may fall below the rent-exempt minimum.
        for address, after in run.after.items():
            if not self._rent_allows(self.get(address), after):
                return _insufficient_funds_for_rent(run.keys.index(address))
        return None

    def _rent_allows(self, before: Account | None, after: Account | None) -> bool:
        if after is None or after.lamports >= self.rent_minimum(len(after.data)):
            return True
        if before is None or before.lamports >= self.rent_minimum(len(before.data)):
            return False
        return len(before.data) == len(after.data) and after.lamports <= before.lamports


def _less(account: Account, lamports: int) -> Account | None:
    left = account.lamports - lamports
    return Account(left, account.data, account.owner, account.executable, account.rent_epoch) if left else None


def _insufficient_funds_for_rent(index: int) -> dict[str, Any]:
    return {"InsufficientFundsForRent": {"account_index": index}}
