"""The program compiled for this machine by an unchanged rustc. It gets the same input as the program in the VM.

Other programs run in the VM, on the accounts as the native program left them. Like the runtime, this module checks that
the program changed only accounts that it may change.
"""

import base64
import struct
import subprocess
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Self

from solders.account import Account
from solders.hash import Hash
from solders.instruction import AccountMeta, Instruction
from solders.message import Message
from solders.pubkey import Pubkey
from solders.rent import Rent
from solders.sysvar import CLOCK, RENT
from solders.transaction_metadata import FailedTransactionMetadata

from app.chain.addresses import SYSTEM_PROGRAM
from tests.support.twins import NOTHING, Case, Changed, Machine, Outcome, changed, raw_error
from tests.support.vm import PROGRAM, PROGRAM_ID

_GROWTH = 10_240
"""Maximum growth of an account in one instruction, in bytes."""
_RENT_EPOCH = 8
"""Bytes of the rent epoch, at the end of a serialized account."""
_ERRORS = (
    *("Custom", "InvalidArgument", "InvalidInstructionData", "InvalidAccountData", "AccountDataTooSmall"),
    *("InsufficientFunds", "IncorrectProgramId", "MissingRequiredSignature", "AccountAlreadyInitialized"),
    *("UninitializedAccount", "NotEnoughAccountKeys", "AccountBorrowFailed", "MaxSeedLengthExceeded", "InvalidSeeds"),
    *("BorshIoError", "AccountNotRentExempt", "UnsupportedSysvar", "IllegalOwner"),
    *("MaxAccountsDataAllocationsExceeded", "InvalidRealloc", "MaxInstructionTraceLengthExceeded"),
    *("BuiltinProgramsMustConsumeComputeUnits", "InvalidAccountOwner", "ArithmeticOverflow", "Immutable"),
    "IncorrectAuthority",
)
"""The runtime's errors in the order of their codes, which start at 1 and are the upper half of a return value.

The first one stands for the custom error 0.
"""


class _Process:
    """The native program's process; see `programs/twin/src/wire.rs`."""

    def __init__(self, command: Sequence[str]) -> None:
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._in: IO[bytes] = self._process.stdin
        self._out: IO[bytes] = self._process.stdout

    def close(self) -> None:
        self._in.close()
        self._process.wait()
        self._out.close()

    def send(self, *parts: bytes) -> None:
        self._in.write(b"".join(parts))
        self._in.flush()

    def exact(self, size: int) -> bytes:
        found = self._out.read(size)
        assert len(found) == size, "the native program's process ended"
        return found

    def number(self) -> int:
        return int.from_bytes(self.exact(8), "little")

    def bytes(self) -> bytes:
        return self.exact(self.number())

    def address(self) -> Pubkey:
        return Pubkey(self.exact(32))


def _number(number: int) -> bytes:
    return number.to_bytes(8, "little")


def _sized(data: bytes) -> bytes:
    return _number(len(data)) + data


@dataclass
class _Input:
    """The serialization of an instruction for a program, in the format of loaders 2 and 3."""

    parts: list[tuple[bytes, int]]
    """Bytes, and the number of zeros that follow them."""
    at: dict[Pubkey, int]
    """The offset of each account."""
    data_at: int

    @classmethod
    def of(
        cls,
        metas: Sequence[AccountMeta],
        states: Mapping[Pubkey, Changed],
        executables: Container[Pubkey],
        data: bytes,
    ) -> Self:
        parts, at, size = [(_number(len(metas)), 0)], {}, 8
        places: dict[Pubkey, int] = {}
        for index, meta in enumerate(metas):
            if meta.pubkey in places:
                part, zeros = bytes([places[meta.pubkey]]), 7
            else:
                places[meta.pubkey], at[meta.pubkey] = index, size
                lamports, content, owner = states[meta.pubkey]
                flags = bytes([0xFF, meta.is_signer, meta.is_writable, meta.pubkey in executables])
                part = flags + bytes(4) + bytes(meta.pubkey) + bytes(owner) + _number(lamports) + _sized(content)
                zeros = _GROWTH + -len(content) % 8 + _RENT_EPOCH
            parts.append((part, zeros))
            size += len(part) + zeros
        return cls([*parts, (_sized(data) + bytes(PROGRAM_ID), 0)], at, size + 8)

    def after(self, words: Sequence[tuple[int, int]]) -> dict[Pubkey, Changed]:
        """Change these words of the serialization, and return the accounts that it then contains."""
        whole = bytearray().join(part + bytes(zeros) for part, zeros in self.parts)
        whole += bytes(-len(whole) % 8)
        for at, word in words:
            struct.pack_into("<Q", whole, at, word)
        found = {}
        for address, at in self.at.items():
            lamports, length = struct.unpack_from("<QQ", whole, at + 72)
            found[address] = (lamports, bytes(whole[at + 88 : at + 88 + length]), Pubkey(whole[at + 40 : at + 72]))
        return found


