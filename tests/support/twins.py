"""Runs instructions of the program twice: in the VM, and in a twin that must behave the same.

A twin is the program compiled for this machine by an unchanged rustc (`programs/twin`), or a second file for the VM
(`AGENT_VAULT_TWIN`). The comparison covers the error, every writable account, the program's calls to other programs
(including events), the logs and the return data. It leaves out compute units.
"""

import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from solders.account import Account
from solders.clock import Clock
from solders.hash import Hash
from solders.instruction import AccountMeta, CompiledInstruction
from solders.litesvm import LiteSVM
from solders.message import Message
from solders.pubkey import Pubkey
from solders.sysvar import INSTRUCTIONS
from solders.transaction import Transaction
from solders.transaction_metadata import FailedTransactionMetadata, SimulatedTransactionInfo
from solders.transaction_status import InstructionErrorCustom, TransactionErrorInstructionError

from app.chain.addresses import SYSTEM_PROGRAM
from tests.support.vm import PROGRAM_ID, Vm

Changed = tuple[int, bytes, Pubkey]
"""Lamports, data and owner of an account."""
Called = tuple[Pubkey, bytes, tuple[Pubkey, ...]]
"""Program, data and accounts of a call."""

NOTHING: Changed = (0, b"", SYSTEM_PROGRAM)
_SYSVAR_OWNER = Pubkey.from_string("Sysvar1111111111111111111111111111111111111")
_CALLED_BY_IT = 2
"""Stack height of a call made by an instruction of the transaction."""


@dataclass(frozen=True)
class Case:
    """An instruction of the program: the last instruction of a transaction."""

    message: Message
    clock: Clock
    start: Mapping[Pubkey, Account | None]
    """The accounts before the transaction, without executable ones."""
    accounts: Mapping[Pubkey, Account | None]
    """The same accounts as in `start`, before the instruction."""
    executables: Mapping[Pubkey, Account]

    @property
    def instruction(self) -> CompiledInstruction:
        return self.message.instructions[-1]

    @property
    def metas(self) -> list[AccountMeta]:
        """The instruction's accounts, with their rights in the transaction."""
        keys, rights = self.message.account_keys, _rights(self.message)
        return [AccountMeta(keys[index], *rights[index]) for index in self.instruction.accounts]

    def state(self, address: Pubkey) -> Changed:
        """Return lamports, data and owner of an account before the instruction."""
        if address == INSTRUCTIONS:
            return 0, instructions_data(self.message), _SYSVAR_OWNER
        if address in self.executables:
            program = self.executables[address]
            return program.lamports, b"", program.owner
        account = self.accounts.get(address)
        return NOTHING if account is None else (account.lamports, account.data, account.owner)

    @property
    def written(self) -> set[Pubkey]:
        """The accounts that the instruction may change."""
        return {meta.pubkey for meta in self.metas if meta.is_writable} - self.executables.keys()


@dataclass
class Outcome:
    """The effects of an instruction."""

    error: str | None = None
    accounts: dict[Pubkey, Changed] = field(default_factory=dict)
    """States of the writable accounts after the instruction; empty after an error."""
    calls: list[Called] = field(default_factory=list)
    logs: list[str] = field(default_factory=list)
    returned: bytes = b""


class Twin(Protocol):
    """Another implementation that runs the program."""

    def run(self, case: Case) -> Outcome: ...


def _rights(message: Message) -> list[tuple[bool, bool]]:
    """Return two flags for each account of a message: it signs, and it is writable.

    Programs that the message calls are not writable. Clusters also take this right from sysvars and builtins, but this
    VM does not.
    """
    keys, header = message.account_keys, message.header
    signers, unsigned = header.num_required_signatures, header.num_readonly_unsigned_accounts
    programs = {keys[one.program_id_index] for one in message.instructions}
    rights = []
    for index, key in enumerate(keys):
        last = signers - header.num_readonly_signed_accounts if index < signers else len(keys) - unsigned
        rights.append((index < signers, index < last and key not in programs))
    return rights


def instructions_data(message: Message) -> bytes:
    """Return the content of the instructions sysvar while the last instruction of a message runs."""
    keys, rights = message.account_keys, _rights(message)
    bodies = []
    for one in message.instructions:
        flags = [(int(rights[index][0]) | int(rights[index][1]) << 1, index) for index in one.accounts]
        metas = b"".join(bytes([each]) + bytes(keys[index]) for each, index in flags)
        program, data = bytes(keys[one.program_id_index]), bytes(one.data)
        bodies.append(struct.pack("<H", len(flags)) + metas + program + struct.pack("<H", len(data)) + data)
    at, offsets = 2 + 2 * len(bodies), []
    for body in bodies:
        offsets.append(at)
        at += len(body)
    head = struct.pack(f"<H{len(offsets)}H", len(bodies), *offsets)
    return head + b"".join(bodies) + struct.pack("<H", len(bodies) - 1)


def raw_error(failure: FailedTransactionMetadata) -> str:
    """Return the runtime's name of an instruction's error, with the code if it is a custom error."""
    error = failure.err()
    if not isinstance(error, TransactionErrorInstructionError):
        return str(error)
    if isinstance(error.err, InstructionErrorCustom):
        return f"Custom {error.err.code}"
    return str(error.err).rpartition(".")[2]


