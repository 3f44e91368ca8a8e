"""What the indexer reads from the chain."""

from dataclasses import dataclass

from idl.transactions import ChainEvent


@dataclass(frozen=True, slots=True)
class TokenMove:
    """A token account's balance before and after a transaction; `index` is its position among the accounts."""

    account: str
    index: int
    before: int
    after: int


@dataclass(frozen=True, slots=True)
class Hole:
    """A part of the program's history that may hold transactions that are not stored.

    It lies after the transaction `after` in `after_slot` and before `before_slot`.
    """

    after: str
    after_slot: int
    before_slot: int


@dataclass(frozen=True, slots=True)
class TransactionHole:
    """A transaction that the program's history lists and that no node serves in a readable form.

    `since` is in Unix seconds.
    """

    signature: str
    slot: int
    reason: str
    since: int


@dataclass(frozen=True, slots=True)
class Position:
    """How far a vault or organisation is stored: the balance of its token account, and its last event's number.

    Each is `None` while the store knows or suspects that it lacks something.
    """

    balance: int | None
    sequence: int | None


@dataclass(frozen=True, slots=True)
class ChainTransaction:
    """A successful transaction: the program's events in it, and what it did to token accounts.

    `message_hash` is the hex SHA-256 of the signed message; `block_time` is in Unix seconds.
    """

    signature: str
    slot: int
    block_time: int
    fee_payer: str
    message_hash: str
    events: tuple[ChainEvent, ...]
    moves: tuple[TokenMove, ...]