class _RefusedCallError(Exception):
    """A call to another program was refused. The transaction ends with this error."""


class NativeTwin:
    """The program compiled for this machine. It calls other programs in the VM, on the accounts' current state."""

    def __init__(self, executable: Path, program: Path) -> None:
        command = [str(executable), str(program)]
        self._process, self._inner = _Process(command), _Process(command)
        self._others = Machine(PROGRAM)
        self._payer = Pubkey.new_unique()
        self._runs = 0

    def close(self) -> None:
        """End the twin's processes."""
        self._process.close()
        self._inner.close()

    def run(self, case: Case) -> Outcome:
        """Run a case. In every second run, the second register holds the address of the instruction data."""
        self._runs += 1
        states = {meta.pubkey: case.state(meta.pubkey) for meta in case.metas}
        return _Run(self._process, self, case, case.metas, states).go(bytes(case.instruction.data), self._runs % 2)

    def call(self, case: Case, instruction: Instruction, states: dict[Pubkey, Changed]) -> None:
        """Call another program, or this program itself for an event, and put the changes into `states`."""
        if instruction.program_id == PROGRAM_ID:
            metas = list(instruction.accounts)
            run = _Run(self._inner, self, case, metas, {meta.pubkey: states[meta.pubkey] for meta in metas})
            outcome = run.go(instruction.data, self._runs % 2)
            if outcome.error is not None:
                raise _RefusedCallError(outcome.error)
            return
        accounts: dict[Pubkey, Account | None] = {
            address: Account(lamports=lamports, data=data, owner=owner)
            for address, (lamports, data, owner) in states.items()
            if address not in case.executables
        }
        accounts[self._payer] = Account(lamports=10**12, data=b"", owner=SYSTEM_PROGRAM)
        self._others.learn(case.executables)
        message = Message.new_with_blockhash([instruction], self._payer, Hash.default())
        result = self._others.simulate(message, case.clock, accounts)
        if isinstance(result, FailedTransactionMetadata):
            raise _RefusedCallError(raw_error(result))
        states.update({address: changed(account) for address, account in result.post_accounts() if address in states})