def own_lines(logs: Sequence[str]) -> list[str]:
    """Return the lines that the program itself logged in the last instruction of a transaction."""
    frames: list[str] = []
    lines: list[str] = []
    for line in logs:
        words = line.split(" ")
        if words[0] == "Program" and words[2:3] == ["invoke"]:
            if not frames:
                lines = []
            frames.append(words[1])
        elif words[0] == "Program" and words[1] == frames[-1:][0] and words[2] in {"success", "failed:"}:
            frames.pop()
        elif frames[-1:] == [str(PROGRAM_ID)] and words[1] in {"log:", "data:"}:
            lines.append(line)
    return lines


class Machine:
    """The VM with one build of the program. Its state does not persist."""

    def __init__(self, program: Path) -> None:
        self._svm = LiteSVM().with_sigverify(False).with_transaction_history(0).with_blockhash_check(False)
        self._svm.add_program_from_file(PROGRAM_ID, program)

    def learn(self, executables: Mapping[Pubkey, Account]) -> None:
        """Load the programs that a test has added to its VM."""
        for address, account in executables.items():
            found = self._svm.get_account(address)
            if found is None or not found.executable:
                self._svm.add_program(address, account.data)

    def simulate(
        self, message: Message, clock: Clock, accounts: Mapping[Pubkey, Account | None]
    ) -> SimulatedTransactionInfo | FailedTransactionMetadata:
        """Run a message on these accounts."""
        self._svm.set_clock(clock)
        for address, account in accounts.items():
            self._svm.set_account(address, account or Account(lamports=0, data=b"", owner=SYSTEM_PROGRAM))
        return self._svm.simulate_transaction(Transaction.new_unsigned(message))

    def run(self, case: Case) -> Outcome:
        """Run the case's transaction."""
        keys = case.message.account_keys
        self.learn(case.executables)
        result = self.simulate(case.message, case.clock, case.start)
        meta = result.meta()
        outcome = Outcome(logs=own_lines(meta.logs()))
        for group in meta.inner_instructions()[-1:]:
            for inner in group:
                if inner.stack_height() == _CALLED_BY_IT:  # type: ignore[attr-defined]  # the stub lacks it
                    one = inner.instruction()
                    given = tuple(keys[index] for index in one.accounts)
                    outcome.calls.append((keys[one.program_id_index], bytes(one.data), given))
        if isinstance(result, FailedTransactionMetadata):
            outcome.error = raw_error(result)
            if any("exceeded CUs meter" in line for line in meta.logs()):
                outcome.error = "ComputationalBudgetExceeded"
            return outcome
        after = dict(result.post_accounts())
        outcome.accounts = {address: changed(after[address]) for address in case.written if address in after}
        returned = meta.return_data()  # type: ignore[attr-defined]  # the stub lacks it
        if returned.program_id == PROGRAM_ID:
            outcome.returned = returned.data
        return outcome


def changed(account: Account) -> Changed:
    """Return the compared parts of an account. Without lamports the account is gone, so the result is `NOTHING`."""
    return (account.lamports, account.data, account.owner) if account.lamports else NOTHING


def _with_instructions(message: Message, instructions: Sequence[CompiledInstruction]) -> Message:
    header = message.header
    return Message.new_with_compiled_instructions(
        header.num_required_signatures,
        header.num_readonly_signed_accounts,
        header.num_readonly_unsigned_accounts,
        message.account_keys,
        Hash.default(),
        list(instructions),
    )


def cases(machine: Machine, vm: Vm, message: Message) -> Iterator[Case]:
    """Yield each instruction of the program in a transaction that is about to run in `vm`."""
    keys, clock = message.account_keys, vm.svm.get_clock()
    accounts: dict[Pubkey, Account | None] = {}
    executables = {}
    for address in keys:
        account = vm.account(address)
        if account is not None and account.executable:
            executables[address] = account
        elif address != INSTRUCTIONS:
            accounts[address] = account
    machine.learn(executables)
    for at, one in enumerate(message.instructions):
        if keys[one.program_id_index] != PROGRAM_ID:
            continue
        before = machine.simulate(_with_instructions(message, message.instructions[:at]), clock, accounts)
        if isinstance(before, FailedTransactionMetadata):
            return
        found = {**accounts, **dict(before.post_accounts())}
        yield Case(
            _with_instructions(message, message.instructions[: at + 1]),
            clock,
            accounts,
            {address: account if account and account.lamports else None for address, account in found.items()},
            executables,
        )


def differences(expected: Outcome, found: Outcome) -> dict[str, tuple[object, object]]:
    """Return the differing values by name: the error, calls, logs, return data, and each account."""
    pairs: dict[str, tuple[object, object]] = {
        name: (getattr(expected, name), getattr(found, name)) for name in ("error", "calls", "logs", "returned")
    }
    for address in expected.accounts.keys() | found.accounts.keys():
        pairs[f"account {address}"] = (expected.accounts.get(address), found.accounts.get(address))
    return {name: pair for name, pair in pairs.items() if pair[0] != pair[1]}


@dataclass
class Comparison:
    """Runs every instruction of the program in a VM and in a twin."""

    machine: Machine
    twin: Twin
    compared: dict[tuple[bytes, str | None], int] = field(default_factory=dict)
    """Number of compared instructions, by discriminator and error."""

    def watch(self, vm: Vm, message: Message) -> None:
        """Compare each instruction of a transaction that is about to run."""
        for case in cases(self.machine, vm, message):
            expected, found = self.machine.run(case), self.twin.run(case)
            if expected.error == "ComputationalBudgetExceeded":
                continue
            assert not (different := differences(expected, found)), f"not what the VM did: {different}"
            key = (bytes(case.instruction.data[:8]), expected.error)
            self.compared[key] = self.compared.get(key, 0) + 1
