"""Runs transactions in an in-process Solana VM that holds the built program."""

import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import ClassVar

from solders.account import Account
from solders.hash import Hash
from solders.instruction import Instruction
from solders.keypair import Keypair
from solders.litesvm import LiteSVM
from solders.message import Message
from solders.pubkey import Pubkey
from solders.transaction import Transaction
from solders.transaction_metadata import FailedTransactionMetadata, SimulatedTransactionInfo, TransactionMetadata
from solders.transaction_status import InstructionErrorCustom, TransactionErrorInstructionError

from app.chain.addresses import ASSOCIATED_TOKEN_PROGRAM, SYSTEM_PROGRAM, TOKEN_2022_PROGRAM, TOKEN_PROGRAM
from app.chain.escrow_instructions import ED25519_PROGRAM
from app.chain.instructions import compute_unit_limit
from app.chain.logs import LoggedViolation, policy_violation
from idl.codec import Event, load

PROGRAM = Path(os.environ.get("AGENT_VAULT_SO") or Path(__file__).parents[2] / "programs" / "agent_vault.so")
"""The program under test."""
CODEC = load()
PROGRAM_ID = CODEC.program_id
START = 1_800_000_000
"""Unix time of every new VM: 2027-01-15T08:00:00Z, the first second of an hour."""
LAMPORTS = 10**9
FEE_PER_SIGNATURE = 5_000

FRAMEWORK_ERRORS = {
    2000: "ConstraintMut",
    2007: "ConstraintExecutable",
    2040: "ConstraintDuplicateMutableAccount",
}
"""Anchor's own error codes that occur in the tests."""
PROGRAM_NAMES = {
    str(SYSTEM_PROGRAM): "System",
    str(TOKEN_PROGRAM): "Token",
    str(TOKEN_2022_PROGRAM): "Token2022",
    str(ASSOCIATED_TOKEN_PROGRAM): "AssociatedToken",
}
_FAILED = re.compile(r"Program (\w+) failed: ")
_MAX_UNITS = compute_unit_limit(1_400_000)

State = dict[Pubkey, tuple[int, bytes, Pubkey] | None]
"""Lamports, data and owner of accounts, or None for an account that does not exist."""


@dataclass(frozen=True)
class Receipt:
    """The outcome of a transaction. `error` is None if it succeeded."""

    error: str | None
    meta: TransactionMetadata
    accounts: Sequence[Pubkey]

    @cached_property
    def logs(self) -> list[str]:
        return self.meta.logs()

    @cached_property
    def events(self) -> list[Event]:
        """The program's events in order: its calls to itself, signed only by the event authority."""
        events = []
        for group in self.meta.inner_instructions():
            for inner in group:
                compiled = inner.instruction()
                if self.accounts[compiled.program_id_index] != PROGRAM_ID:
                    continue
                assert [self.accounts[index] for index in compiled.accounts] == [CODEC.event_authority]
                event = CODEC.decode_event(compiled.data)
                assert event is not None
                events.append(event)
        return events

    @property
    def event(self) -> Event:
        """The only event of the transaction."""
        (event,) = self.events
        return event

    @property
    def violation(self) -> LoggedViolation | None:
        """The violation that the program logged, or None if no rule refused."""
        return policy_violation(self.logs, CODEC)

    @property
    def transfers(self) -> int:
        """Number of inner instructions of a token program."""
        programs = (TOKEN_PROGRAM, TOKEN_2022_PROGRAM)
        return sum(
            self.accounts[inner.instruction().program_id_index] in programs
            for group in self.meta.inner_instructions()
            for inner in group
        )


