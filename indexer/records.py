"""Records of the data that the indexer reads from the chain."""

from dataclasses import dataclass

from idl.transactions import ChainEvent


@dataclass(frozen=True, slots=True)
class TokenMove:
    """A token account's balance before and after a transaction, and its `index` in the transaction's account list."""

    account: str
    index: int
    before: int
    after: int


@dataclass(frozen=True, slots=True)
class Hole:
    """A part of the program's history that may contain transactions not stored here.

    It begins after the transaction `after` in `after_slot` and ends in `before_slot`, where the listed history
    continues.
    """

    after: str
    after_slot: int
    before_slot: int


@dataclass(frozen=True, slots=True)
class TransactionHole:
    """A transaction that the program's history lists but no node serves in a readable form.

    `since` is the time of its detection in Unix seconds.
    """

    signature: str
    slot: int
    reason: str
    since: int


@dataclass(frozen=True, slots=True)
class Position:
    """The stored position of a vault or organisation: its token account's balance and its last event's number.

    Each is `None` while the store knows or suspects that something is missing.
    """

    balance: int | None
    sequence: int | None


@dataclass(frozen=True, slots=True)
class ChainTransaction:
    """A successful transaction with the program's events in it and its changes of token balances.

    `message_hash` is the hex SHA-256 of the signed message; `block_time` is in Unix seconds.
    """

    signature: str
    slot: int
    block_time: int
    fee_payer: str
    message_hash: str
    events: tuple[ChainEvent, ...]
    moves: tuple[TokenMove, ...]
