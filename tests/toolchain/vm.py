"""Runs one program in LiteSVM, by simulation."""

from pathlib import Path

from solders.compute_budget import set_compute_unit_limit
from solders.instruction import Instruction
from solders.keypair import Keypair
from solders.litesvm import LiteSVM
from solders.message import Message
from solders.pubkey import Pubkey
from solders.transaction import Transaction
from solders.transaction_metadata import FailedTransactionMetadata, SimulatedTransactionInfo

COMPUTE_LIMIT = 1_400_000

Result = SimulatedTransactionInfo | FailedTransactionMetadata


def return_data(result: Result) -> bytes:
    """Return the program's return data."""
    data: bytes = result.meta().return_data().data  # type: ignore[attr-defined]  # the stub names it differently
    return data


class ProgramVm:
    """A virtual machine with one program at an address."""

    def __init__(self, program: Path, address: Pubkey) -> None:
        self._vm = LiteSVM()
        self._vm.add_program_from_file(address, program)
        self._address = address
        self._payer = Keypair()
        self._vm.airdrop(self._payer.pubkey(), 10**12)

    def run(self, data: bytes) -> Result:
        """Simulate one instruction without accounts."""
        instructions = [set_compute_unit_limit(COMPUTE_LIMIT), Instruction(self._address, data, [])]
        blockhash = self._vm.latest_blockhash()
        message = Message.new_with_blockhash(instructions, self._payer.pubkey(), blockhash)
        return self._vm.simulate_transaction(Transaction([self._payer], message, blockhash))