class Vm:
    """The VM. It signs transactions with the keys it created, and pays for them from its own account."""

    watcher: ClassVar[Callable[["Vm", Message], None] | None] = None
    """Sees every transaction before it runs; see `tests/support/twins.py`."""

    def __init__(self, *, checks_signatures: bool = True) -> None:
        self.svm = LiteSVM()
        if not checks_signatures:
            # All unsigned transactions have the same signature, so the history would reject them as replays.
            self.svm = self.svm.with_sigverify(False).with_transaction_history(0).with_blockhash_check(False)
        self.svm.add_program_from_file(PROGRAM_ID, PROGRAM)
        self._keys: dict[Pubkey, Keypair] = {}
        self._known: set[Pubkey] = set()
        self.fee_payer = self.key(10**6 * LAMPORTS)
        self.now = START

    @property
    def now(self) -> int:
        """Unix time of the chain's clock."""
        return self.svm.get_clock().unix_timestamp

    @now.setter
    def now(self, seconds: int) -> None:
        clock = self.svm.get_clock()
        clock.unix_timestamp = seconds
        self.svm.set_clock(clock)

    def key(self, lamports: int = 0) -> Pubkey:
        """Return the address of a new key. It signs every transaction that names it as a signer."""
        pair = Keypair()
        self._keys[pair.pubkey()] = pair
        if lamports:
            self.put(pair.pubkey(), b"", SYSTEM_PROGRAM, lamports)
        return pair.pubkey()

    def signer(self, address: Pubkey) -> Keypair:
        """Return the key pair of an address that `key` returned."""
        return self._keys[address]

    def sign(self, address: Pubkey, message: bytes) -> bytes:
        """Return the signature over a message by a key that this VM created."""
        return bytes(self._keys[address].sign_message(message))

    def account(self, address: Pubkey) -> Account | None:
        return self.svm.get_account(address)

    def data_or_none(self, address: Pubkey) -> bytes | None:
        account = self.account(address)
        return None if account is None else account.data

    def data(self, address: Pubkey) -> bytes:
        account = self.account(address)
        assert account is not None, f"{address} does not exist"
        return account.data

    def lamports(self, address: Pubkey) -> int:
        return self.svm.get_balance(address) or 0

    def exists(self, address: Pubkey) -> bool:
        return self.lamports(address) > 0

    def rent(self, size: int) -> int:
        """Return the lamports that an account of `size` bytes must hold."""
        return self.svm.minimum_balance_for_rent_exemption(size)

    def put(self, address: Pubkey, data: bytes, owner: Pubkey, lamports: int | None = None) -> Pubkey:
        """Set an account, as if it had always existed."""
        lamports = self.rent(len(data)) if lamports is None else lamports
        self.svm.set_account(address, Account(lamports=lamports, data=data, owner=owner, executable=False))
        self._known.add(address)
        return address

    def state(self) -> State:
        """Return every account set by `put` or named by a sent transaction, except the fee payer and programs.

        An account that does not exist is None.
        """
        state: State = {}
        for address in self._known - {self.fee_payer}:
            account = self.account(address)
            if account is None or not account.executable:
                state[address] = None if account is None else (account.lamports, account.data, account.owner)
        return state

    def blockhash(self) -> Hash:
        """Return the current blockhash."""
        return self.svm.latest_blockhash()

    def renew_blockhash(self) -> None:
        """Give the next transaction a different blockhash from the earlier ones."""
        self.svm.expire_blockhash()

    def transaction(self, *instructions: Instruction) -> Transaction:
        """Return the signed transaction of these instructions."""
        message = Message.new_with_blockhash([_MAX_UNITS, *instructions], self.fee_payer, self.blockhash())
        signers = [self._keys[key] for key in message.account_keys[: message.header.num_required_signatures]]
        return Transaction(signers, message, message.recent_blockhash)

    def watch(self, message: Message) -> None:
        """Show a transaction that is about to run to the watcher, if any."""
        if Vm.watcher is not None:
            Vm.watcher(self, message)

    def send(self, *instructions: Instruction) -> Receipt:
        """Send a transaction with a new blockhash; it may succeed or fail."""
        self.renew_blockhash()
        return self.submit(self.transaction(*instructions))

    def submit(self, transaction: Transaction) -> Receipt:
        """Send a signed transaction."""
        accounts = transaction.message.account_keys
        self._known.update(accounts)
        self.watch(transaction.message)
        return receipt(self.svm.send_transaction(transaction), accounts)

    def simulate(self, *instructions: Instruction) -> Receipt:
        """Run a transaction and discard its effects."""
        self.renew_blockhash()
        transaction = self.transaction(*instructions)
        self.watch(transaction.message)
        return receipt(self.svm.simulate_transaction(transaction), transaction.message.account_keys)

    def succeed(self, *instructions: Instruction) -> Receipt:
        """Send a transaction that must succeed."""
        result = self.send(*instructions)
        assert result.error is None, "\n".join([result.error, *result.logs])
        return result

    def refuse(self, error: str, *instructions: Instruction) -> Receipt:
        """Send a transaction that must fail with `error` and change nothing except for its fee."""
        self.renew_blockhash()
        return self.refuse_transaction(error, self.transaction(*instructions))

    def refuse_transaction(self, error: str, transaction: Transaction) -> Receipt:
        """Send a signed transaction that must fail with `error` and change nothing except for its fee."""
        self._known.update(transaction.message.account_keys)
        before, paid = self.state(), self.lamports(self.fee_payer)
        result = self.submit(transaction)
        assert result.error == error, "\n".join([str(result.error), *result.logs])
        assert changes(before, self.state()) == set()
        fee = FEE_PER_SIGNATURE * signatures(transaction.message)
        assert paid - self.lamports(self.fee_payer) in {0, fee}
        return result


def signatures(message: Message) -> int:
    """Return the number of signatures that a transaction pays for: its own, and the ones verified by the runtime."""
    keys = message.account_keys
    verified = [one.data[0] for one in message.instructions if keys[one.program_id_index] == ED25519_PROGRAM]
    return message.header.num_required_signatures + sum(verified)


def changes(before: State, after: State) -> set[Pubkey]:
    """Return the accounts that differ between two states."""
    return {address for address in before.keys() | after.keys() if before.get(address) != after.get(address)}


def receipt(
    result: TransactionMetadata | FailedTransactionMetadata | SimulatedTransactionInfo, accounts: Sequence[Pubkey]
) -> Receipt:
    """Return the outcome of a transaction with these account keys."""
    if isinstance(result, TransactionMetadata):
        return Receipt(None, result, accounts)
    if isinstance(result, SimulatedTransactionInfo):
        return Receipt(None, result.meta(), accounts)
    return Receipt(error_name(result), result.meta(), accounts)


def error_name(failure: FailedTransactionMetadata) -> str:
    """Return the name of an error: the IDL's, Anchor's, the runtime's, or another program's name and code."""
    error = failure.err()
    if not isinstance(error, TransactionErrorInstructionError):
        return _variant(error)
    if not isinstance(error.err, InstructionErrorCustom):
        return _variant(error.err)
    return custom_error_name(error.err.code, failure.meta().logs())


def custom_error_name(code: int, logs: Sequence[str]) -> str:
    """Return the name of a custom error: the IDL's, Anchor's, or another program's name and the code."""
    failed = next((match[1] for line in logs if (match := _FAILED.match(line))), None)
    if failed is None:
        return f"Precompile:{code}"  # the runtime's own programs log nothing
    if failed != str(PROGRAM_ID):
        return f"{PROGRAM_NAMES[failed]}:{code}"
    return CODEC.error_name(code) or FRAMEWORK_ERRORS.get(code) or f"Custom:{code}"


def _variant(error: object) -> str:
    return str(error).rpartition(".")[2]
