"""Records of a node's responses: blockhashes, simulations, statuses, histories, accounts."""

from dataclasses import dataclass
from typing import Any, ClassVar

from solders.hash import Hash
from solders.pubkey import Pubkey

from app.chain.errors import ChainUnavailable
from idl.codec import Account, Codec, CodecError


@dataclass(frozen=True, slots=True)
class Blockhash:
    """A recent blockhash, and the last block height at which a transaction with this blockhash can land."""

    hash: Hash
    last_valid_block_height: int


@dataclass(frozen=True, slots=True)
class SimulationResult:
    """The outcome of a simulated transaction.

    `err` is the node's transaction error, or `None` on success. `return_data` is None unless the vault program set it.
    `lamports` is the amount left in the account named by the caller. It is None if the caller named none, or if the
    node did not return it.
    """

    err: Any
    logs: list[str]
    units: int
    return_data: bytes | None
    slot: int
    lamports: int | None = None

    @property
    def custom_error(self) -> int | None:
        """The custom error code of the failed program, or None. This may be another program than the vault program."""
        return custom_error(self.err)

    @property
    def failed_instruction(self) -> int | None:
        """The index of the failed instruction, or None if no instruction failed."""
        return failed_instruction(self.err)


@dataclass(frozen=True, slots=True)
class SignatureStatus:
    """A transaction that landed: its slot, its error if it failed, and the commitment of its block."""

    slot: int
    err: Any
    commitment: str

    @property
    def custom_error(self) -> int | None:
        """The custom error code of the failed program, or None. This may be another program than the vault program."""
        return custom_error(self.err)

    @property
    def is_confirmed(self) -> bool:
        """True if a supermajority of stake voted for the block."""
        return self.commitment in {"confirmed", "finalized"}


@dataclass(frozen=True, slots=True)
class Statuses:
    """The statuses of transactions, as a node knew them at `slot`. `None` means that the transaction had not landed."""

    slot: int
    found: list[SignatureStatus | None]


@dataclass(frozen=True, slots=True)
class HistoryEntry:
    """One entry of an address's history. A `failed` transaction has only paid its fee and advanced its nonce."""

    signature: str
    slot: int
    failed: bool


@dataclass(frozen=True, slots=True)
class Block:
    """A block's slot and height. The height is the number of blocks before it; slots without a block do not count."""

    slot: int
    height: int


@dataclass(frozen=True, slots=True)
class BlockContent:
    """The signatures of a block's transactions, and the slot of its parent. Skipped slots may lie in between."""

    parent: int
    signatures: frozenset[str]


@dataclass(frozen=True, slots=True)
class RawAccount:
    """An account's contents as of a slot."""

    TOKEN_AMOUNT: ClassVar = slice(64, 72)
    """Position of the amount in a token account, the same in the SPL Token program and in Token-2022."""

    lamports: int
    owner: Pubkey
    data: bytes
    slot: int

    @property
    def token_amount(self) -> int | None:
        """The amount in a token account, in the mint's smallest unit, or `None` if the data is too short."""
        amount = self.data[self.TOKEN_AMOUNT]
        return int.from_bytes(amount, "little") if len(amount) == 8 else None

    def decode(self, codec: Codec) -> Account:
        """Decode the data as an account of the program. Raises `ChainUnavailable` if the bytes are something else."""
        try:
            return codec.decode_account(self.data)
        except CodecError as error:
            raise ChainUnavailable("the node returned data that is not an account of the program") from error


@dataclass(frozen=True, slots=True)
class Balances:
    """The amounts in token accounts at a slot. `None` means that the account is missing, or too short for an amount."""

    slot: int
    amounts: list[int | None]


def custom_error(err: Any) -> int | None:
    """Return the code from `{"InstructionError": [index, {"Custom": code}]}`, or `None` for any other error."""
    match err:
        case {"InstructionError": [_, {"Custom": int() as code}]}:
            return code
    return None


def failed_instruction(err: Any) -> int | None:
    """Return the index from `{"InstructionError": [index, ...]}`, or `None` for any other error."""
    match err:
        case {"InstructionError": [int() as index, _]}:
            return index
    return None
