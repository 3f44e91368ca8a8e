"""The VM of a replay: the program on a chain that has only the given accounts and a payer.

Signatures are not checked.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from solders.account import Account
from solders.hash import Hash
from solders.instruction import Instruction
from solders.litesvm import LiteSVM
from solders.message import Message
from solders.pubkey import Pubkey
from solders.signature import Signature
from solders.transaction import Transaction
from solders.transaction_metadata import FailedTransactionMetadata

from app.chain.addresses import SYSTEM_PROGRAM, Addresses
from app.chain.instructions import MAX_UNITS, compute_unit_limit
from app.chain.logs import policy_violation
from app.chain.records import RawAccount
from idl.codec import Codec

_UNITS = compute_unit_limit(MAX_UNITS)
_LAMPORTS = 10**17
#: Byte ranges of owner and amount in a token account, the same for the SPL token program and Token-2022.
_OWNER, _AMOUNT = slice(32, 64), slice(64, 72)


class BacktestError(Exception):
    """The VM refused an instruction that prepares the replay, or refused a payment for a reason other than a rule."""


class ReplayVm:
    """Runs the program's instructions. Use it only in the thread that created it."""

    def __init__(
        self, program: Path, codec: Codec, addresses: Addresses, accounts: Mapping[Pubkey, RawAccount]
    ) -> None:
        self._codec, self._addresses = codec, addresses
        # Replayed payments are not signed: their signatures were checked when the payments were made.
        self._svm = LiteSVM().with_sigverify(False).with_transaction_history(0).with_blockhash_check(False)
        self._svm.add_program_from_file(codec.program_id, program)
        for address, account in accounts.items():
            self._put(address, account.owner, account.data, account.lamports)
        self.payer = Pubkey.new_unique()
        self._put(self.payer, SYSTEM_PROGRAM, b"", _LAMPORTS)

    def state(self, address: Pubkey) -> dict[str, Any]:
        """Return the data of one of the program's accounts."""
        account = self._svm.get_account(address)
        assert account is not None
        return self._codec.decode_account(account.data).data

    def set_time(self, second: int) -> None:
        """Set the clock to this Unix second."""
        clock = self._svm.get_clock()
        clock.unix_timestamp = second
        self._svm.set_clock(clock)

    def set_tokens(self, owner: Pubkey, like: Pubkey, amount: int) -> None:
        """Give an address a token account with this amount, copied from the account of ``like``."""
        account = self._svm.get_account(self._addresses.token_account(like))
        assert account is not None
        data = bytearray(account.data)
        data[_OWNER], data[_AMOUNT] = bytes(owner), amount.to_bytes(8, "little")
        self._put(self._addresses.token_account(owner), account.owner, bytes(data), account.lamports)

    def do(self, instruction: Instruction) -> None:
        """Run an instruction. Raises BacktestError if it fails."""
        refusal = self.attempt(instruction)
        if refusal is not None:
            raise BacktestError(f"a rule refused an instruction that it must not judge: {refusal}")

    def attempt(self, instruction: Instruction) -> Sequence[str] | None:
        """Run an instruction and return the log of its refusal by a rule, or None if it passes.

        Raises BacktestError if it fails for any other reason.
        """
        message = Message.new_with_blockhash([_UNITS, instruction], self.payer, Hash.default())
        signatures = [Signature.default()] * message.header.num_required_signatures
        result = self._svm.send_transaction(Transaction.populate(message, signatures))
        if not isinstance(result, FailedTransactionMetadata):
            return None
        logs = result.meta().logs()
        if policy_violation(logs, self._codec) is None:
            raise BacktestError(f"{result.err()}: {logs}")
        return logs

    def _put(self, address: Pubkey, owner: Pubkey, data: bytes, lamports: int) -> None:
        self._svm.set_account(address, Account(lamports, data, owner))
