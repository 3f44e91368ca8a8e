"""What the node tells: blockhashes, simulations, statuses, accounts."""

from dataclasses import dataclass
from typing import Any

from solders.hash import Hash
from solders.pubkey import Pubkey


@dataclass(frozen=True, slots=True)
class Blockhash:
    """A recent blockhash and the last block height at which a transaction with it can land."""

    hash: Hash
    last_valid_block_height: int


@dataclass(frozen=True, slots=True)
class SimulationResult:
    """The outcome of a simulated transaction.

    `err` is the node's transaction error, `None` for success; `return_data` only what the vault program itself gave.
    """

    err: Any
    logs: list[str]
    units: int
    return_data: bytes | None
    slot: int

    @property
    def custom_error(self) -> int | None:
        """The program's own error code, when that is what failed."""
        return custom_error(self.err)

    @property
    def failed_instruction(self) -> int | None:
        """Index of the instruction that failed."""
        return failed_instruction(self.err)


@dataclass(frozen=True, slots=True)
class SignatureStatus:
    """A transaction that landed: its slot, its error if it failed, and how settled its block is."""

    slot: int
    err: Any
    commitment: str

    @property
    def custom_error(self) -> int | None:
        """The program's own error code, when that is what failed."""
        return custom_error(self.err)

    @property
    def is_confirmed(self) -> bool:
        """Whether a supermajority voted on the block."""
        return self.commitment in {"confirmed", "finalized"}


@dataclass(frozen=True, slots=True)
class Statuses:
    """What a node that had seen blocks up to a slot knew of transactions, `None` for one that it had not seen land."""

    slot: int
    found: list[SignatureStatus | None]


@dataclass(frozen=True, slots=True)
class Block:
    """A block's slot, and its height: the number of blocks before it, slots without a block not counted."""

    slot: int
    height: int


@dataclass(frozen=True, slots=True)
class RawAccount:
    """An account's bytes as of a slot."""

    lamports: int
    owner: Pubkey
    data: bytes
    slot: int


def custom_error(err: Any) -> int | None:
    """Return the code in `{"InstructionError": [index, {"Custom": code}]}`, or `None` for any other error."""
    match err:
        case {"InstructionError": [_, {"Custom": int() as code}]}:
            return code
    return None


def failed_instruction(err: Any) -> int | None:
    """Return the index in `{"InstructionError": [index, ...]}`, or `None` for any other error."""
    match err:
        case {"InstructionError": [int() as index, _]}:
            return index
    return None