class _Run:
    """One run of the native program."""

    def __init__(
        self, process: _Process, twin: NativeTwin, case: Case, metas: list[AccountMeta], states: dict[Pubkey, Changed]
    ) -> None:
        self._process, self._twin, self._case, self._metas = process, twin, case, metas
        self._states = states
        self._outcome = Outcome()

    def go(self, data: bytes, passes_data: int) -> Outcome:
        """Run the instruction and return its outcome."""
        before = dict(self._states)
        given = _Input.of(self._metas, self._states, self._case.executables, data)
        clock, rent = self._case.clock, Rent.default()
        sysvars = {
            CLOCK: struct.pack(
                "<QqQQq",
                *(clock.slot, clock.epoch_start_timestamp, clock.epoch, clock.leader_schedule_epoch),
                clock.unix_timestamp,
            ),
            RENT: struct.pack("<QdB", rent.lamports_per_byte_year, rent.exemption_threshold, rent.burn_percent),
        }
        parts = [bytes([passes_data]), _number(given.data_at), _number(len(given.parts))]
        parts += [_sized(part) + _number(zeros) for part, zeros in given.parts]
        parts += [_number(len(sysvars)), *(bytes(address) + _sized(content) for address, content in sysvars.items())]
        self._process.send(*parts)
        try:
            after = given.after(self._until_the_end())
            for meta in self._metas:
                self._accept(meta.pubkey, after[meta.pubkey])
        except _RefusedCallError as refused:
            self._outcome.error = str(refused)
            return self._outcome
        if sum(state[0] for state in self._states.values()) != sum(state[0] for state in before.values()):
            self._outcome.error = "UnbalancedInstruction"
            return self._outcome
        left = {address: self._states[address] for address in self._case.written & self._states.keys()}
        self._outcome.accounts = {address: one if one[0] else NOTHING for address, one in left.items()}
        return self._outcome

    def _until_the_end(self) -> list[tuple[int, int]]:
        """Answer the program's calls. Return the words that a successful run changed in the serialization."""
        process = self._process
        while True:
            match process.exact(1):
                case b"L":
                    self._outcome.logs.append(f"Program log: {process.bytes().decode()}")
                case b"D":
                    encoded = [base64.b64encode(process.bytes()).decode() for _ in range(process.number())]
                    self._outcome.logs.append(f"Program data: {' '.join(encoded)}")
                case b"T":
                    self._outcome.returned = process.bytes()
                case b"C":
                    self._call()
                case b"R":
                    result, count = process.number(), process.number()
                    words = list(struct.iter_unpack("<QQ", process.exact(16 * count)))
                    if result:
                        raise _RefusedCallError(_named(result))
                    return words
                case b"X":
                    process.number()
                    raise _RefusedCallError("ProgramFailedToComplete")
                case letter:
                    raise AssertionError(letter)

    def _call(self) -> None:
        """Run a call by the program, and answer with the new states of the accounts in the call."""
        process = self._process
        program = process.address()
        metas = []
        for _ in range(process.number()):
            address, (writable, signer) = process.address(), process.exact(2)
            metas.append(AccountMeta(address, bool(signer), bool(writable)))
        data = process.bytes()
        signers = [[process.bytes() for _ in range(process.number())] for _ in range(process.number())]
        given = []
        for _ in range(process.number()):
            address, lamports, owner = process.address(), process.number(), process.address()
            given.append((address, (lamports, process.bytes(), owner)))
        self._outcome.returned = b""
        try:
            self._check_rights(program, metas, {Pubkey.create_program_address(one, PROGRAM_ID) for one in signers})
            for address, state in given:
                self._accept(address, state)
            self._outcome.calls.append((program, data, tuple(meta.pubkey for meta in metas)))
            self._twin.call(self._case, Instruction(program, data, metas), self._states)
        except _RefusedCallError:
            process.send(b"\0")
            raise
        parts = []
        for address, _ in given:
            lamports, content, owner = self._states[address]
            parts += [_number(lamports), bytes(owner), _sized(content)]
        process.send(b"\1", *parts)

    def _check_rights(self, program: Pubkey, metas: Sequence[AccountMeta], signers: set[Pubkey]) -> None:
        """Refuse a call with more rights than the program has."""
        own = {meta.pubkey: meta for meta in self._metas}
        for meta in metas:
            if meta.pubkey not in own:
                raise _RefusedCallError("MissingAccount")
            if (meta.is_writable and not own[meta.pubkey].is_writable) or (
                meta.is_signer and not own[meta.pubkey].is_signer and meta.pubkey not in signers
            ):
                raise _RefusedCallError("PrivilegeEscalation")
        if program not in self._case.message.account_keys:
            raise _RefusedCallError("MissingAccount")

    def _accept(self, address: Pubkey, after: Changed) -> None:
        """Accept the program's own changes to an account, if the program had the right to make them."""
        lamports, data, owner = self._states[address]
        if after == (lamports, data, owner):
            return
        writable = any(meta.is_writable for meta in self._metas if meta.pubkey == address)
        is_own = owner == PROGRAM_ID
        if after[0] < lamports and not is_own:
            raise _RefusedCallError("ExternalAccountLamportSpend")
        if after[0] != lamports and not writable:
            raise _RefusedCallError("ReadonlyLamportChange")
        if after[1] != data and not (is_own and writable):
            raise _RefusedCallError("ExternalAccountDataModified" if writable else "ReadonlyDataModified")
        if after[2] != owner and not (is_own and writable and not any(after[1])):
            raise _RefusedCallError("ModifiedProgramId")
        self._states[address] = after


def _named(result: int) -> str:
    """Return the runtime's name for an entrypoint's return value."""
    kind, code = result >> 32, result & 0xFFFF_FFFF
    if kind == 0:
        return f"Custom {code}"
    name = _ERRORS[kind - 1] if code == 0 and kind <= len(_ERRORS) else "InvalidError"
    return "Custom 0" if name == "Custom" else name
